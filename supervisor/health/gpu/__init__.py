"""Judges of GPUs."""
