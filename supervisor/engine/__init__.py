"""The pure engine: events in, actions out. No clock, thread, socket, file or process in here."""
