"""The quick checks, a file each."""
