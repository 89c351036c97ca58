"""What a golden case is: a job, what its hosts show, and the verdict that is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from guardrun.supervisor.collect.collectives.process_groups import LAST_CALLS
from tests.support.recorder_dumps import Job

BLIND = "blind"
TWO_BY_TWO = {"tp0": "0,1", "tp1": "2,3", "dp0": "0,2", "dp1": "1,3"}
MIXED = {"world": "cpu:gloo,cuda:nccl"}
TORCHS_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Case:
    """One job, at two looks."""

    name: str
    script: str
    """In the notation of tests/support/recorder_script.py."""
    cause: str = ""
    """Of what is found; empty: nothing may be found."""
    culprits: tuple[int, ...] = ()
    says: str = ""
    """Part of the sentence."""
    patience_s: float = 0.0
    """At least, before anything would be done about it."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Those that are not in a synchronisation with their device (tests/golden/hosts.py)."""
    ranks: int = 4
    groups: dict[str, str] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    torch: str = "2.13"
    timing: bool = False
    ring: int = 2000
    last: int = LAST_CALLS
    alone: str | None = None
    """The cause, where the recorder alone, without the hooks' calls, tells less (BLIND: nothing at all of
    some rank); None: the same is found."""
    unlike: str = ""
    """Why torch's analyser rightly or wrongly says otherwise of who is missing, or what doesn't match."""

    def job(self) -> Job:
        return Job(
            self.script,
            ranks=self.ranks,
            groups=self.groups,
            backends=self.backends,
            names=self.names,
            torch=self.torch,
            timing=self.timing,
            ring=self.ring,
        )


NOBODY: dict[str, Any] = {
    "cause": "collective_timeout",
    "says": "no rank can be named",
    "patience_s": TORCHS_TIMEOUT_S,
}
"""A call that all have issued, and that none has completed: nothing is done before torch itself would do it."""
