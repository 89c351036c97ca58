"""Reading the node, and the agent that serves what is known of it."""
