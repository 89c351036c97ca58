"""What is known of this node, for the engine: the node agent's facts and findings, or the supervisor's own senses.

The agent is asked for on a standing connection. Where none has answered for PATIENCE_S, the supervisor reads what its
own rights allow, of what training feels most: devices, CPUs, its control group. An agent that comes takes over.

Only what concerns this run goes on to the engine: devices that its ranks train on
(`engine/detectors/node_health.py`), the node as a whole, file systems that it uses, and where it has several
nodes the links between them. Everything else is the agent's to remember.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.base.log import log
from guardrun.supervisor.client.agent_client import AgentClient
from guardrun.supervisor.collect.host.node_readings import parse_cgroup
from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.engine.model.events import Device, Gauge, NodeFindingsReported
from guardrun.supervisor.engine.model.looks import Reading
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.gpu.device_power import PowerBook
from guardrun.supervisor.health.gpu.gpu_inventory import number
from guardrun.supervisor.health.quarantine_rules import AUTOMATIC
from guardrun.supervisor.node.rank_devices import RankDevices, RankSaid
from guardrun.supervisor.wire.agent_messages import Facts, Findings, QuarantineIs, RegisterJob, Welcome

if TYPE_CHECKING:
    from guardrun.supervisor.sensors.local_sensors import LocalSensors

PATIENCE_S = 5.0
POWER = "power_w"
GAUGES = ("temperature_c", "sm_clock_hz", POWER)
GAUGE_S = 2.0
BEFORE_S = 300.0
"""So far back a device's readings are told, once there is something to tell of it."""
TOLD_S = 10.0
"""Between two times that more of them are told."""
WHOLE = ("gpu", "cpu", "memory", "node")
"""Kinds of parts of which the engine hears in any case: it knows who trains on which device."""


class Using(NamedTuple):
    """What a run uses of its node."""

    pids: Mapping[int, int]
    """Global rank → its process."""
    mounts: Callable[[], Iterable[str]]
    """Mount points of the folders that it works in; asked for when something is said of one."""
    links: Callable[[], Iterable[str]] | None = None
    """Interfaces by which it reaches its other nodes, likewise; None: it has this node alone."""
    said: RankSaid = RankSaid()
    """By its ranks, of their devices."""


