"""What the full pre-flight has devices do: torch on each of them, in processes that may hang and be ended."""
