"""The supervisor's dealings with its node: hears of it, has it isolated, and learns that a person has released it.

Nothing of this is loaded before a run has lasted START_S: shorter ones have no use for it. Whether the node was
released is asked while it stands idle in a job of several: it may have been left out. The record is read by a worker
thread: it may lie on disks that do not answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.host.file_systems import mount_of, read_mounts
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model.events import Device, NodeFindingsReported, NodeReleased, NotIsolated
from guardrun.supervisor.engine.model.looks import Reading
from guardrun.supervisor.node.run_context import EventLoop, LoopContext, RunContext

if TYPE_CHECKING:
    from guardrun.supervisor.node.node_feed import NodeFeed
    from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
    from guardrun.supervisor.node.slurm_drain import Drains
    from guardrun.supervisor.rundir.run_directory import RunFile


START_S = 2.0

RELEASE_EVERY_S = 10.0
MAX_REASON_CHARS = 200


class IsolationContext(RunContext, Protocol):
    """What isolating a node uses of the node's supervisor."""

    @property
    def drains(self) -> Drains:
        """Drains nodes in Slurm."""


class NodeContext(IsolationContext, EventLoop, Protocol):
    """What NodeRelations uses of the node's supervisor."""

    @property
    def is_over(self) -> bool:
        """The run is over."""

    @property
    def ingest(self) -> RankMessageIngest:
        """Knows the ranks of the current attempt, and since when it runs."""


class RelationsRole(Protocol):
    """What NodeRelations uses of the node's role."""

    @property
    def is_running(self) -> bool:
        """Ranks are alive, and are to be."""

    def folders(self) -> list[str]:
        """Those whose file systems matter to the run."""


class NodeRelations:
    """What the node's loop calls."""

    def __init__(self, context: NodeContext, role: RelationsRole) -> None:
        self._context, self._role = context, role
        self._feed: NodeFeed | None = None

    @property
    def devices(self) -> list[Device]:
        """Those that ranks of this node are known to train on."""
        return self._feed.devices if self._feed is not None else []

    def power_readings(self) -> list[Reading]:
        """What these draw, for a look."""
        return self._feed.power_readings() if self._feed is not None else []

    def sample(self) -> None:
        """Once a second: tell the engine what is new of the node. Never raises: training does not depend on it."""
        context = self._context
        if not self._role.is_running:
            return
        if self._feed is None and context.clock.now() - context.ingest.started_s < START_S:
            return
        try:
            told = self._step()
        except Exception:
            log.exception("node_not_heard")
            return
        if told is not None:
            context.feed(told)

    def _step(self) -> NodeFindingsReported | None:
        from guardrun.supervisor.node.node_feed import NodeFeed, Using
        from guardrun.supervisor.node.rank_devices import RankSaid
        from guardrun.supervisor.wire.agent_messages import RegisterJob

        context, run = self._context, self._context.run_file
        if self._feed is None:
            job = RegisterJob(
                run_id=run.run_id,
                run_dir=str(context.run_dir),
                launcher_pid=run.launcher_pid,
                launcher_start=run.launcher_start,
                token=run.token,
            )
            self._feed = NodeFeed(run.node, context.clock, job)
        ingest = context.ingest
        pids = {rank.global_rank: rank.pid for rank in ingest.ranks.values()}
        said = RankSaid(ingest.device_variables, ingest.devices, ingest.attempt)
        links = self._links if run.fleet else None
        return self._feed.step(Using(pids=pids, mounts=self._mounts, links=links, said=said))

    def _links(self) -> Iterable[str]:
        from guardrun.supervisor.node.rank_interfaces import links_of_job

        fleet = self._context.run_file.fleet
        return links_of_job(fleet.address, os.environ) if fleet is not None else ()

    def _mounts(self) -> Iterable[str]:
        """Mount points of the folders that the run works in, by their names alone: one that is dead is not touched."""
        mounts = read_mounts()
        found = (mount_of(os.path.abspath(folder), mounts) for folder in self._role.folders())
        return {mount.point for mount in found if mount is not None}

    def isolate(self, action: ac.Isolate) -> None:
        """Have the node quarantined: by its agent, else in the user's own record."""

        def work() -> None:
            from guardrun.supervisor.health.quarantine_rules import IS_OLDER

            try:
                why = self._isolate(action)
            except Exception as error:
                log.exception("not_isolated")
                why = str(error)
            if IS_OLDER in why:  # a person has released the node since
                self._context.drains.skip(action)
            elif drained := self._context.drains.drain(action, "" if why else "under quarantine"):
                self._context.terminal.print_line(drained, "info")
            if why:
                event = NotIsolated(node=action.node, incident=action.incident, why=why)
                self._context.post(lambda: self._context.feed(event))

        try:
            self._context.pool.submit(work)
        except RuntimeError:
            pass  # the daemon is closing

    def _isolate(self, action: ac.Isolate) -> str:
        """Why not; empty where it is done."""
        from guardrun.supervisor.client.agent_client import RefusedError, Unreachable, ask
        from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation
        from guardrun.supervisor.quarantine.record_places import find_places, folders_of
        from guardrun.supervisor.quarantine.records import isolate_node

        run = self._context.run_file
        asked = {
            "cause": action.cause,
            "reason": action.summary,
            "run_id": run.run_id,
            "incident": action.incident,
            "is_automatic": True,
            "evidence": (evidence := {"finding": action.finding} if action.finding else {}),
            "evidence_wall_s": (seen_wall_s := time.time() - self._context.clock.now() + action.evidence_s),
        }
        try:
            return str(ask("isolate", asked).get("why", ""))
        except RefusedError as error:
            return str(error)
        except Unreachable as error:
            log.info("isolated_without_agent", why=str(error))
        places = find_places(*folders_of(run.config, run.cwd), os.environ, action.node)
        isolation = Isolation(
            cause=action.cause,
            who=AUTOMATIC,
            since_wall_s=time.time(),
            evidence_wall_s=seen_wall_s,
            evidence=evidence,
            summary=action.summary,
            run_id=run.run_id,
            incident=action.incident,
        )
        written, refused = isolate_node(places, action.node, isolation, isolation.since_wall_s)
        return " ".join([*([refused] if refused else []), *written.troubles])

    def close(self) -> None:
        """Leave the agent; the job stays registered there unless the run is over."""
        if self._feed is not None:
            self._feed.close(is_over=self._context.is_over)
            self._feed = None


