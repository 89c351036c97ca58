"""Running checks: all at once, each in a thread; one that does not answer in time is a remark of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from guardrun.supervisor.base.bounded_calls import run_bounded
from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, warn

QUICK_S = 2.0
"""For all quick checks together."""


class Report(NamedTuple):
    """What the checks said."""

    remarks: list[Remark]
    took_s: float


def run_checks(checks: Sequence[Check], subject: Subject, timeout_s: float = QUICK_S) -> Report:
    """Run them; their remarks in the checks' order. A thread that is stuck is left behind: end the process soon."""
    began_s = time.monotonic()
    jobs = [lambda check=check: check.run(subject) for check in checks]
    answers = run_bounded(jobs, workers=len(jobs), timeout_s=timeout_s)
    remarks: list[Remark] = []
    for check, answer in zip(checks, answers, strict=True):
        if answer is None:
            remarks.append(_silent(check.name, timeout_s))
        elif isinstance(answer, BaseException):
            remarks.append(_failed(check.name, answer))
        else:
            remarks += answer
    return Report(remarks, time.monotonic() - began_s)


def _silent(name: str, timeout_s: float) -> Remark:
    return warn(
        name,
        f"The check of {name} did not answer within {timeout_s:g} s: what it asked may hang for a run, too.",
        "Look at what it asks (guardctl check names it); a driver or a mount that does not answer needs its admin.",
    )


def _failed(name: str, error: BaseException) -> Remark:
    return warn(
        name, f"The check of {name} failed: {type(error).__name__}: {error}.", "Please report this: a check must not."
    )
