"""What torchrun promises holds through guardrun: the same command lines under both, side by side (promises.py)."""
