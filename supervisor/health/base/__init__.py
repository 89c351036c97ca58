"""What all judges of a node share: readings, findings, conditions that last."""
