"""Where the ranks' messages arrive: what each says becomes an event, a note, or is counted and dropped."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from guardrun.hooks.wire import messages as msg
from guardrun.hooks.wire.board import MAGIC, Field
from guardrun.hooks.wire.snapshot_index import TOPIC as SNAPSHOTS
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.reading.folder_contents import step_family
from guardrun.supervisor.collect.host.procfs import age_s, read_stat
from guardrun.supervisor.collect.ranks.boards import phase_of, shares_of, step_of
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.wire.control_messages import RankRow, Shares

STEP_SAMPLES = 10

MAX_MODULES = 16
"""Of a message's names."""
MAX_FAILED_SAVES = 8
MAX_WHY_CHARS = 300
MAX_NOTES = 64
MAX_EARLY = 256

HOOKS_BY_S = 15.0
"""A Python rank is hooked within its first tenth of a second; by then one that isn't will not be."""


class RankMessageIngest:
    """What is known of the ranks of the current attempt from their own words."""

    def __init__(
        self,
        clock: EngineClock,
        sampler: Sampler,
        on_saved: Callable[[str, int, float, int, int], None],
        on_loaded: Callable[[msg.CheckpointLoaded], None],
        on_environment: Callable[[msg.EnvironmentReported], None] = lambda message: None,
        *,
        on_snapshots: Callable[[str], None] = lambda text: None,
    ) -> None:
        """on_saved gets path, step, wall time, inode and attempt of each save; what these do must not take time.

        on_snapshots: as RankRole.told_of_snapshots.
        """
        self._clock = clock
        self._sampler = sampler
        self._on_saved = on_saved
        self._on_loaded = on_loaded
        self._on_environment = on_environment
        self._on_snapshots = on_snapshots
        self._decoder = msgspec.msgpack.Decoder(known_type(msg.RankMessage))
        self.attempt = -1
        self.started_s = 0.0
        """Since when they have been listened to."""
        self.began_s = 0.0
        """Since when they have lived: longer, where another supervisor was there before."""
        self.ranks: dict[int, ev.Rank] = {}
        self.hooked: set[int] = set()
        self.last_beat_s: dict[int, float] = {}
        self.group_seqs: dict[int, dict[str, int]] = {}
        self.device_variables: dict[int, dict[str, str]] = {}
        """Per rank of this attempt, what its environment says of the devices that it may use."""
        self.devices: dict[int, msg.DeviceReported] = {}
        """Per rank of this attempt, what it last said of the one that it trains on."""
        self.batches: dict[int, dict[str, Any]] = {}
        """Per rank of this attempt, the batch at which it stood when it was last still."""
        self.failed_hooks: list[str] = []
        self.notes: deque[str] = deque(maxlen=MAX_NOTES)
        """What hooks had to say that is no failure, newest last."""
        self.failed_saves: dict[str, None] = {}
        """Folders that a save of this attempt could not be finished in."""
        self.failed_loads: dict[int, str] = {}
        """Per rank of this attempt, what its last load to raise was reading."""
        self.malformed = 0
        self.strangers = 0
        """Messages of another attempt, or of a rank that is none."""
        self._early: deque[msg.RankMessage] = deque(maxlen=MAX_EARLY)
        """Of the attempt that comes next: ranks may speak before the launcher has said that they were started."""
        self._steps: dict[int, deque[tuple[float, int]]] = {}
        self.checkpoint: ev.Checkpoint | None = None
        self.on_save: Callable[[msg.CheckpointSaved, list[int]], None] | None = None
        """Gets each save of the current attempt, and its ranks, at once; None: nobody wants to hear."""
        self._has_told_missing = False

    def attempt_started(self, attempt: int, ranks: list[ev.Rank], checkpoint: ev.Checkpoint | None) -> None:
        """Listen to these ranks from now on."""
        self.attempt, self.started_s = attempt, self._clock.now()
        ages_s = [age_s(stat) for rank in ranks if (stat := read_stat(rank.pid)) is not None]
        self.began_s = self.started_s - max(ages_s, default=0.0)
        self.ranks = {rank.global_rank: rank for rank in ranks}
        self.checkpoint = checkpoint
        self.hooked, self.last_beat_s, self.group_seqs, self._steps = set(), {}, {}, {}
        self.failed_saves, self.failed_loads, self.batches = {}, {}, {}
        self.device_variables, self.devices = {}, {}
        self._has_told_missing = False

    def knows(self, attempt: int, ranks: list[ev.Rank]) -> bool:
        """Whether it listens to these already. A rank that has ended stays known: what it left is still to be read."""
        return attempt == self.attempt and self.ranks.keys() >= {rank.global_rank for rank in ranks}

    def receive(self, data: bytes) -> list[ev.Event]:
        """Take one frame in. Malformed ones are counted; nothing raises."""
        try:
            message = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.malformed += 1
            return []
        if message.attempt == self.attempt + 1:
            self._early.append(message)
            return []
        return self._accept(message)

    def take_early(self) -> list[ev.Event]:
        """What this attempt's ranks said before it was known that they were started."""
        early = [self._early.popleft() for _ in range(len(self._early)) if self._early[0].attempt <= self.attempt]
        return [event for message in early for event in self._accept(message)]

    def _accept(self, message: msg.RankMessage) -> list[ev.Event]:
        if message.attempt != self.attempt or message.global_rank not in self.ranks:
            self.strangers += 1
            return []
        self.hooked.add(message.global_rank)
        return self._events(message)

    def _events(self, message: msg.RankMessage) -> list[ev.Event]:
        attempt, rank = message.attempt, message.global_rank
        if isinstance(message, msg.Beat):
            self.last_beat_s[rank] = self._clock.at_ns(message.sent_ns)
            self.group_seqs[rank] = message.group_seqs
            if message.data:
                self.batches[rank] = message.data
        elif isinstance(message, msg.Hello):
            self.device_variables[rank] = message.devices
        elif isinstance(message, msg.DeviceReported):
            self.devices[rank] = message
        elif isinstance(message, msg.CheckpointSaved):
            return self._saved(message)
        elif isinstance(message, msg.SaveFailed):
            if len(self.failed_saves) < MAX_FAILED_SAVES:
                self.failed_saves[os.path.dirname(message.path)] = None
        elif isinstance(message, msg.LoadFailed):
            self.failed_loads[rank] = message.path
        elif isinstance(message, msg.CheckpointLoaded):
            return self._loaded(message)
        elif isinstance(message, msg.UncaughtException):
            error = ev.ErrorRecord(
                error=message.error,
                message=message.message,
                traceback=message.traceback,
                frames=message.frames,
                at_s=self._clock.at_ns(message.at_ns),
                data=message.data,
            )
            return [ev.UncaughtExceptionReported(attempt=attempt, global_rank=rank, error=error)]
        elif isinstance(message, msg.GcHeld):
            return [
                ev.GcHeld(
                    attempt=attempt,
                    global_rank=rank,
                    duration_s=message.duration_s,
                    generation=message.generation,
                    collected=message.collected,
                    step=message.step,
                    tracked=message.tracked,
                    lasted_s=message.lasted_s,
                )
            ]
        elif isinstance(message, msg.BatchesNamed):
            named = [ev.NamedBatch(*batch) for batch in message.batches]
            return [
                ev.BatchesNamed(
                    attempt=attempt,
                    global_rank=rank,
                    step=message.step,
                    loader=message.loader,
                    why=message.why,
                    ahead=message.ahead,
                    batches=named,
                    origin=message.origin,
                )
            ]
        elif isinstance(message, msg.ModulesDied):
            return [
                ev.ModulesDied(
                    attempt=attempt,
                    global_rank=rank,
                    step=message.step,
                    since=message.since,
                    what=message.what,
                    modules=message.modules[:MAX_MODULES],
                    count=message.count,
                    looks=message.looks,
                    every=message.every,
                    alive=message.alive,
                )
            ]
        elif isinstance(message, msg.GradientsGrew):
            groups = [ev.GroupNorm(*group) for group in message.groups[:MAX_MODULES]]
            count = message.count
            return [ev.GradientsGrew(attempt=attempt, global_rank=rank, step=message.step, groups=groups, count=count)]
        elif isinstance(message, msg.BatchesLeftOut):
            left_out = ev.BatchesLeftOut(
                attempt=attempt,
                global_rank=rank,
                order=message.order,
                step=message.step,
                batches=message.batches,
            )
            return [left_out]
        elif isinstance(message, msg.DataReplayed):
            return [
                ev.DataReplayed(
                    attempt=attempt,
                    global_rank=rank,
                    status=message.status,
                    loader=message.loader,
                    epoch=message.epoch,
                    batches=message.batches,
                    samples=message.samples,
                    repeated=message.repeated,
                    left_out=message.left_out,
                    passed_over=message.passed_over,
                    why=message.why[:MAX_WHY_CHARS],
                )
            ]
        elif isinstance(message, msg.Ended):
            return [ev.RankEnded(attempt=attempt, global_rank=rank)]
        elif isinstance(message, msg.EnvironmentReported):
            self._on_environment(message)
        elif isinstance(message, msg.HookFailed):
            self.failed_hooks.append(f"rank {rank}: {message.hook}: {message.error}"[:500])
        elif isinstance(message, msg.Noted) and message.topic == SNAPSHOTS and not message.text:
            self._on_snapshots("")
        elif isinstance(message, msg.Noted):
            self.notes.append(f"rank {rank}: {message.topic}: {message.text}"[:500])
            log.info("noted", global_rank=rank, topic=message.topic, text=message.text)
            if message.topic == SNAPSHOTS:
                self._on_snapshots(f"rank {rank}: {message.text}"[:500])
        return []

    def _saved(self, message: msg.CheckpointSaved) -> list[ev.Event]:
        wall_s = time.time() - (time.monotonic_ns() - message.ended_ns) / 1e9
        if self.on_save is not None:
            self.on_save(message, sorted(self.ranks))
        self._on_saved(message.path, message.step, wall_s, message.inode, message.attempt)
        family, named_step = step_family(message.path)
        return [
            ev.CheckpointSaved(
                attempt=message.attempt,
                global_rank=message.global_rank,
                path=message.path,
                step=message.step,
                duration_s=(message.ended_ns - message.began_ns) / 1e9,
                inode=message.inode,
                family=family,
                named_step=named_step,
            )
        ]

    def _loaded(self, message: msg.CheckpointLoaded) -> list[ev.Event]:
        """Steps count from the checkpoint that the rank resumes from: a load before its first step."""
        if not message.has_stepped:
            self._on_loaded(message)
        return []

    def step_time_s(self, rank: int) -> float | None:
        """Seconds a step over the last samples; None before two of them differ."""
        samples = self._steps.get(rank)
        if not samples or samples[-1][1] <= samples[0][1]:
            return None
        return round((samples[-1][0] - samples[0][0]) / (samples[-1][1] - samples[0][1]), 4)

    def sampled(self, reports: list[ev.RankReport]) -> None:
        """Note the steps of a sample, for step times."""
        now_s = self._clock.now()
        for report in reports:
            samples = self._steps.setdefault(report.global_rank, deque(maxlen=STEP_SAMPLES))
            if not samples or report.step != samples[-1][1]:
                samples.append((now_s, report.step))

    def set_base(self, attempt: int, rank: int, step: int) -> None:
        """Let a rank's steps count from there."""
        reader = self._sampler.boards.get(rank)
        if reader is not None and attempt == self.attempt:
            reader.write(Field.STEP_BASE, step)

    def missing_hooks(self) -> ev.HooksMissing | None:
        """The ranks that should have been heard of by now; once an attempt."""
        if self._has_told_missing or not self.ranks or self._clock.now() - self.started_s < HOOKS_BY_S:
            return None
        self._has_told_missing = True
        missing = []
        for number in sorted(set(self.ranks) - self.hooked):
            reader = self._sampler.boards.get(number)
            words = reader.read() if reader else None
            # One that ended at once may have had no time to say so.
            if words is None or not (words[Field.HEART_NS] or words[Field.MILESTONES]):
                missing.append(number)
        if not missing:
            return None
        reason = "the program is not Python, or was started with -I, -E or another environment"
        return ev.HooksMissing(attempt=self.attempt, global_ranks=missing, reason=reason)

    def rows(self) -> list[RankRow]:
        """What each rank's board shows right now, by rank."""
        now_s = self._clock.now()
        return [self._row(number, now_s) for number in sorted(self.ranks)]

    def _row(self, number: int, now_s: float) -> RankRow:
        reader = self._sampler.boards.get(number)
        words = reader.read() if reader else None
        if words is None:
            return RankRow(global_rank=number, step_time_s=self.step_time_s(number))

        def ago_s(ns: int) -> float | None:
            return round(now_s - self._clock.at_ns(ns), 1) if ns else None

        data, collecting = shares_of(words, now_s - self.began_s, time.monotonic_ns())
        return RankRow(
            global_rank=number,
            has_hooks=words[Field.MAGIC] == MAGIC,
            step=step_of(words),
            step_time_s=self.step_time_s(number),
            phase=phase_of(words),
            beat_age_s=ago_s(words[Field.HEART_NS]),
            progress_age_s=ago_s(words[Field.PROGRESS_NS]),
            data_share=data if data >= 0 else None,
            gc_share=collecting if collecting >= 0 else None,
        )

    def shares(self) -> Shares:
        """Of the attempt's time up to its last progress, per rank: those that have no hooks are missing."""
        ranks: Shares = {}
        for number, reader in sorted(self._sampler.boards.items()):
            words = reader.read()
            if words is None:
                continue
            progress_ns = words[Field.PROGRESS_NS]
            data, collecting = shares_of(words, self._clock.at_ns(progress_ns) - self.began_s, progress_ns)
            if data >= 0:
                ranks[number] = (data, collecting)
        return ranks