class NodeFeed:
    """`step` it once a second: it answers what the engine should know."""

    def __init__(
        self,
        node: str,
        clock: EngineClock,
        job: RegisterJob,
        *,
        path: Path | None = None,
        patience_s: float = PATIENCE_S,
        pid_namespace: int | None = None,
    ) -> None:
        """path: of the agent's socket, in place of the usual one. pid_namespace: the ranks', as RankDevices has it."""
        self._node, self._clock, self._patience_s = node, clock, patience_s
        self._client = AgentClient(job, path)
        self._local_sensors: LocalSensors | None = None
        self._began_s = time.monotonic()
        self._devices = RankDevices(pid_namespace)
        self._findings: dict[str, Finding] = {}
        """Those that the engine knows of."""
        self._isolations: dict[str, Finding] = {}
        """By persons, since this run is here."""
        self._began_wall_s = time.time()
        self._rings: dict[tuple[str, str], deque[Gauge]] = {}
        self._told_s: dict[str, float] = {}
        self._power = PowerBook()

    @property
    def has_local_sensors(self) -> bool:
        """It reads the node by itself, for want of an agent."""
        return self._local_sensors is not None

    @property
    def devices(self) -> list[Device]:
        """Those that ranks are known to train on."""
        return list(self._devices.known.values())

    def step(self, using: Using) -> NodeFindingsReported | None:
        """Take in what there is to hear. None: nothing that the engine does not know."""
        known = dict(self._findings)
        latest: dict[str, Finding] = {}
        """By id: one may be in several messages of the same second, and be over in the last."""
        for changed in self._hear(using):
            latest |= {finding.id: finding for finding in changed if self._concerns(finding, using)}
        # A whole account and the news of the same moment may say the same.
        news = [one for one in latest.values() if one != known.get(one.id) and (one.id in known or not one.is_over)]
        findings = [self._as_engine(one) for one in news]
        devices = self._devices.changes(using.pids, using.said)
        gauges = self._gauges_to_tell()
        unsensed = self._devices.news_unsensed(using.said)
        if not (findings or devices or gauges or unsensed):
            return None
        return NodeFindingsReported(
            node=self._node, findings=findings, devices=devices, unsensed=unsensed, gauges=gauges
        )

    def power_readings(self) -> list[Reading]:
        """What the ranks' devices draw right now, beside what they usually do; for a look."""
        ranks: dict[str, list[int]] = {}
        for rank, device in sorted(self._devices.known.items()):
            ranks.setdefault(device.subject, []).append(rank)
        return [
            Reading(
                name=f"power of GPU {self._devices.book.index(each.subject)} ({ranks_text(ranks[each.subject])})",
                value=round(each.watts, 1),
                unit="W",
                is_odd=each.is_odd,
                note=f"usually {each.usual_watts:.0f} W" + (", unlike the others" if each.is_odd else ""),
            )
            for each in self._power.compare(list(ranks))
        ]

    def close(self, is_over: bool) -> None:
        """is_over: the run is, and not only this supervisor."""
        if is_over:
            self._client.end_job()
        self._client.close()
        self._end_local_sensors()

    # What is heard -----------------------------------------------------------------------------------------------

    def _hear(self, using: Using) -> Iterator[list[Finding]]:
        """What each message changes; each is to be taken in before the next is asked for."""
        for news in self._client.read():
            if isinstance(news, Welcome):
                self._end_local_sensors()
                log.info("node_agent", version=news.version, protocol=news.protocol)
                yield self._isolated(news.quarantine)
            elif isinstance(news, QuarantineIs):
                yield self._isolated(news.quarantine)
            elif isinstance(news, Facts):
                self._note_readouts(news.readouts, is_own_view=False)
            elif isinstance(news, Findings):
                yield self._all_of(news)
        if not self._client.is_connected and time.monotonic() - self._began_s > self._patience_s:
            yield self._sense(using)

    def _all_of(self, news: Findings) -> list[Finding]:
        """What has changed; a whole account ends what is not in it."""
        ids = {finding.id for finding in news.findings}
        ids |= self._isolations.keys()
        gone = [f for f in self._findings.values() if f.id not in ids] if news.is_whole else []
        over = [msgspec.structs.replace(finding, is_over=True, told_s=news.at_s) for finding in gone]
        return [*news.findings, *over]

    def _isolated(self, quarantine: Mapping[str, Any]) -> list[Finding]:
        """What persons have said of the node since the run began, as findings; what is lifted is over."""
        now_s = time.monotonic()
        held = persons_isolations(quarantine, self._began_wall_s, now_s)
        over = [
            msgspec.structs.replace(finding, is_over=True, told_s=now_s)
            for key, finding in self._isolations.items()
            if key not in held
        ]
        new = [finding for key, finding in held.items() if key not in self._isolations]
        self._isolations = held
        return [*new, *over]

    def _sense(self, using: Using) -> list[Finding]:
        if self._local_sensors is None:
            from guardrun.supervisor.sensors.local_sensors import (
                LocalSensors,  # hundreds of kB that most nodes with an agent never need
            )

            self._local_sensors = LocalSensors(list(using.pids.values()))
            log.info("senses_of_its_own", why=self._client.trouble)
        readouts, findings = self._local_sensors.judge_new_readouts()
        self._note_readouts(readouts, is_own_view=True)
        return findings

    def _end_local_sensors(self) -> None:
        if self._local_sensors is not None:
            self._local_sensors.close()
            self._local_sensors = None

    def _note_readouts(self, readouts: Iterable[Readout], is_own_view: bool) -> None:
        for readout in readouts:
            for subject, values in self._devices.note(readout, is_own_view).items():
                for name in GAUGES:
                    value = number(values, name)
                    if value is not None:
                        if name == POWER:
                            self._power.note(subject, readout.at_s, value)
                        self._keep(Gauge(self._clock.at_ns(int(readout.at_s * 1e9)), subject, name, value))

    def _keep(self, gauge: Gauge) -> None:
        ring = self._rings.setdefault((gauge.subject, gauge.name), deque())
        if ring and gauge.at_s - ring[-1].at_s < 0.75 * GAUGE_S:
            return
        ring.append(gauge)
        while ring[0].at_s < gauge.at_s - BEFORE_S:
            ring.popleft()

    # What is told ------------------------------------------------------------------------------------------------

    def _concerns(self, finding: Finding, using: Using) -> bool:
        """Whether the engine should know; notes what it does."""
        if finding.is_over:
            return self._findings.pop(finding.id, None) is not None
        kind, _, name = finding.subject.partition(":")
        if kind == "mount":
            is_ours = name in using.mounts()
        elif kind == "net":
            is_ours = using.links is not None and name in using.links()
        elif kind == "ib":
            is_ours = using.links is not None
        elif kind == "cgroup":
            is_ours = any(is_within(path, name) for pid in using.pids.values() for path in read_groups(pid))
        else:
            is_ours = kind in WHOLE
        if is_ours:
            self._findings[finding.id] = finding
        return is_ours

    def _as_engine(self, finding: Finding) -> Finding:
        """With the engine's times."""
        return msgspec.structs.replace(
            finding,
            since_s=max(0.0, self._clock.at_ns(int(finding.since_s * 1e9))),
            told_s=max(0.0, self._clock.at_ns(int(finding.told_s * 1e9))),
        )

    def _gauges_to_tell(self) -> list[Gauge]:
        """Readings of devices of this run with which something is wrong, from BEFORE_S before that on."""
        now_s = self._clock.now()
        ours = {device.subject for device in self._devices.known.values()}
        told: list[Gauge] = []
        for subject in sorted({finding.subject for finding in self._findings.values()} & ours):
            since_s = self._told_s.get(subject, 0.0)
            if now_s - since_s < TOLD_S:
                continue
            self._told_s[subject] = now_s
            rings = (self._rings.get((subject, name), ()) for name in GAUGES)
            told += [gauge for ring in rings for gauge in ring if gauge.at_s > since_s]
        return told


