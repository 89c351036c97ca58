"""The loop that decides: events to the engine, actions to whoever carries them out."""
