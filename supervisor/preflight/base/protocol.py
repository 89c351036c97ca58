"""What guardrun and its pre-flight's process say to each other: a line of JSON each. Light: guardrun imports it."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.preflight.base.remark import Subject


class Assignment(msgspec.Struct, kw_only=True):
    """What is about to run."""

    level: str
    """`quick` or `full`."""
    subject: Subject
    """Without its environment: both have the same."""


class Refusals(msgspec.Struct, kw_only=True):
    """What no run can get past; empty: nothing."""

    refused: list[str] = []
