"""What every sensor is, and how all of them are run."""
