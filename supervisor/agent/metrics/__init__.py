"""The node's figures for Prometheus."""
