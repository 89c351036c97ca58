"""What the hooks do to a step that goes wrong, where the user asked for it."""
