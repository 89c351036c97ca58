"""What a golden case is: a job, what its hosts show, and the verdict that is right."""

from __future__ import annotations

from dataclasses import dataclass, field

from guardrun.supervisor.collect.collectives.process_groups import LAST_CALLS
from tests.support.recorder_dumps import Job


BLIND = "blind"


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
