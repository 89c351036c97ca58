"""One command line from its parser to the end of its run."""
