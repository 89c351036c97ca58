"""A virtual training job: ranks in lockstep, so that whoever stands still has all others wait in a collective."""

from __future__ import annotations

from dataclasses import dataclass, field

from guardrun.supervisor.engine.model.events import ErrorRecord, Rank, RankReport
from guardrun.supervisor.engine.model.looks import PYSPY, GroupLook, ProcessLook, RankLook, ThreadLook
from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.groups import Layout


@dataclass(frozen=True)
class Plan:
    """What the script does when nothing goes wrong. Times in virtual seconds."""

    step_s: float = 0.5
    total_steps: int = 1_000_000
    imports_s: float = 4.0
    init_s: float = 1.0
    first_step_s: float = 2.0
    save_every_s: float = 60.0
    save_s: float = 1.0
    has_hooks: bool = True
    waits: Activity = act.WAITING
    """How ranks wait for the others."""
    layout: Layout | None = None
    """Process groups, which ranks tell of; None: nothing is told but counters."""


@dataclass
class VirtualRank:
    """One rank's process: what it does, and the counters that a look reads."""

    rank: Rank
    activity: Activity
    since_s: float
    """The counters below are booked up to here."""
    began_s: float = 0.0
    """It does what it does since."""
    cpu_s: float = 1.0
    main_cpu_s: float = 1.0
    io_bytes: float = 0.0
    socket_bytes: float = 0.0
    faults: float = 0.0
    child_cpu_s: float = 0.0
    switches: float = 0.0
    main_switches: float = 100.0
    heart_s: float = 0.0
    extra: int = 0
    """Progress of its own: saves, phases."""
    exitcode: int | None = None
    error: ErrorRecord | None = None
    reported: tuple[object, ...] = ()

    def switch(self, activity: Activity, now_s: float) -> None:
        """Begin to do something else; the counters keep what they have."""
        if activity is self.activity:
            return
        self.book(now_s)
        self.activity, self.began_s = activity, now_s

    def book(self, now_s: float) -> None:
        """Bring the counters up to now."""
        doing, dt = self.activity, now_s - self.since_s
        self.main_cpu_s += doing.cpu * dt
        self.cpu_s += (doing.cpu + doing.other_cpu) * dt
        self.io_bytes += doing.io * dt
        self.socket_bytes += doing.sockets * dt
        self.faults += doing.faults * dt
        self.child_cpu_s += (doing.child_cpu or 0.0) * dt
        if doing.state not in "Tt":
            self.switches += 10 * dt
        self.main_switches += doing.wakes * dt
        if doing.has_gil:
            self.heart_s = now_s
        self.since_s = now_s

    def freeze(self, seconds: float) -> None:
        """Time in which it did not run."""
        self.since_s += seconds

    def stack_at(self, at_s: float) -> act.Stack:
        stacks = self.activity.stacks
        return stacks[int(at_s * 10) * 7919 % 1009 % len(stacks)]

    def process(self, at_s: float) -> ProcessLook:
        """As /proc and py-spy would show it."""
        doing = self.activity
        is_quiet = doing.cpu + doing.other_cpu < 0.3
        return ProcessLook(
            pid=self.rank.pid,
            state="R" if doing.state == "S" and doing.cpu > 0.5 else doing.state,
            cpu_s=round(self.cpu_s, 2),
            switches=int(self.switches),
            io_bytes=int(self.io_bytes),
            faults=int(self.faults),
            threads=[
                ThreadLook(
                    tid=self.rank.pid,
                    is_main=True,
                    owns_gil=doing.owns_gil,
                    cpu_s=round(self.main_cpu_s, 2),
                    switches=int(self.main_switches),
                    frames=list(self.stack_at(at_s)),
                )
            ],
            source=PYSPY,
            variety=[] if is_quiet else [list(self.stack_at(at_s + gap)[:6]) for gap in (0.0, 0.15, 0.3)],
        )


GC_EVERY_S, GC_S = 20.0, 0.1
"""A healthy rank's collections: each rank at times of its own."""


def _collected_s(number: int, now_s: float) -> float:
    """How long a rank has been collecting by now, in all."""
    return GC_S * int(now_s / GC_EVERY_S + 0.37 * number)


