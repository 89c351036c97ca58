"""Checkpoints of single frameworks, a file each."""
