"""What torch's profiler has recorded of a rank: its trace read, added up, and kept."""
