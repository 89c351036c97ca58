"""The hooks' own thread: once a second it shows on the board that the interpreter runs, and sends a beat.

It is started by `_thread`, so that the script's `threading.enumerate()` doesn't show it, and blocks all signals, so
that they reach the thread for which they are meant. It ends before the interpreter finalises: a daemon thread that is
inside of torch's C++ at that moment aborts the process.

msgspec (20 ms) is imported here, shortly after the start, and never on the script's own time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import start_new_thread
from time import monotonic_ns

from guardrun.hooks.beat import stack_dumps
from guardrun.hooks.rank.process import OWN_THREADS
from guardrun.hooks.rank.rank import FLUSH, STOP, WAKE, Item
from guardrun.hooks.wire.board import Field, Milestone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.examine.examiner import Examiner
    from guardrun.hooks.rank.rank import Rank

BEAT_NS = 1_000_000_000
STILL_NS = 3_000_000_000
"""A rank that has advanced no further for so long tells once at which batch it is."""
FIRST_BEAT_NS = 250_000_000
"""After the start: a script that ends sooner never pays for the imports."""
MAX_GROUPS = 256
"""Process groups named in a beat."""

# A fault of the thread itself must still kill the process as it would have.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


def start(rank: Rank) -> None:
    """Start the thread."""
    # Whoever imports threading first is its main thread (before Python 3.13): that must not be ours.
    assert threading.main_thread() is not None
    OWN_THREADS["heart"] = 1
    # Blocked before it is there, and inherited: until it has the GIL, which a script may hold for long, it would take
    # signals that are to end what the main thread waits for.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        start_new_thread(Heartbeat(rank).run, ())
    except BaseException:
        rank.words[Field.HEART_NS] = 0  # as of one that has ended: nobody waits for it, nor takes it for one held up
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Heartbeat:
    """Writes the board's slow fields and empties the outbox."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._sender: Any = None
        """A hooks.sender.Sender; False once it is certain that there is none."""
        self._saved_path = list(sys.path)
        self._group_seq = 0
        self._frozen: dict[str, int] = {}
        """Per group that only other threads use: its count when training was first seen to advance without it."""
        self._still_ns = 0
        """Its progress when it told its batch."""
        self._has_raised = False
        """Timeouts of groups."""
        self._has_told = rank.global_rank != 0
        """What it computes with."""
        self._environ = dict(os.environ) if rank.settings.get("warm") and "LOCAL_RANK" in os.environ else None
        """As it was at the start, until a warm process has been told what this rank imports; None: none is to be."""
        self._examiner: Examiner | None = None
        """None until a person asks for something."""

    def run(self) -> None:
        """Beat until told to stop; whatever fails ends the beats, and nothing else."""
        try:
            self._rank.words[Field.HEART_TID] = threading.get_native_id()
            self._loop()
        except Exception as error:
            self._rank.warn_once(f"heart: {type(error).__name__}: {error}")
        finally:
            if self._examiner is not None:
                self._examiner.stop()
            # A beat that is old, in a process that lives, says that the GIL is held. This one has ended.
            self._rank.words[Field.HEART_NS] = 0

    def _loop(self) -> None:
        rank = self._rank
        due_ns = monotonic_ns() + FIRST_BEAT_NS
        while True:
            item = rank.outbox.get((due_ns - monotonic_ns()) / 1e9)
            if item is not None:
                if item[0] == WAKE:
                    due_ns = monotonic_ns()
                elif not self._handle(item):
                    return
                continue
            now_ns = monotonic_ns()
            due_ns = max(due_ns + BEAT_NS, now_ns)
            self._beat(now_ns)

    def _handle(self, item: Item) -> bool:
        """Do what an item asks; False when it asks to stop."""
        kind, fields = item
        if kind == STOP:
            if self._examiner is not None:
                self._examiner.stop()
            if self._sender:
                self._sender.close()
            self._rank.outbox.is_open = False
        elif kind == "Ended" and self._sender is None:
            pass  # The board says it too; a script this short shall not pay for the imports.
        elif kind != FLUSH:
            self._send(kind, fields)
            if kind == "Ended":
                self._tell_environment()
        done: Any = fields.get("done")
        if done is not None:
            done.put(True)
        return kind != STOP

    def _beat(self, now_ns: int) -> None:
        words = self._rank.words
        words[Field.HEART_NS] = now_ns
        if (asked := words[Field.STACKS_ASKED]) != words[Field.STACKS_GIVEN]:
            self._give_stacks()
            words[Field.STACKS_GIVEN] = asked
        if words[Field.SERVER_ASKED] != words[Field.SERVER_GIVEN] and words[Field.GROUPS]:
            self._start_server()
        if words[Field.TIMEOUT_RAISED] and not self._has_raised and words[Field.GROUPS]:
            self._raise_timeouts()
        if self._rank.gc_policy is not None:
            self._rank.gc_policy.on_beat(now_ns)
        if self._examiner is not None or words[Field.EXAMINE_ASKED]:
            self._examine(now_ns)
        seqs = {} if self._rank.is_ended else read_group_seqs()
        total = self._total(seqs)
        words[Field.JOINT_SEQ] = sum(seqs.get(name, 0) for name in find_joint_groups()) if seqs else 0
        if total > self._group_seq and words[Field.PROGRESS_NS] < now_ns:
            words[Field.PROGRESS_NS] = now_ns
        self._group_seq = total
        words[Field.GROUP_SEQ] = total
        if self._rank.calls is not None:
            self._rank.calls.note_seqs(seqs)
        if words[Field.COLLECTIVES] and not words[Field.INIT_SINCE_NS]:
            self._rank.mark(Milestone.FIRST_PROGRESS)
        beat = {"sent_ns": now_ns, "group_seqs": seqs, "dropped": self._rank.outbox.dropped}
        batches, progress_ns = self._rank.batches, words[Field.PROGRESS_NS]
        if batches is not None and now_ns - progress_ns > STILL_NS and progress_ns != self._still_ns:
            self._still_ns = progress_ns
            beat["data"] = batches.describe_still()
        self._send("Beat", beat)
        if words[Field.STEP]:
            self._tell_environment()
            if self._environ is not None:
                self._report_imports(self._environ)

    def _report_imports(self, before: dict[str, str]) -> None:
        self._environ = None
        try:
            with self._rank.import_lock:
                from guardrun.hooks.beat import imports_report

            imports_report.write(self._rank, before)
        except Exception as error:
            self._rank.fail("imports", error)

    def _tell_environment(self) -> None:
        """Once, by one rank, when there has been a step: by then all is imported and set.

        A script that ends before the next beat tells it with its last words, if there is time for that.
        """
        if self._has_told or not self._rank.words[Field.STEP]:
            return
        self._has_told = True
        try:
            with self._rank.import_lock:
                from guardrun.hooks.beat.environment_report import describe

            devices = self._rank.devices
            self._send("EnvironmentReported", describe(os.environ, devices.model if devices is not None else ""))
        except Exception as error:
            self._rank.fail("environment", error)

    def _give_stacks(self) -> None:
        try:
            stack_dumps.give(self._rank)
        except Exception as error:
            self._rank.fail("stacks", error)

    def _examine(self, now_ns: int) -> None:
        """A person has asked for something, now or before."""
        try:
            if self._examiner is None:
                with self._rank.import_lock:
                    from guardrun.hooks.examine.examiner import Examiner

                self._examiner = Examiner(self._rank)
            self._examiner.on_beat(now_ns)
        except Exception as error:
            self._rank.fail("examination", error)

    def _start_server(self) -> None:
        """Somebody asks for torch's worker server; there are process groups."""
        rank = self._rank
        if rank.calls is None or rank.is_ended:
            return
        asked = rank.words[Field.SERVER_ASKED]
        from guardrun.hooks.patches import flight_recorder  # imported with torch's groups, and by nobody else

        flight_recorder.start(rank, rank.calls)
        rank.words[Field.SERVER_GIVEN] = asked

    def _raise_timeouts(self) -> None:
        """Of the groups that there are; those that are made later see the board."""
        from guardrun.hooks.patches import timeouts  # as above

        self._has_raised = True
        timeouts.raise_timeouts(self._rank)

    def _total(self, seqs: dict[str, int]) -> int:
        """Collectives so far that say that training advances: a check of health goes on while it stands still."""
        words, aside = self._rank.words, self._rank.aside
        self._frozen = {name: count for name, count in self._frozen.items() if name in aside}
        if aside and (words[Field.PULSES] or words[Field.BATCHES] or words[Field.API_CALLS]):
            for name in aside & seqs.keys():
                self._frozen.setdefault(name, seqs[name])
        return sum(self._frozen.get(name, count) for name, count in seqs.items())

    def _send(self, kind: str, fields: dict[str, object]) -> None:
        rank = self._rank
        if self._sender is None:
            self._open_sender()
        if self._sender:
            if not self._sender.send(kind, fields):
                rank.outbox.dropped += 1
            return
        rank.outbox.dropped += 1
        if kind == "HookFailed":
            rank.warn_once(f"{fields['hook']}: {fields['error']}")

    def _open_sender(self) -> None:
        rank = self._rank
        with rank.import_lock:
            try:
                if not os.path.isdir(rank.sockets):
                    raise FileNotFoundError(f"{rank.sockets} is gone")
                impostor = find_impostor(self._saved_path)
                if impostor:
                    raise ImportError(f"{impostor} hides a library that guardrun needs")
                from guardrun.hooks.beat.message_sender import Sender

                self._sender = Sender(rank)
            except Exception as error:
                self._sender = False
                rank.warn_once(f"no messages: {type(error).__name__}: {error}")
                return
        self._sender.hello()