class Released(NamedTuple):
    """A person's word."""

    who: str
    at_wall_s: float
    reason: str


class Releases:
    """Tells each release once."""

    def __init__(self, context: LoopContext, may_be_left_out: Callable[[], bool]) -> None:
        """may_be_left_out: as far as is known here; whoever decides about the node would hear of its release."""
        self._context, self._may_be_left_out = context, may_be_left_out
        self._due_s = time.monotonic() + RELEASE_EVERY_S
        """Never while the record is being read."""
        self._told_wall_s = 0.0

    def sample(self) -> None:
        """Once a second, by the loop."""
        if time.monotonic() < self._due_s or not self._may_be_left_out():
            return
        self._due_s = inf
        self._context.in_background(self._ask, lambda error: self._asked())

    def _ask(self) -> NodeReleased | None:
        released = read_released(self._context.run_file, os.environ)
        self._asked()
        if released is None or released.at_wall_s <= self._told_wall_s:
            return None
        self._told_wall_s = released.at_wall_s
        at_s = self._context.clock.now() - max(0.0, time.time() - released.at_wall_s)
        return NodeReleased(node=self._context.run_file.node, at_s=at_s, who=released.who, reason=released.reason)

    def _asked(self) -> None:
        self._due_s = time.monotonic() + RELEASE_EVERY_S


def read_released(run: RunFile, environ: Mapping[str, str]) -> Released | None:
    """The newest release of this node by a person; None where there is none, or anything still keeps runs from it."""
    from guardrun.supervisor.health.quarantine_rules import MACHINES, counting
    from guardrun.supervisor.quarantine.record_places import find_places, folders_of, may_hold_any, names_here
    from guardrun.supervisor.quarantine.records import read_node

    now_wall_s, folders = time.time(), folders_of(run.config, run.cwd)
    newest: Released | None = None
    for name in dict.fromkeys([run.node, *names_here(environ)]):
        places = find_places(*folders, environ, name)
        if not may_hold_any(places):
            continue
        record, _ = read_node(places, name)
        if counting(record, now_wall_s, os.getuid()):
            return None
        for one in record.releases:
            if one.who not in MACHINES and (newest is None or one.at_wall_s > newest.at_wall_s):
                newest = Released(one.who, one.at_wall_s, one.reason[:MAX_REASON_CHARS])
    return newest
