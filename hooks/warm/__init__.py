"""The warm process: imports what ranks import, waits inside of its start-up, and forks ranks that go on from there."""
