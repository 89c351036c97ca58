"""What the ranks train on: is each given samples of its own, and in a new order each time."""
