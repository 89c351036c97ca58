"""SQL over what a run has left, and over what it does now; read-only and bounded."""
