"""Watching a run as it goes: what is told of it, followed and folded, for whoever shows it."""
