"""The hooks' own thread: heartbeats, messages, stacks on request."""
