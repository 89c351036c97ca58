"""Attempts that train, and that guardrun ends by itself for the next one to go on from a checkpoint."""
