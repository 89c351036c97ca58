"""Which checkpoints there are, which are whole, and which to resume from. Reads only; runs nothing that it reads."""
