"""What a part of the node agent uses of it: the node as it is known, and the loop that the part works for.

A part takes the narrowest of these, and names beside it what else it uses; none knows the agent's class, which is made
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from guardrun.supervisor.agent.jobs import PATIENCE_S
from guardrun.supervisor.health.release_rules import CALM_S

if TYPE_CHECKING:
    from guardrun.supervisor.agent.jobs import Jobs
    from guardrun.supervisor.agent.latest_readings import Latest
    from guardrun.supervisor.agent.quarantine_keeper import QuarantineKeeper
    from guardrun.supervisor.config import Config


class Options(NamedTuple):
    """What an agent is started with."""

    state_dir: Path
    socket: Path
    patience_s: float = PATIENCE_S
    """From a launcher's end to looking for what it left."""
    calm_s: float = CALM_S
    """From a part's last trouble to the end of the quarantine that it was the cause of."""


class AgentState(Protocol):
    """What the agent knows of its node; read in its loop."""

    @property
    def options(self) -> Options:
        """What it was started with."""

    @property
    def config(self) -> Config:
        """Another one once it has been read anew."""

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC."""

    @property
    def wall_s(self) -> float:
        """Seconds since 1970; may jump."""

    @property
    def latest(self) -> Latest:
        """The newest readouts, and what is wrong now."""

    @property
    def jobs(self) -> Jobs:
        """Those that run here, and what dead ones have left."""

    @property
    def ward(self) -> QuarantineKeeper:
        """The node's quarantine; another one once the configuration has been read anew."""

    @property
    def counters(self) -> dict[str, int]:
        """Of readouts, findings and ended processes."""


class AgentLoop(Protocol):
    """What a part has the agent do."""

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the loop make a call; for other threads."""

    def note(  # noqa: PLR0917  # an entry's own
        self, what: str, subject: str, name: str, text: str, data: dict[str, Any] | None = None, uid: int = 0
    ) -> None:
        """Into the history, as of now. uid: whose doing it is."""

    def quarantine_changed(self, state: dict[str, Any], uid: int = 0) -> None:
        """The node is quarantined, or is not any more. uid: of who asked for it."""
