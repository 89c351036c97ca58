"""What is looked at before a run: one check a file, each bounded, none in another's way."""
