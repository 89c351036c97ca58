"""A supervisor that ends by itself once it has said that the run is over: its end may be seen before its word."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.launcher.base.terminal_lines import Log
from guardrun.launcher.control.control_channel import Control
from guardrun.launcher.control.supervision import LAST_WORD_S, Supervision
from guardrun.launcher.control.supervisor_process import Daemon
from guardrun.supervisor.wire.control_messages import CONTROL_SOCKET, Finish, LauncherHello
from tests.support.waiting import wait_until


class Bed:
    """A supervision whose supervisor is a socket of ours and a process that does nothing."""

    def __init__(self, folder: Path, code: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{folder / CONTROL_SOCKET}")
        hello = LauncherHello(pid=1, world_size=1, attempt=0, alive=[], is_first=True)
        self.daemon = Daemon([sys.executable, "-c", code])
        self._log = Log(folder)
        self.supervision = Supervision(
            daemon=self.daemon,
            control=Control(folder, lambda is_first: hello, ""),
            run_dir=folder,
            log=self._log,
            now_s=time.monotonic(),
            command=[sys.executable, "-c", "import time; time.sleep(600)"],
        )
        self._launcher, _ = self._socket.recv_multipart()
        wait_until(lambda: not self.daemon.is_alive, 20, "its end")

    def say(self, message: Finish) -> None:
        self._socket.send_multipart([self._launcher, msgspec.msgpack.encode(message)])

    def close(self) -> None:
        if self.supervision._daemon is not None:
            self.supervision._daemon.kill()
        self.supervision.finish()
        assert self._log.close()
        self.daemon.close()
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[list[Bed]]:
    made: list[Bed] = []
    yield made
    for bed in made:
        bed.close()


def test_its_last_word_is_waited_for(beds: list[Bed], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bed = Bed(tmp_path, "pass")
    beds.append(bed)
    now_s = time.monotonic()
    assert bed.supervision.step(now_s) == []
    wait_s = bed.supervision.seconds_to_restart(now_s)
    assert wait_s is not None and 0 < wait_s <= LAST_WORD_S
    bed.say(Finish(exit_code=3))
    orders = wait_until(lambda: bed.supervision.step(now_s + LAST_WORD_S / 2), 10, "its word")
    assert [order.exit_code for order in orders if isinstance(order, Finish)] == [3]
    assert bed.supervision.step(now_s + 60.0) == [] and bed.supervision.seconds_to_restart(now_s) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "after_s"),
    [(0, LAST_WORD_S + 0.1), (1, 0.0)],
    ids=["well, and without a word", "badly"],
)
def test_one_that_is_needed_is_started_again(
    beds: list[Bed], tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int, after_s: float
) -> None:
    bed = Bed(tmp_path, f"raise SystemExit({code})")
    beds.append(bed)
    now_s = time.monotonic()
    bed.supervision.step(now_s)
    said = capfd.readouterr().err
    assert (said == "") is (after_s > 0)
    bed.supervision.step(now_s + after_s)
    said += capfd.readouterr().err
    assert f"the supervisor ended unexpectedly (exit code {code}); starting it again" in said
    bed.supervision.step(now_s + after_s + 60.0)
    assert len(bed.supervision.pids()) == 1
