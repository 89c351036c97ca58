"""Encrypted connections between the nodes of a job."""
