"""Trainings that are alive and wrong, and others that only look so, under guardrun: `make gym-numeric`."""
