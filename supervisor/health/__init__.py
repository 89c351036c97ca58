"""What is known of a node, and what follows from it. Pure, as all of engine/."""
