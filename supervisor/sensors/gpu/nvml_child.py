"""The process in which NVML lives, and nothing else does.

A driver call can hang in uninterruptible wait, and the library can crash: neither may take the agent along. So this
process has few imports and three threads: the main one reads what the sensor wants (and ends everything when the
sensor's end of the socket is gone), one is in NVML for readings, one waits for events. Calls leave the GIL, so the main
thread answers even while one hangs.
"""

from __future__ import annotations

import ctypes
import os
import queue
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from guardrun.supervisor.base.framing import Unpacker
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.health.base.readings import Happening
from guardrun.supervisor.sensors.gpu.nvml_calls import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    SessionOverError,
    Watch,
)
from guardrun.supervisor.sensors.gpu.nvml_session import Session, watch_events
from guardrun.supervisor.sensors.gpu.nvml_wire import (
    MAX_FRAME_BYTES,
    Happened,
    Here,
    Over,
    Ready,
    ToProcess,
    ToSensor,
    Turn,
    TurnAnswer,
    encode,
)

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
ABSENT = frozenset({LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED})


class Speaker:
    """Sends frames, from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, frame: ToSensor) -> None:
        """Send a frame; ends the whole process where the sensor's end is gone."""
        with self._lock:
            try:
                self._sock.sendall(encode(frame))
            except OSError:
                os._exit(0)  # Nobody is there to be told.

    def send_happening(self, happening: Happening) -> None:
        """Send something that happened, between two turns."""
        self.send(Happened(happening=happening))


def main(descriptor: int, parent: int, root: str = "/") -> None:
    """Serve the sensor at the other end of descriptor until it is gone."""
    die_with(parent)
    # Whatever the agent was started with (a pipe of somebody's, say) is not kept open by this process.
    os.closerange(descriptor + 1, min(os.sysconf("SC_OPEN_MAX"), 65536))
    with socket.socket(fileno=descriptor) as sock:
        speaker, watch, turns = Speaker(sock), Watch(), queue.SimpleQueue[Turn]()
        worker = threading.Thread(target=work, args=(speaker, watch, turns, Path(root)), daemon=True)
        worker.start()
        serve(sock, speaker, watch, turns)
    os._exit(0)  # Not by way of the interpreter's end, which would wait for a thread that is stuck in a call.


def die_with(parent: int) -> None:
    """End when parent ends, whatever this process is in; leave no core file when the library crashes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # A sandbox may refuse it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(sock: socket.socket, speaker: Speaker, watch: Watch, turns: queue.SimpleQueue[Turn]) -> None:
    """Take what the sensor says until it hangs up."""
    unframer = Unpacker(MAX_FRAME_BYTES)
    decoder = msgspec.msgpack.Decoder(known_type(ToProcess))
    while data := sock.recv(65536):
        for body in unframer.feed(data):
            frame = decoder.decode(body)
            if isinstance(frame, Turn):
                turns.put(frame)
            else:
                speaker.send(Here(doing=watch.describe_call()))


def work(speaker: Speaker, watch: Watch, turns: queue.SimpleQueue[Turn], root: Path) -> None:
    """Initialise NVML, then take one turn after another."""
    try:
        # Here, so that what is wrong with it is told like anything else.
        import pynvml

        session = Session(pynvml, watch, root)
        threading.Thread(
            target=watch_events, args=(pynvml, session.devices, speaker.send_happening), daemon=True
        ).start()
        speaker.send(Ready())
        while True:
            turn = turns.get()
            speaker.send(TurnAnswer(seq=turn.seq, samples=session.turn(turn.tiers)))
    except SessionOverError as over:
        speaker.send(Over(reason=str(over), is_absent=over.code in ABSENT))
    except Exception as error:
        # Whatever it is, somebody has to be told before this process is gone.
        speaker.send(Over(reason=f"{type(error).__name__}: {error}"))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
