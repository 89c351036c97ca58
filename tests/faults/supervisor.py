"""Faults of the supervisor."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from dataclasses import dataclass

import zmq

from tests.faults.bed import SAVE_EVERY, Bed, send, stop
from tests.faults.row import Row
from tests.faults.stories import Mended, Unfelt
from tests.runs.runs import QUICK
from tests.support.hostile import hostile_frames, send_frames
from tests.support.processes import is_alive, read_process


@dataclass(frozen=True)
class Signalled:
    """It gets a signal, so often, and another one takes its place each time."""

    signum: signal.Signals
    times: int = 1

    def __call__(self, bed: Bed) -> str:
        for _ in range(self.times):
            old = bed.supervisor()
            send(old, self.signum)
            bed.another(old)
        return ""


def paused(bed: Bed) -> str:
    """For less than the launcher waits."""
    old = bed.supervisor()
    stop([old], 1.0)
    bed.trains()
    assert bed.supervisor().pid == old.pid
    return "the same one goes on"


def stopped_again_and_again(bed: Bed) -> str:
    old = bed.supervisor()
    for _ in range(30):
        stop([old], 0.1)
        time.sleep(0.02)
    assert bed.supervisor().pid == old.pid
    return "the same one goes on"


def asked_to_end(bed: Bed) -> str:
    """By whoever sends SIGTERM to all daemons of a name."""
    old = bed.supervisor()
    send(old, signal.SIGTERM)
    bed.trains(20 * SAVE_EVERY)
    return "it goes on" if bed.supervisor().pid == old.pid else "another goes on"


def killed_as_it_writes(bed: Bed) -> str:
    """Three times, right when the journal has grown."""
    for _ in range(3):
        old, size = bed.supervisor(), bed.journal.stat().st_size
        bed.wait_for(lambda size=size: bed.journal.stat().st_size != size, "it to write")
        send(old, signal.SIGKILL)
        bed.another(old)
    return ""


def killed_with_a_save(bed: Bed) -> str:
    """Right when a checkpoint is in place, which it may not have heard of."""
    saved = bed.saved
    bed.wait_for(lambda: bed.saved > saved, "a checkpoint")
    old = bed.supervisor()
    send(old, signal.SIGKILL)
    bed.another(old)
    return ""


def without_sockets(bed: Bed) -> str:
    shutil.rmtree(bed.sockets)
    bed.trains()
    return ""


def without_sockets_and_killed(bed: Bed) -> str:
    shutil.rmtree(bed.sockets)
    old = bed.supervisor()
    send(old, signal.SIGKILL)
    bed.another(old)
    return ""


def without_descriptors(bed: Bed) -> str:
    """It can open nothing for five seconds."""
    pid = bed.supervisor().pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
    time.sleep(5.0)
    if read_process(pid) is not None:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    bed.trains()
    return "it goes on" if is_alive(pid) else "another goes on"


@dataclass(frozen=True)
class Flooded:
    """The job's own user sends it what no rank would."""

    socket: str
    frames: tuple[bytes, ...]

    def __call__(self, bed: Bed) -> str:
        old = bed.supervisor()
        kind = zmq.PUSH if self.socket == "beats" else zmq.DEALER
        send_frames(kind, f"ipc://{bed.sockets}/{self.socket}", list(self.frames))
        bed.messages += len(self.frames)
        bed.trains(10 * SAVE_EVERY)
        assert bed.supervisor().pid == old.pid
        return f"{len(self.frames):,} messages"


FRAMES = tuple(hostile_frames())


# While a rank's end, or its hang, is dealt with ---------------------------------------------------------------------


def killed_before_it_is_told(bed: Bed) -> str:
    send(bed.supervisor(), signal.SIGKILL)
    return ""


def killed_in_a_hang(bed: Bed) -> str:
    """Once training stands, and before anybody can have said so."""
    bed.wait_for(lambda: any(one.state == "T" for one in bed.run.find("plain.py")), "the rank to stand")
    send(bed.supervisor(), signal.SIGKILL)
    return ""


def killed_as_it_stops_the_attempt(bed: Bed) -> str:
    bed.wait_for(lambda: bed.said("stop_began"), "the stop to begin")
    send(bed.supervisor(), signal.SIGKILL)
    return ""


def killed_as_the_incident_is_open(bed: Bed) -> str:
    bed.wait_for(bed.run.incidents, "the incident")
    send(bed.supervisor(), signal.SIGKILL)
    return ""


def killed_as_the_next_attempt_begins(bed: Bed) -> str:
    bed.wait_for(lambda: len(bed.begun) == 2, "the next attempt")
    send(bed.supervisor(), signal.SIGKILL)
    return ""


def stopped_as_the_incident_is_open(bed: Bed) -> str:
    bed.wait_for(bed.run.incidents, "the incident")
    send(bed.supervisor(), signal.SIGSTOP)
    return ""


def quick(bed: Bed) -> None:
    bed.config += QUICK


