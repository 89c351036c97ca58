"""What a check is asked, how it is run, and what it answers.

And what guardrun and its pre-flight's process say to each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.collect.host.procfs import read_delay_s


class Severity(str, Enum):
    """What a remark asks of whoever reads it; the higher wins."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing where something goes wrong; `guardctl check` shows it, guardrun says nothing."""
    WARN = "warn"
    """Likely to hurt some run. guardrun says it and goes on: it may not be this one."""
    REFUSE = "refuse"
    """No run can get past it, or none should. guardrun starts nothing."""

    @property
    def rank(self) -> int:
        """0 for OK, rising with severity."""
        return list(Severity).index(self)


class Remark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a check has to say."""

    check: str
    severity: Severity
    summary: str
    """One sentence for a person."""
    advice: str = ""
    """What to do, where there is something to do."""
    evidence: dict[str, Any] = {}


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is about to run, as far as it is known."""

    node: str
    cwd: str
    environ: dict[str, str]
    ranks: int = 1
    """On this node."""
    run_folder: str = ""
    """Where runs are kept; absolute, as all folders here."""
    checkpoint_dir: str = ""
    checkpoint_format: str = "auto"
    port: int | None = None
    """The master port that the user named, where this node serves it."""
    state_folder: str = ""
    """Where this node's history is kept; empty: nowhere."""
    shared_dir: str = ""
    state_dir: str = ""
    """As configured, absolute or empty."""


class Check(NamedTuple):
    """One check."""

    name: str
    run: Callable[[Subject], list[Remark]]
    """May raise: that, too, is told."""
    needs_run: bool = False
    """It looks at what only the command line and the configuration tell."""


def ok(check: str, summary: str, **evidence: Any) -> Remark:
    """There is nothing to do: only `guardctl check` shows it."""
    return Remark(check=check, severity=Severity.OK, summary=summary, evidence=evidence)


def note(check: str, summary: str, advice: str = "", **evidence: Any) -> Remark:
    """Worth knowing; see Severity.NOTE."""
    return Remark(check=check, severity=Severity.NOTE, summary=summary, advice=advice, evidence=evidence)


def warn(check: str, summary: str, advice: str, **evidence: Any) -> Remark:
    """Likely to hurt some run; see Severity.WARN."""
    return Remark(check=check, severity=Severity.WARN, summary=summary, advice=advice, evidence=evidence)


def refuse(check: str, summary: str, advice: str, **evidence: Any) -> Remark:
    """No run is started; see Severity.REFUSE."""
    return Remark(check=check, severity=Severity.REFUSE, summary=summary, advice=advice, evidence=evidence)


def worst(remarks: list[Remark]) -> Severity:
    """The highest severity; OK where there are no remarks."""
    return max((one.severity for one in remarks), key=lambda severity: severity.rank, default=Severity.OK)


def size_text(size_bytes: float) -> str:
    """`512 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.3g} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`; for nouns that take an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def subject_here(node: str) -> Subject:
    """What is known before the command line is read."""
    return Subject(node=node, cwd=os.getcwd(), environ=dict(os.environ))


# Protocol -----------------------------------------------------------------------------------------------------------
# What guardrun and its pre-flight's process say to each other: a line of JSON each. Light: guardrun imports it.


class Assignment(msgspec.Struct, kw_only=True):
    """What is about to run."""

    level: str
    """`quick` or `full`."""
    subject: Subject
    """Without its environment: both have the same."""


class Refusals(msgspec.Struct, kw_only=True):
    """What no run can get past; empty: nothing."""

    refused: list[str] = []


# Check runner -------------------------------------------------------------------------------------------------------
# Running checks: all at once, each in a thread; one that does not answer in time is a remark of its own.


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
    answers = run_bounded(jobs, workers=len(jobs), timeout_s=timeout_s, delay_s=_delay_s)
    remarks: list[Remark] = []
    for check, answer in zip(checks, answers, strict=True):
        if answer is None:
            remarks.append(_silent(check.name, timeout_s))
        elif isinstance(answer, BaseException):
            remarks.append(_failed(check.name, answer))
        else:
            remarks += answer
    return Report(remarks, time.monotonic() - began_s)


def _delay_s(native_id: int) -> float:
    """On a node whose cores are all taken a check that is not stuck may be late."""
    return read_delay_s(f"self/task/{native_id}")


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
