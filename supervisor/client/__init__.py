"""Asking a run's supervisor, or the node agent."""
