"""Incidents: their evidence, their sentences, their advice."""
