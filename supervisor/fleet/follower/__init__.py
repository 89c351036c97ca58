"""The supervisor of a node that does not lead."""
