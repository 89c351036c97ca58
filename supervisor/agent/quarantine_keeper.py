"""The agent's part in quarantine: keeps what holds for this node, isolates, releases, notices others' doing.

What its own sensors show to be well again is released without a person.

The record may lie on disks that do not answer, so every touch of it is on the hands' thread; the loop only ever sees
the last answer.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from guardrun.supervisor.agent.agent_context import AgentLoop, AgentState
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.health import quarantine_rules as core
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.quarantine_rules import PREFLIGHT, Isolation, Part, Proof, calm_s, part_of
from guardrun.supervisor.quarantine.record_places import find_places
from guardrun.supervisor.quarantine.records import isolate_node, read_node, release_node

OnChanged = Callable[[dict[str, Any]], None]


class QuarantineKeeper:
    """Knows whether this node is quarantined."""

    def __init__(
        self, node: str, state_dir: Path, shared_dir: str, hands: BackgroundWriter, post: Callable[..., None]
    ) -> None:
        """hands: whose thread touches the record. post(call, *arguments): has the loop make a call."""
        self._node = node
        self._hands = hands
        self._post = post
        self._places = find_places(str(state_dir), shared_dir, {}, node)
        self._stamps: tuple[Any, ...] = ()
        self.state: dict[str, Any] = {}
        """What holds: `holding` (isolations, the oldest first), `troubles`; empty: nothing, and nothing is wrong."""
        self.ended = ""
        """How the last isolation came to its end: `released by alice: fan changed`; empty while one holds."""

    def look(self, wall_s: float, on_changed: OnChanged, is_forced: bool = False) -> None:
        """Have the record read again where its files have changed (or with is_forced); on_changed: after a change."""
        self._hands.put(lambda: self._look(wall_s, on_changed, is_forced))

    def isolate(self, isolation: Isolation, wall_s: float, on_written: Callable[[str], None]) -> None:
        """on_written: is given why not, or empty."""

        def act() -> str:
            written, refused = isolate_node(self._places, self._node, isolation, wall_s)
            return " ".join([*([refused] if refused else []), *written.troubles])

        self._hands.put(lambda: self._act(act, wall_s, on_written))

    def release(
        self,
        who: str,
        reason: str,
        wall_s: float,
        on_written: Callable[[str], None],
        *,
        is_overriding: bool = False,
        only: Collection[str] | None = None,
        uid: int | None = None,
    ) -> None:
        """on_written: is given what still holds, or empty. is_overriding, only, uid: as core's release."""

        def act() -> str:
            written, left = release_node(
                self._places, self._node, who, wall_s, reason, is_overriding=is_overriding, only=only, uid=uid
            )
            return " ".join([*([f"it is still isolated: {core.headline(left)}"] if left else []), *written.troubles])

        self._hands.put(lambda: self._act(act, wall_s, on_written))

    def _act(self, act: Callable[[], str], wall_s: float, on_written: Callable[[str], None]) -> None:
        try:
            why = act()
        except OSError as error:
            why = f"it could not be written: {error.strerror or error}"
        self._post(self._finish_act, *self._read(wall_s), on_written, why)

    def _finish_act(self, state: dict[str, Any], ended: str, on_written: Callable[[str], None], why: str) -> None:
        self.state, self.ended = state, ended
        on_written(why)

    def _look(self, wall_s: float, on_changed: OnChanged, is_forced: bool) -> None:
        stamps = tuple(_stamp(place.path) for place in self._places if not place.is_shared)
        if stamps == self._stamps and not is_forced:
            return
        self._stamps = stamps
        self._post(self._finish_look, *self._read(wall_s), on_changed)

    def _finish_look(self, state: dict[str, Any], ended: str, on_changed: OnChanged) -> None:
        if state != self.state:
            self.state, self.ended = state, ended
            on_changed(state)

    def _read(self, wall_s: float) -> tuple[dict[str, Any], str]:
        record, troubles = read_node(self._places, self._node)
        held = core.holding(record, wall_s)
        last = max(record.isolations, key=lambda one: one.since_wall_s, default=None)
        ended = core.end_of(last, record, wall_s) if last is not None and not held else None
        if not held and not troubles:
            return {}, ended or ""
        return {"holding": [msgspec.to_builtins(one) for one in held], "troubles": troubles}, ended or ""


