"""What can only be tried on a real GPU: `make gpu-check`."""
