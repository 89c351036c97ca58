"""Analysis on demand: of a guarded run, live or over, and of ranks that any launcher started. Changes nothing."""
