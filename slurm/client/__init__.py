"""Asking Slurm."""
