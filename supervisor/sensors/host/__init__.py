"""The host: CPUs, memory, disks, clock, kernel log."""
