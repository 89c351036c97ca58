"""What tests of every folder share."""
