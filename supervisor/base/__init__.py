"""Small tools that every part of the supervisor may use."""
