"""What verbs show to a person."""
