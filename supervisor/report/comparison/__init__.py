"""Two runs side by side: what differs between them, most telling first."""