def persons_isolations(quarantine: Mapping[str, Any], since_wall_s: float, now_s: float) -> dict[str, Finding]:
    """By id: isolations by persons, as the agent tells them, that began after since_wall_s."""
    found: dict[str, Finding] = {}
    for one in quarantine.get("holding", []):
        who, began_s = str(one.get("who", "")), float(one.get("since_wall_s", 0.0))
        is_anothers = one.get("is_for_owner_alone") is True and one.get("uid") != os.getuid()
        if who == AUTOMATIC or began_s < since_wall_s or is_anothers:
            continue
        why = f" ({str(one['summary']).rstrip('.')})" if one.get("summary") else ""
        key = f"quarantined/node/{began_s:.3f}"
        found[key] = Finding(
            id=key,
            cause="quarantined",
            subject="node",
            since_s=now_s,
            told_s=now_s,
            summary=f"{who} has put this node under quarantine for {one.get('cause', '')}{why}.",
            advice="Training goes on; the next run is refused here until guardctl node release.",
        )
    return found


def read_groups(pid: int) -> set[str]:
    """The control groups of a process, in all hierarchies; none where it is gone."""
    return set(parse_cgroup((read_bytes(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace")).values())


def is_within(path: str, group: str) -> bool:
    """Whether a control group is another one, or below it."""
    return path == group or path.startswith(group.rstrip("/") + "/")
