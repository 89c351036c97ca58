"""All that the engine remembers, as plain data."""
