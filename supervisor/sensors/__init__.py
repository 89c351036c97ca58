"""One file a sensor: what it reads, and nothing of what it means."""
