"""What a run's supervisor does on each node, whoever decides."""
