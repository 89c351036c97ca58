"""Codebases from PyPI, unmodified, under guardrun: what they save, how they resume, how they end."""
