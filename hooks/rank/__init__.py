"""The rank that this process is, its process, and how it ended."""
