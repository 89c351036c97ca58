"""What a person asks a rank to find out about itself."""
