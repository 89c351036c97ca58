"""Trying nodes together before they train."""
