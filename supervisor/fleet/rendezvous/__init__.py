"""How nodes find the coordinator, and what a start that failed leaves for the others."""
