"""What the ranks compute: is it a number, and does it come back."""
