"""What has been on this node, kept within bounds."""
