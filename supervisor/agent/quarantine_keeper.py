"""The agent's part in quarantine: keeps what holds for this node, isolates and releases, and notices others' doing.

The record may lie on disks that do not answer, so every touch of it is on the hands' thread; the loop only ever sees
the last answer.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.background_writer import BackgroundWriter
from guardrun.supervisor.health import quarantine_rules as core
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.quarantine_rules import Isolation
from guardrun.supervisor.quarantine.record_places import find_places
from guardrun.supervisor.quarantine.records import isolate_node, read_node, release_node

Told = Callable[[dict[str, Any]], None]


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

    def look(self, wall_s: float, told: Told, is_forced: bool = False) -> None:
        """Have the record read again where its files have changed (or with is_forced); told: of a change."""
        self._hands.put(lambda: self._look(wall_s, told, is_forced))

    def isolate(self, isolation: Isolation, wall_s: float, told: Callable[[str], None]) -> None:
        """told: why not, or empty."""

        def act() -> str:
            written, refused = isolate_node(self._places, self._node, isolation, wall_s)
            return " ".join([*([refused] if refused else []), *written.troubles])

        self._hands.put(lambda: self._act(act, wall_s, told))

    def release(
        self,
        who: str,
        reason: str,
        wall_s: float,
        told: Callable[[str], None],
        *,
        is_overriding: bool = False,
        only: Collection[str] | None = None,
        uid: int | None = None,
    ) -> None:
        """told: what still holds, or empty. is_overriding, only, uid: as core's release."""

        def act() -> str:
            written, left = release_node(
                self._places, self._node, who, wall_s, reason, is_overriding=is_overriding, only=only, uid=uid
            )
            return " ".join([*([f"it is still isolated: {core.headline(left)}"] if left else []), *written.troubles])

        self._hands.put(lambda: self._act(act, wall_s, told))

    def _act(self, act: Callable[[], str], wall_s: float, told: Callable[[str], None]) -> None:
        try:
            why = act()
        except OSError as error:
            why = f"it could not be written: {error.strerror or error}"
        self._post(self._tell_act, *self._read(wall_s), told, why)

    def _tell_act(self, state: dict[str, Any], ended: str, told: Callable[[str], None], why: str) -> None:
        self.state, self.ended = state, ended
        told(why)

    def _look(self, wall_s: float, told: Told, is_forced: bool) -> None:
        stamps = tuple(_stamp(place.path) for place in self._places if not place.is_shared)
        if stamps == self._stamps and not is_forced:
            return
        self._stamps = stamps
        self._post(self._tell_look, *self._read(wall_s), told)

    def _tell_look(self, state: dict[str, Any], ended: str, told: Told) -> None:
        if state != self.state:
            self.state, self.ended = state, ended
            told(state)

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
