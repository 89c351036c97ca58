"""What Slurm runs on a node before and after a job."""
