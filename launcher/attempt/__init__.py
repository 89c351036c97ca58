"""One attempt: its ranks are started, watched and stopped."""
