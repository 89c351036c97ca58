"""Checkpoints as frameworks save and load them, one file each."""
