"""A new run directory, or one that is continued, and whose it is."""
