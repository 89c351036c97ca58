"""Writing a batch script."""
