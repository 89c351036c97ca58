"""The rank that this process is: its board, its way to the supervisor, what it has to send, what the hooks share.

`active` is None in every process that is no rank, and becomes None again in the forked children of one: they write to
a private page instead of the board, and send nothing.
"""

from __future__ import annotations

import os
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, get_ident
from time import monotonic_ns

from guardrun.hooks.wire.board import PHASES, SIZE_BYTES, Field, Milestone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.calls.collective_calls import CallsPage
    from guardrun.hooks.rank.batch_orders import Order
    from guardrun.hooks.rank.parts import (
        BatchRecord,
        BatchSkipper,
        BatchTrail,
        CollectionPolicy,
        DeviceObserver,
        DeviceTimer,
        Examination,
        ForkObserver,
        MemoryObserver,
        MetricsObserver,
        NonfiniteOrigin,
        OptimizerGuard,
        ReplayObserver,
        ReplicaChecker,
        SampleObserver,
        SaveGate,
        Snapshots,
        StepCounter,
        StepObserver,
    )
    from guardrun.hooks.rank.sharded_state import ShardedModules
    from guardrun.hooks.wire.board import Board


# Outbox -------------------------------------------------------------------------------------------------------------
# What is to be sent: filled by hooks anywhere, emptied by the hooks' thread.
#
# Hooks run in the middle of training, in the collector's callbacks, in signal handlers: SimpleQueue is the one queue
# whose put() may be interrupted by itself. It never waits; what doesn't fit is dropped and counted.


MAX_WAITING = 1000

FLUSH = "flush"
WAKE = "wake"
"""Nothing to send: the next beat is due now."""
STOP = "stop"

Item = tuple[str, dict[str, object]]


class Outbox:
    """A bounded queue of (kind, fields)."""

    def __init__(self, is_open: bool = True) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.is_open = is_open
        self.dropped = 0
        """Messages that could not be sent so far, whoever had to drop them."""

    def put(self, kind: str, fields: dict[str, object]) -> None:
        """Queue an item; drops it where the queue is full or closed."""
        if not self.is_open:
            return
        if self._queue.qsize() >= MAX_WAITING:
            self.dropped += 1
            return
        self._queue.put((kind, fields))

    def get(self, timeout_s: float) -> Item | None:
        """Take the next item; None when there is none for timeout_s."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None

    def wait_for(self, kind: str, timeout_s: float) -> bool:
        """Send a FLUSH or a STOP after all else and wait, at most timeout_s, until it was done."""
        if not self.is_open:
            return False
        done: SimpleQueue[bool] = SimpleQueue()
        self._queue.put((kind, {"done": done}))
        try:
            return done.get(timeout=timeout_s)
        except Empty:
            return False


# Rank ---------------------------------------------------------------------------------------------------------------


active: Rank | None = None

# Plain integers: indexing with an enum's member costs twice as much.
_PROGRESS_NS = int(Field.PROGRESS_NS)
_PULSES = int(Field.PULSES)
_STEP = int(Field.STEP)
_STEP_BASE = int(Field.STEP_BASE)
_MILESTONES = int(Field.MILESTONES)
_API_NUMBERS = int(Milestone.API_NUMBERS)
_STEP_NS = int(Field.STEP_NS)
_CHECKS = int(Field.CHECKS)
_CHECKPOINT_AT = int(Field.CHECKPOINT_AT)
_CHECKPOINT_ACK = int(Field.CHECKPOINT_ACK)
_API_CALLS = int(Field.API_CALLS)

MAX_ERROR_CHARS = 500


def private_words() -> memoryview:
    """A board's words that nobody reads."""
    return memoryview(bytearray(SIZE_BYTES)).cast("q")


class Pace:
    """Where training stands: what each backward() and each step touch, close together."""

    __slots__ = ("backwards", "began", "pulses", "quiet_until")

    def __init__(self) -> None:
        self.pulses = 0
        """Steps of all optimizers, as the board counts."""
        self.quiet_until = 0
        """Steps that begin at a lower count of pulses are only counted (hooks/patches/optimizer_steps.py)."""
        self.backwards = 0
        """Calls of backward()."""
        self.began = -1
        """The count of pulses at the last of them, of the step under way; -1: there was none."""


