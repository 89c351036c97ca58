"""Events in, actions out, the table of phases, and what a look is."""
