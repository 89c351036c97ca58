"""The supervisor of the node that leads."""