def slow_to_stop(bed: Bed) -> None:
    bed.config += "[restart]\nstop_grace_s = 3\n"


# Stories of their own -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtOnce:
    """Killed as soon as it is there, before a rank has done anything."""

    holds = "one attempt, from the beginning; a rank that is killed afterwards is told and mended; exit 0"

    def __call__(self, bed: Bed) -> str:
        bed.start()
        send(bed.supervisor(), signal.SIGKILL)
        bed.trains()
        assert bed.begun == [0]
        bed.hurt()
        bed.mended()
        bed.trains()
        bed.ends(attempts=2)
        return ""


@dataclass(frozen=True)
class GivenUp:
    """Killed again and again, until it is gone on without."""

    holds = "training goes on without it, which is said; a rank killed afterwards is restarted at the newest checkpoint"

    def __call__(self, bed: Bed) -> str:
        bed.is_recorded = False  # of what came after it, there is none
        bed.start()
        bed.trains()

        def is_given_up() -> bool:
            for daemon in bed.run.find("guardrund"):
                send(daemon, signal.SIGKILL)
            return "too often now: going on without it, as torchrun would" in bed.run.stderr

        bed.wait_for(is_given_up, "the supervisor to be given up")
        bed.trains()
        assert len(bed.begun) == 1
        bed.restarted()
        bed.trains()
        bed.ends(attempts=2)
        return ""


@dataclass(frozen=True)
class AtTheEnd:
    """Killed, or stopped, as the last rank ends."""

    signum: signal.Signals
    holds = "one attempt, exit 0, nothing left running"

    def __call__(self, bed: Bed) -> str:
        bed.is_recorded = self.signum is signal.SIGKILL
        bed.start()
        bed.trains()
        old = bed.supervisor()
        (bed.folder / "end").touch()
        bed.wait_for(lambda: ": done" in bed.run.stdout, "a rank to be done")
        if is_alive(old.pid):
            send(old, self.signum)
        bed.ends(attempts=1)
        return ""


ROWS = (
    Row("supervisor", "SIGKILL", "in training", Unfelt(Signalled(signal.SIGKILL)), is_sample=True),
    Row("supervisor", "SIGKILL, twice", "in training", Unfelt(Signalled(signal.SIGKILL, 2))),
    Row("supervisor", "SIGKILL, until it is given up", "in training", GivenUp()),
    Row("supervisor", "SIGKILL", "as soon as it is there", AtOnce()),
    Row("supervisor", "SIGKILL", "as it writes its journal, three times", Unfelt(killed_as_it_writes)),
    Row("supervisor", "SIGKILL", "as a checkpoint is put in place", Unfelt(killed_with_a_save)),
    Row("supervisor", "SIGKILL", "as a rank is killed", Mended(killed_before_it_is_told)),
    Row("supervisor", "SIGKILL", "with a hang under way", Mended(killed_in_a_hang, quick, "stop", "rank_stopped")),
    Row(
        "supervisor",
        "SIGKILL",
        "as it stops an attempt",
        Mended(killed_as_it_stops_the_attempt, slow_to_stop, arguments=("--ignore-sigterm",)),
    ),
    Row("supervisor", "SIGKILL", "as an incident is open", Mended(killed_as_the_incident_is_open)),
    Row("supervisor", "SIGKILL", "as the next attempt begins", Mended(killed_as_the_next_attempt_begins)),
    Row("supervisor", "SIGKILL", "as the last rank ends", AtTheEnd(signal.SIGKILL)),
    Row("supervisor", "SIGSTOP", "in training", Unfelt(Signalled(signal.SIGSTOP))),
    Row("supervisor", "SIGSTOP", "as an incident is open", Mended(stopped_as_the_incident_is_open)),
    Row("supervisor", "SIGSTOP", "as the last rank ends", AtTheEnd(signal.SIGSTOP)),
    Row("supervisor", "SIGSTOP, SIGCONT after 1 s", "in training", Unfelt(paused)),
    Row("supervisor", "SIGSTOP and SIGCONT, 30 times", "in training", Unfelt(stopped_again_and_again)),
    Row("supervisor", "SIGSEGV", "in training", Unfelt(Signalled(signal.SIGSEGV))),
    Row("supervisor", "SIGTERM", "in training", Unfelt(asked_to_end)),
    Row("supervisor", "no descriptor is left to it for 5 s", "in training", Unfelt(without_descriptors)),
    Row("supervisor", "its socket folder is removed", "in training", Unfelt(without_sockets)),
    Row(
        "supervisor",
        "its socket folder is removed, then SIGKILL",
        "in training",
        Unfelt(without_sockets_and_killed),
    ),
    Row("supervisor", "malformed beats, by the job's own user", "in training", Unfelt(Flooded("beats", FRAMES))),
    Row("supervisor", "a message of 8 MB", "in training", Unfelt(Flooded("beats", (bytes(8 << 20),)))),
    Row("supervisor", "malformed questions", "in training", Unfelt(Flooded("control", FRAMES[:2000]))),
)
