"""The node agent: it serves what is known of the node."""
