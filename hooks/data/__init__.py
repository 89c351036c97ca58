"""Batches that a rank was handed: named and counted, left out after a rollback, skipped after a resume."""
