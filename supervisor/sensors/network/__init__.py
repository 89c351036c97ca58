"""Network interfaces and InfiniBand ports."""