class Rank:
    """One object a process. Hooks read `words` anew at each call, since a fork swaps it."""

    # What is set once something is imported, or wanted.
    gc_policy: CollectionPolicy | None = None
    """None: the collector is the script's own."""
    batches: BatchRecord | None = None
    """None until torch's data loaders are imported."""
    trail: BatchTrail | None = None
    """Likewise."""
    skips: BatchSkipper | None = None
    """None unless batches are to be left out, and until torch's data loaders are imported."""
    replay: ReplayObserver | None = None
    """None unless the attempt resumes from a checkpoint of which it is known what had been handed out by then."""
    origin: NonfiniteOrigin | None = None
    """None unless the user wants it, until torch is imported, and once it has failed."""
    orders: list[Order] | None = None
    """What is to be left out; None: not read yet."""
    spent: StepObserver | None = None
    """None until torch's optimizers are imported."""
    steps: StepCounter | None = None
    """Likewise."""
    devices: DeviceObserver | None = None
    """None until torch.cuda or the optimizers are imported."""
    device_timer: DeviceTimer | None = None
    """None unless the user wants it, and until torch.distributed is imported."""
    metrics: MetricsObserver | None = None
    """None until torch is imported, and once it has failed."""
    guard: OptimizerGuard | None = None
    """None unless the user wants it, until torch is imported, and once it has failed."""
    checksums: ReplicaChecker | None = None
    """None until torch's DistributedDataParallel is imported, where it is not wanted, and once it has failed."""
    samples: SampleObserver | None = None
    """None until torch's data loaders are imported, of a rank that is alone, and once it has failed or knows enough."""
    memory: MemoryObserver | None = None
    """None until torch's optimizers are imported, and where no allocator tells what it holds."""
    examination: Examination | None = None
    """None unless a person has asked for one, and it goes on."""
    sharded: ShardedModules | None = None
    """None before the script has called fully_shard()."""
    frozen: SaveGate | None = None
    """Where the thread that trains stays once its collective is done; nearly always None."""
    in_time: SaveGate | None = None
    """None before the script has called save_with()."""
    snapshots: Snapshots | None = None
    """None before the script has called snapshot()."""
    forks: ForkObserver | None = None
    """None before torch's profiler was used because a person asked for it."""
    has_captured = False
    """A device graph has been captured."""
    passed_on: BaseException | None = None
    """What a handler of the script's raised for a signal that came in the middle of a hook: it goes to the script."""
    code_ident = 0
    """The thread that runs a person's code right now: what it does is not training's."""
    saving_ident = 0
    """The thread in which the script's function saves on this rank alone."""

    def __init__(self, settings: dict[str, object], attempt: int) -> None:
        """Read who this rank is from the environment. Raises KeyError or ValueError where that doesn't tell."""
        self.settings = settings
        self.attempt = attempt
        self.global_rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.group_rank = int(os.environ.get("GROUP_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.sockets = str(settings["sockets"])
        self.pid = os.getpid()
        self.board: Board | None = None
        self.lock_fd = -1
        """Holds the lock that makes this process the board's only writer."""
        self._lock_identity = (0, 0)
        self.recorder_fd = -1
        self._recorder_identity = (0, 0)
        self.words = private_words()
        self.calls: CallsPage | None = None
        """Where collectives are recorded, once torch.distributed has been imported."""
        self.outbox = Outbox()
        self.owner_ident = get_ident()
        """The thread that trains. What others wait for says nothing about whether training goes on."""
        self.held: tuple[str, ...] = ()
        """Checkpoints that are not to be written over before it is seen that the script resumes."""
        self.aside: set[str] = set()
        """Process groups, by name, that only other threads than the one that trains have been seen to use; …"""
        self.shared: set[str] = set()
        """… and those of them that it turned out to use as well."""
        self.counts_itself = False
        """The script calls step(): optimizers don't count."""
        self.pace = Pace()
        self.phase = PHASES[0]
        self.import_lock = allocate_lock()
        """Held by the hooks' thread while it imports, so that nobody forks in the middle of it."""
        self.is_ended = False
        self._milestone_lock = allocate_lock()
        self._failed: set[str] = set()
        self._has_spoken = False

    def send(self, kind: str, **fields: object) -> None:
        """Hand a message (a struct's name of hooks.messages, and its fields) to the hooks' thread."""
        self.outbox.put(kind, fields)

    def fail(self, hook: str, error: BaseException) -> None:
        """A hook could not do its work: say so, once for each hook."""
        if hook in self._failed:
            return
        self._failed.add(hook)
        self.send("HookFailed", hook=hook, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])

    def note(self, topic: str, text: str) -> None:
        """Tell a person something that is no failure."""
        self.send("Noted", topic=topic, text=text[:MAX_ERROR_CHARS])

    def warn_once(self, text: str) -> None:
        """The last resort where no message can be sent: one line on stderr, once."""
        if self._has_spoken or self is not active:
            return
        self._has_spoken = True
        try:
            os.write(2, f"guardrun: hooks: {text} (rank {self.global_rank}; training goes on)\n".encode())
        except OSError:  # A closed stderr: there is nobody to tell.
            pass

    def mark(self, milestone: Milestone, *, is_set: bool = True) -> None:
        """Set a milestone's bit, or take it back; threads may meet here."""
        with self._milestone_lock:
            others = self.words[Field.MILESTONES] & ~int(milestone)
            self.words[Field.MILESTONES] = others | (int(milestone) if is_set else 0)

    def has_reached(self, milestone: Milestone) -> bool:
        """Say whether the bit is set."""
        return bool(self.words[Field.MILESTONES] & int(milestone))

    def is_owner(self) -> bool:
        """Say whether the thread that asks is the one that trains."""
        return get_ident() == self.owner_ident

    def step_now(self) -> int:
        """Steps done, the resumed base included."""
        return int(self.words[_STEP]) + (0 if self.has_reached(Milestone.API_NUMBERS) else int(self.words[_STEP_BASE]))

    def count_step(self, n: int | None, now_ns: int) -> None:
        """The script's own step(). With n, the number is absolute: no base is added to it."""
        words = self.words
        if not self.counts_itself:
            self.counts_itself = True
            self.pace.quiet_until = 0
            words[_STEP] = 0
            self.mark(Milestone.API_STEPS)
            self.mark(Milestone.FIRST_PROGRESS)
        if n is None:
            words[_STEP] += 1
        else:
            if not words[_MILESTONES] & _API_NUMBERS:
                self.mark(Milestone.API_NUMBERS)  # before the number: whoever reads now must not add the base to it
            words[_STEP] = n
        words[_STEP_NS] = now_ns
        words[_PROGRESS_NS] = now_ns
        words[_API_CALLS] += 1
        if self.metrics is not None:
            self.metrics.on_said_step()
        if self.spent is not None:
            self.spent.on_step(now_ns)
        if self.gc_policy is not None:
            self.gc_policy.on_step(now_ns)
        if self.in_time is not None:
            self.in_time.on_said_step()

    def enter_phase(self, name: str, now_ns: int) -> None:
        """Show a phase on the board; a name that the board doesn't know goes into a file beside it."""
        self.phase = name
        words = self.words
        if name in PHASES:
            words[Field.PHASE] = PHASES.index(name)
        else:
            words[Field.PHASE] = PHASES.index("other")
            self._write_phase(name)
        words[Field.PHASE_SINCE_NS] = now_ns
        words[Field.PROGRESS_NS] = now_ns
        words[Field.API_CALLS] += 1

    def _write_phase(self, name: str) -> None:
        path = os.path.join(self.sockets, f"phase-{self.attempt}-{self.global_rank}")
        try:
            with open(f"{path}.new", "w", encoding="utf-8", errors="replace") as file:
                file.write(str(name)[:200])
            os.replace(f"{path}.new", path)
        except OSError as error:
            self.fail("phase", error)

    def checkpoint_is_due(self) -> bool:
        """Count a call of should_checkpoint() and answer it; yes once for each request."""
        words = self.words
        checks = words[_CHECKS] + 1
        words[_CHECKS] = checks
        at = words[_CHECKPOINT_AT]
        if at == 0 or at == words[_CHECKPOINT_ACK] or checks < at:
            return False
        words[_CHECKPOINT_ACK] = at
        words[_PROGRESS_NS] = monotonic_ns()
        return True

    def tell_loaded(self, path: str, reader: str) -> None:
        """A checkpoint, or another file, has been loaded."""
        has_stepped = bool(self.words[_PULSES] or self.words[_STEP])
        self.send("CheckpointLoaded", path=path, reader=reader, has_stepped=has_stepped)

    def note_resumed(self) -> None:
        """The script has taken the checkpoint that guardrun chose."""
        self.mark(Milestone.RESUMED)

    def become_child(self) -> None:
        """After a fork: this process is no rank. Touch nothing that it shares with one."""
        global active
        active = None
        if self.gc_policy is not None:
            self.gc_policy.give_back()
        if self.device_timer is not None:
            self.device_timer.stop()
        if self.examination is not None:
            self.examination.end()
        self.examination = None
        if self.forks is not None:
            self.forks.in_child()
        if self.snapshots is not None:
            self.snapshots.in_child()
        self.words = private_words()
        self.calls = self.metrics = self.checksums = self.guard = self.memory = None
        self.samples = self.trail = self.skips = self.replay = self.origin = self.in_time = self.snapshots = None
        self.frozen = None
        self.held = ()  # nobody could tell it that it may save
        self.outbox = Outbox(is_open=False)
        self.import_lock = allocate_lock()
        self._milestone_lock = allocate_lock()
        self._close(self.lock_fd, self._lock_identity)
        self._close(self.recorder_fd, self._recorder_identity)
        self.lock_fd = self.recorder_fd = -1

    def hold_lock(self, fd: int) -> None:
        """Keep the board's lock: in this process, and in no child of it."""
        self.lock_fd = fd
        self._lock_identity = _identity(fd)

    def hold_recorder(self, fd: int) -> None:
        """Know the descriptor on which torch's worker server listens: a child of this process is to close it."""
        self.recorder_fd = fd
        self._recorder_identity = _identity(fd)

    def _close(self, fd: int, identity: tuple[int, int]) -> None:
        """Close a descriptor of ours: a script that closed all may have got its number for a file of its own."""
        try:
            if fd >= 0 and _identity(fd) == identity:
                os.close(fd)
        except OSError:
            pass


def _identity(fd: int) -> tuple[int, int]:
    at = os.fstat(fd)
    return at.st_dev, at.st_ino
