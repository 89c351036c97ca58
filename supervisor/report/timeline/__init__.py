"""What every rank did when, and its drawing."""
