"""Having the ranks save, and keeping what is resumed from."""
