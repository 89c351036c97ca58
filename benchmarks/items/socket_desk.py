"""Messages a second from the ranks' socket through the decoder to the desk."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

from benchmarks.item import Bench, CannotMeasure, Figure
from benchmarks.job import SCRIPTS
from guardrun.hooks.wire.messages import MAX_MESSAGE_BYTES
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.node.node_supervisor import BEATS_A_TURN
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest

RANKS = 8
MESSAGES = 500_000
QUICK_MESSAGES = 20_000
TURNS = 5
SILENCE_MS = 60_000
SAVES_IN = 10
"""One message in so many is a checkpoint's, which becomes an event; the rest are beats."""


class SocketItem:
    """A real ZeroMQ socket, filled by another process, emptied as the daemon does it."""

    name = "socket"
    title = "Messages a second through socket and decoder"

    def measure(self, bench: Bench) -> list[Figure]:
        """Messages a second, of several turns."""
        count = bench.choose(QUICK_MESSAGES, MESSAGES)
        rates = tuple(measure_once(count) for _ in range(bench.choose(1, TURNS)))
        return [Figure("ranks' messages through socket and decoder", "1/s", rates)]


def measure_once(count: int) -> float:
    """From the first message in to the last. Raises CannotMeasure where any is lost or not understood."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, zmq.Context() as context:
        clock = EngineClock(0.0, time.monotonic())
        sampler = Sampler(clock, folder)
        saves: list[str] = []
        ingest = RankMessageIngest(clock, sampler, lambda path, *_: saves.append(path), lambda message: None)
        ingest.attempt_started(0, [Rank(global_rank=r, local_rank=r, pid=1, node="n") for r in range(RANKS)], None)
        with context.socket(zmq.PULL) as socket:
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RCVHWM, 20000)
            address = f"ipc://{Path(folder) / 'beats'}"
            socket.bind(address)
            command = [
                sys.executable,
                str(SCRIPTS / "send_messages.py"),
                address,
                str(count),
                str(SAVES_IN),
                str(RANKS),
            ]
            with subprocess.Popen(command) as sender:
                try:
                    seconds = receive(socket, ingest, count)
                finally:
                    sender.kill()
        sampler.close()
    if ingest.malformed or ingest.strangers or len(saves) != count // SAVES_IN:
        raise CannotMeasure(
            f"{ingest.malformed} malformed, {ingest.strangers} strangers, {len(saves)} saves of {count}"
        )
    return count / seconds


def receive(socket: zmq.Socket[bytes], ingest: RankMessageIngest, count: int) -> float:
    """Take so many messages in, a turn's worth at a time; returns the seconds it took. Raises CannotMeasure."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    done, began = 0, 0.0
    while done < count:
        if not poller.poll(SILENCE_MS):
            raise CannotMeasure(f"nothing came for {SILENCE_MS / 1000:g} s after {done} messages")
        began = began or time.monotonic()
        for _ in range(BEATS_A_TURN):
            try:
                data = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            ingest.receive(data)
            done += 1
    return time.monotonic() - began
