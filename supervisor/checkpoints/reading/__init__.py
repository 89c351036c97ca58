"""What files and folders hold, read without running or trusting any of it."""
