"""Trainers on several nodes: fixture `job`, as in tests/fleet_runs."""

from tests.fleet_runs.conftest import hosts, job

__all__ = ["hosts", "job"]
