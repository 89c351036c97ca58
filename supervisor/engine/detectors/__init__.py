"""One question about the run each, answered from events alone."""
