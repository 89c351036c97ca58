"""Records of quarantined nodes: where they lie, how they are read and written."""