def find_impostor(path: list[str]) -> str | None:
    """Answer a module of the script's own folder that has the name of a library that guardrun is about to import.

    path: sys.path as it was before the script's folder came to it.
    """
    from importlib.machinery import PathFinder

    for name in ("msgspec",):
        if name in sys.modules:
            continue
        ours, theirs = PathFinder.find_spec(name, path), PathFinder.find_spec(name)
        if ours is not None and theirs is not None and ours.origin != theirs.origin:
            return str(theirs.origin)
    return None


def read_group_seqs() -> dict[str, int]:
    """Read how many collectives each of torch's process groups has been given so far; by its name.

    Not every version and backend of torch can tell: what can't is left out.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return {}
    seqs: dict[str, int] = {}
    for group in list(getattr(world, "pg_map", ()))[:MAX_GROUPS]:
        try:
            seqs[str(group.group_name)] = int(group._get_sequence_number_for_group())
        except Exception:  # A group that is being destroyed, a backend that doesn't count.
            continue
    return seqs


def find_joint_groups() -> set[str]:
    """Names of torch's process groups that ranks of other nodes belong to, too. torchrun numbers a node's in a row."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    try:
        first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
        here = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
        members = dict(getattr(world, "pg_group_ranks", {}))
        return {str(group.group_name) for group, ranks in members.items() if any(rank not in here for rank in ranks)}
    except Exception:  # Variables that a script has changed, a group that is being made or destroyed.
        return set()
