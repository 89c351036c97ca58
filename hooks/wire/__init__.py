"""What a rank tells the supervisor, and how it gets there: messages, boards, the calls page."""
