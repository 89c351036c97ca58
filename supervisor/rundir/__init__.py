"""A run's files: where they lie, and the journal."""
