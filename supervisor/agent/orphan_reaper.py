"""Dead jobs: their launchers' ends are waited for, then what they left is found, ended and told."""

from __future__ import annotations

import selectors
from typing import Protocol

from guardrun.launcher.base.processes import ProcessHandle
from guardrun.supervisor.agent.agent_context import AgentLoop, AgentState
from guardrun.supervisor.agent.ingest import Ingest
from guardrun.supervisor.agent.jobs import Job, Left, open_launcher, sweep
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.log import log
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout, parse_holders

CAUSE = "leftover"


class ReaperContext(AgentState, AgentLoop, Protocol):
    """What the reaper uses of the agent."""

    @property
    def selector(self) -> selectors.BaseSelector:
        """Waits for the launchers' ends; a descriptor's data is its handler, given the mask and CLOCK_MONOTONIC."""

    @property
    def broom(self) -> BackgroundWriter:
        """Ends processes, which may take its time."""

    @property
    def ingest(self) -> Ingest:
        """Takes a finding."""


class OrphanReaper:
    """Belongs to the agent's loop; the sweeping itself is on the broom's thread."""

    def __init__(self, agent: ReaperContext) -> None:
        self._agent = agent
        self._watched: dict[tuple[int, int], ProcessHandle] = {}
        """By (pid, start) of a launcher."""
        self._swept: set[int] = set()
        """id() of the jobs that are being swept."""

    def start(self) -> None:
        """Watch the launchers of the jobs that an agent before this one knew."""
        for job in self._agent.jobs.living():
            self.watch(job)

    def watch(self, job: Job) -> None:
        """Be told when the job's launcher ends; it may have ended already."""
        key = (job.launcher_pid, job.launcher_start)
        if key in self._watched:
            return
        try:
            launcher = open_launcher(job)
        except ProcessLookupError:
            self._agent.jobs.launcher_gone(job, self._agent.now_s)
            return
        if launcher.fileno is None:
            launcher.close()  # the next chores find out by looking
            return
        self._watched[key] = launcher
        fileno, selector = launcher.fileno, self._agent.selector
        selector.register(fileno, selectors.EVENT_READ, lambda mask, now_s: self._ended(key, now_s))

    def look(self, now_s: float) -> None:
        """Sweep what is due."""
        for job in self._agent.jobs.living():
            self.watch(job)
        for job in self._agent.jobs.due(now_s, self._agent.options.patience_s):
            if id(job) not in self._swept:
                self._start_sweep(job)

    def close(self) -> None:
        """Watch no launcher any more; a sweep that is under way goes on."""
        for launcher in self._watched.values():
            launcher.close()
        self._watched.clear()

    def _ended(self, key: tuple[int, int], now_s: float) -> None:
        launcher = self._watched.pop(key)
        assert launcher.fileno is not None
        self._agent.selector.unregister(launcher.fileno)
        launcher.close()
        for job in self._agent.jobs.living():
            if (job.launcher_pid, job.launcher_start) == key:
                log.info("launcher_ended", run_id=job.run_id)
                self._agent.jobs.launcher_gone(job, now_s)

    def _start_sweep(self, job: Job) -> None:
        tokens = [living.token for living in self._agent.jobs.living()]
        may_end = self._agent.config.policy.act
        if self._agent.broom.put(lambda: self._sweep(job, tokens, may_end)):
            self._swept.add(id(job))

    def _sweep(self, job: Job, tokens: list[str], may_end: bool) -> None:
        found: list[Left] = []
        left: list[Left] = []
        try:
            found, left = sweep(job, tokens, may_end)
        finally:
            self._agent.post(self._done, job, found, left, may_end)

    def _done(self, job: Job, found: list[Left], left: list[Left], may_end: bool) -> None:
        self._swept.discard(id(job))
        agent, subject, had = self._agent, f"job:{job.run_id}", bool(job.left)
        holds = find_held(list(agent.latest.readouts.values()), {one.pid for one in left})
        agent.jobs.swept(job, left, holds, agent.now_s)
        gone = [one for one in found if one not in left]
        if gone:
            text = f"Run {job.run_id} had left {_count(gone)} behind; ended: {_names(gone)}."
            log.warning("leftovers_ended", summary=text, run_id=job.run_id, uid=job.uid)
            agent.note("job", subject, "leftovers_ended", text, {"pids": [one.pid for one in gone]}, job.uid)
            agent.counters["swept"] += len(gone)
        if left or had:
            agent.ingest.find(_finding(job, left, holds, may_end, agent.now_s))
        if not left:
            agent.note("job", subject, "over", "nothing of it is left", uid=job.uid)


def find_held(readouts: list[Readout], pids: set[int]) -> list[str]:
    """Devices whose memory some of these processes hold, as the sensors last saw it."""
    held = []
    for readout in readouts:
        for sample in readout.samples:
            if sample.name != "holders" or not isinstance(sample.value, str):
                continue
            try:
                holders = parse_holders(sample.value)
            except ValueError:
                continue
            if pids & set(holders):
                held.append(sample.subject)
    return sorted(set(held))


def _finding(job: Job, left: list[Left], holds: list[str], may_end: bool, now_s: float) -> Finding:
    what = f"Run {job.run_id} is over, and {_count(left)} of it would not end" if may_end else ""
    what = what or f"Run {job.run_id} is over, and has left {_count(left)} behind"
    memory = f", holding memory of {', '.join(holds)}" if holds else ""
    summary = f"{what}{memory}: {_names(left)}." if left else f"Nothing of run {job.run_id} is left any more."
    return Finding(
        id=f"{CAUSE}/job:{job.run_id}",
        cause=CAUSE,
        subject=f"job:{job.run_id}",
        since_s=job.ended_s if job.ended_s is not None else now_s,
        told_s=now_s,
        summary=summary,
        evidence={"pids": [one.pid for one in left], "states": [one.state for one in left], "holds": holds},
        advice="A process in state D waits for a device or a file system: look at what the kernel log says of it."
        if any(one.state == "D" for one in left)
        else "",
        is_over=not left,
    )


def _count(left: list[Left]) -> str:
    return f"{len(left)} process" + ("" if len(left) == 1 else "es")


def _names(left: list[Left]) -> str:
    names = [f"{one.pid} ({one.command[:60]})" for one in left[:4]]
    return ", ".join(names) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
