"""A job of many nodes: how the head's supervisor (the coordinator) and the other nodes' (its followers) speak."""
