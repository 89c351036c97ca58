"""What has failed: ranks, and nodes by what their sensors say."""
