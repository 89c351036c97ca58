"""What follower and coordinator say to each other, and the lease that both keep."""
