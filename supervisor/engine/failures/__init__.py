"""What a rank died of, from its texts and exit status."""