@dataclass
class Job:
    """One attempt of the script."""

    number: int
    plan: Plan
    ranks: dict[int, VirtualRank]
    now_s: float
    base_step: int = 0
    work_s: float = 0.0
    """Time in which it got on."""
    progress_s: float = 0.0
    progress: int = 0
    own: dict[int, Activity] = field(default_factory=dict)
    """Ranks that do something of their own, for which the others wait."""
    phase: Activity = act.IMPORTING
    poison_step: int | None = None
    wait_began_s: float = 0.0

    @property
    def step(self) -> int:
        """Steps done, those before the resumed checkpoint included."""
        plan = self.plan
        trained_s = self.work_s - plan.imports_s - plan.init_s - plan.first_step_s
        done = self.base_step + (0 if trained_s < 0 else 1 + int(trained_s / plan.step_s + 1e-9))
        return min(done, plan.total_steps)

    def advance(self, now_s: float) -> None:
        """Let time pass until now."""
        if not self.own:
            self.work_s += now_s - self.now_s
            at_poison = self.poison_step is not None and self.step >= self.poison_step
            if at_poison and self.poison_step is not None and self.step > self.poison_step:
                self.work_s -= (self.step - self.poison_step) * self.plan.step_s
            self._note_progress(now_s)
        self.now_s = now_s
        self._retune()

    def _note_progress(self, now_s: float) -> None:
        plan = self.plan
        begun = (self.work_s >= plan.imports_s + plan.init_s) + 3 * (self.step - self.base_step)
        if begun > self.progress:
            self.progress = begun
            past_s = (self.work_s - plan.imports_s - plan.init_s - plan.first_step_s) % plan.step_s
            self.progress_s = max(now_s - past_s, self.progress_s) if begun > 1 else now_s

    def _retune(self) -> None:
        plan = self.plan
        if self.work_s < plan.imports_s:
            phase = act.IMPORTING
        elif self.work_s < plan.imports_s + plan.init_s:
            phase = act.WAITING_IN_INIT
        elif self.step == self.base_step:
            phase = act.COMPILING
        else:
            phase = act.TRAINING
        if self.own:
            phase = plan.waits if phase in (act.TRAINING, act.COMPILING) else act.WAITING_IN_INIT
        if phase is not self.phase:
            self.phase, self.wait_began_s = phase, self.now_s
            for number, rank in self.ranks.items():
                if number not in self.own:
                    rank.switch(phase, self.now_s)

    def begin(self, number: int, doing: Activity, now_s: float) -> None:
        """A rank does something of its own."""
        self.advance(now_s)
        self.own[number] = doing
        self.ranks[number].switch(doing, now_s)
        self._retune()

    def end(self, number: int, now_s: float) -> None:
        """It is in step with the others again."""
        self.advance(now_s)
        if self.own.pop(number, None) is None:
            return
        self.ranks[number].extra += 1
        self._retune()
        self.ranks[number].switch(self.phase, now_s)

    @property
    def culprits(self) -> list[int]:
        """The ranks that would never go on."""
        return sorted(n for n, doing in self.own.items() if doing.is_fault)

    @property
    def living(self) -> list[VirtualRank]:
        return [rank for rank in self.ranks.values() if rank.exitcode is None]

    def freeze(self, seconds: float) -> None:
        self.now_s += seconds
        for rank in self.ranks.values():
            rank.freeze(seconds)

    # As seen from outside ------------------------------------------------------------------------------------

    def report(self, numbers: range, now_s: float) -> list[RankReport]:
        """What changed in these ranks since they were last reported."""
        self.advance(now_s)
        reports = []
        is_waiting = bool(self.own)
        step, progress, progress_s = self.step, self.progress, self.progress_s
        hooks = self.plan.has_hooks
        for number in numbers:
            rank = self.ranks[number]
            if rank.exitcode is not None:
                continue
            doing = rank.activity
            count = progress + rank.extra + (1 if is_waiting and number not in self.own and progress else 0)
            state = doing.state if doing.state in "Tt" else ""
            waits_since_s = rank.began_s if doing.in_collective and now_s - rank.began_s > 2 and hooks else 0.0
            key = (state, count, doing.is_collecting, waits_since_s)
            if key == rank.reported:
                continue
            rank.reported = key
            reports.append(
                RankReport(
                    global_rank=number,
                    state=state or "S",
                    progress=count if hooks else 0,
                    progress_s=progress_s if hooks else 0.0,
                    step=step if hooks and progress > 1 else 0,
                    gc_total_s=_collected_s(number, now_s) if hooks else 0.0,
                    gc_since_s=rank.began_s if doing.is_collecting and hooks else 0.0,
                    waits_since_s=waits_since_s,
                )
            )
        return reports

    def look(self, number: int, at_s: float) -> RankLook:
        rank = self.ranks[number]
        rank.book(at_s)
        doing, hooks = rank.activity, self.plan.has_hooks
        is_held_up = bool(self.own) and number not in self.own
        children = []
        if doing.child_cpu is not None:
            children = [
                ProcessLook(pid=rank.rank.pid + 1_000_000, ppid=rank.rank.pid, cpu_s=round(rank.child_cpu_s, 2))
            ]
        is_past_init = self.work_s >= self.plan.imports_s + self.plan.init_s
        order = 2 * (self.step - self.base_step) + int(is_held_up) if hooks and is_past_init else 0
        in_collective = doing.in_collective if hooks else ""
        return RankLook(
            global_rank=number,
            at_s=at_s,
            process=rank.process(at_s),
            children=children,
            socket_bytes=int(rank.socket_bytes),
            heart_s=rank.heart_s if hooks else 0.0,
            in_collective=in_collective,
            collective_since_s=self.wait_began_s if in_collective else 0.0,
            collectives=order,
            group_seq=order,
            in_init_since_s=self.wait_began_s if doing is act.WAITING_IN_INIT and hooks else 0.0,
            in_data_since_s=rank.began_s if doing.is_waiting_for_data and hooks else 0.0,
            gc_since_s=rank.began_s if doing.is_collecting and hooks else 0.0,
            groups=self._groups(number) if is_past_init and hooks else [],
        )

    def _groups(self, number: int) -> list[GroupLook]:
        if self.plan.layout is None or not self.own:
            return []
        op = next((doing.in_collective for doing in self.own.values() if doing.in_collective), "")
        return self.plan.layout.groups(number, self.step, self.own, op)


def make_ranks(world_size: int, ranks_a_node: int, first_pid: int, now_s: float) -> dict[int, VirtualRank]:
    """New processes for an attempt."""
    ranks = {}
    for number in range(world_size):
        node, local = divmod(number, ranks_a_node)
        rank = Rank(global_rank=number, local_rank=local, pid=first_pid + number, node=f"node-{node}")
        ranks[number] = VirtualRank(rank=rank, activity=act.IMPORTING, since_s=now_s, heart_s=now_s)
    return ranks
