"""What /proc, cgroups and mounts show of processes and the node."""
