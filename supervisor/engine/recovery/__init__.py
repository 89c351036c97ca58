"""What follows from a stop: restarts, preemption, requeues, evictions, the end."""