def isolation_of(finding: Finding, since_wall_s: float, wall_s: float) -> Isolation:
    """What the agent isolates its node for."""
    return Isolation(
        cause=finding.cause,
        who=core.AUTOMATIC,
        since_wall_s=wall_s,
        summary=finding.summary,
        evidence={"finding": finding.id, **finding.evidence},
        evidence_wall_s=since_wall_s,
    )


def user_name(uid: int) -> str:
    """A person's name, never one of guardrun's own. May ask a directory on the network: not for the loop's thread."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
    return f"user {name}" if name in core.MACHINES else name


def is_trusted(uid: int, trust_jobs: bool | list[str]) -> bool:
    """Say whether [node] trust_jobs has a user's isolations hold for everybody. Not for the loop's thread, either."""
    if isinstance(trust_jobs, bool):
        return trust_jobs
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return False
    names = {user.pw_name}
    for gid in groups:
        with suppress(KeyError):
            names.add(grp.getgrgid(gid).gr_name)
    return not names.isdisjoint(trust_jobs)


def node_name(environ: Mapping[str, str]) -> str:
    """As the contract has it."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


# Auto release -------------------------------------------------------------------------------------------------------
# Ends the node's quarantine by itself where its own sensors show that what it was for is well again.
#
# For what a look shows (health/quarantine_rules.py); what only a device that works shows is left to `guardctl check
# --full`: nothing is loaded here, whoever's job may be running.


FRESH_S = 120.0
"""A reading that is older says nothing of now."""


class ReleaseContext(AgentState, AgentLoop, Protocol):
    """What ending a quarantine uses of the agent."""


class AutoRelease:
    """Watches the parts that the node is quarantined for."""

    def __init__(self, agent: ReleaseContext, calm_s: float) -> None:
        """calm_s: how long a part must have been well, as far as this agent itself has seen."""
        self._agent = agent
        self._calm_s = calm_s
        self._well: dict[str, float] = {}
        """By isolation: since when its part is seen to be well."""

    def look(self, now_s: float) -> None:
        """Lift what may be lifted."""
        agent = self._agent
        held = msgspec.convert(agent.quarantine_keeper.state.get("holding", []), known_type(list[Isolation]))
        parts = [(one, part) for one in held if (part := part_of(one)) and part.proof is Proof.LOOK]
        if not parts or not agent.config.policy.act:
            self._well.clear()
            return
        readouts, findings = agent.latest.readouts.values(), agent.latest.findings.values()
        well = [(one, part) for one, part in parts if is_well(part, readouts, findings, now_s)]
        self._well = {one.id: self._well.get(one.id, now_s) for one, _ in well}
        for one, part in well:
            lasted_s = min(now_s - self._well[one.id], calm_s(one, agent.wall_s))
            if lasted_s >= self._calm_s:
                self._lift(one, f"{part.subject} has been well for {lasted_s / 60:.0f} minutes")

    def _lift(self, isolation: Isolation, reason: str) -> None:
        agent = self._agent

        def on_written(left: str) -> None:
            log.info("mended", summary=reason, left=left)
            agent.quarantine_changed(agent.quarantine_keeper.state)

        agent.quarantine_keeper.release(PREFLIGHT, reason, agent.wall_s, on_written, only=(isolation.id,))


def is_well(part: Part, readouts: Iterable[Readout], findings: Iterable[Finding], now_s: float) -> bool:
    """Say whether a part is heard of, up where that can be told, and nothing is found wrong with it.

    Nor may anything be wrong that the node would be isolated for now.
    """
    if any(finding.subject == part.subject or finding.response is Response.ISOLATE for finding in findings):
        return False
    known = {
        sample.name: sample.value
        for readout in readouts
        if not readout.is_silent and now_s - readout.at_s < FRESH_S
        for sample in readout.samples
        if sample.subject == part.subject and sample.value is not None
    }
    return bool(known) and bool(known.get("is_up", True))
