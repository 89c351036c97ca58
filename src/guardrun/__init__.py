"""guardrun: a supervisor for distributed training."""

__version__ = "0.1.0"
