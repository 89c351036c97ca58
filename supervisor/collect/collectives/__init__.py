"""Process groups and collectives, as ranks, torch and NCCL record them."""
