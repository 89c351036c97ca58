"""Judges of the host: clock, CPUs, disks, memory, network."""
