"""What verbs share: output, finding a run, its configuration."""
