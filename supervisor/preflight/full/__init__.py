"""The full pre-flight: every device is tried."""
