"""What each torch.distributed call was, and from where: written for the supervisor to read."""
