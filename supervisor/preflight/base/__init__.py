"""What a check is, how checks are run, and what they read."""
