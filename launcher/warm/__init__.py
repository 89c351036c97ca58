"""The warm process from the launcher's side: when there is one, and ranks that are forked of it."""
