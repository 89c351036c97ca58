"""Small tools of the launcher: processes, signals, sockets, environment. Imports no other part of it."""
