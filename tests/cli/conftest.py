"""Runs for guardctl to look at: recorded ones, and one with a supervisor that answers over a real socket."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from guardrun.supervisor.cli.base.verb import BOOT_ID
from guardrun.supervisor.cli.guardctl import main
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.look_files import write_look
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.quarantine.record_places import find_places
from guardrun.supervisor.report.incident import write_incident
from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.rundir.run_directory import RunFile, write_run_file
from guardrun.supervisor.rundir.traces import ModuleTrace, TraceRow, write_trace
from guardrun.supervisor.wire.control_messages import CONTROL_SOCKET, Answer, Ask
from tests.report.samples import crash, hang, rank_look, run_file, summary, wall

NODE = "node-a"


class Ctl:
    """guardctl, called as its users do but for the process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Call it, check the exit code, answer stdout."""
        try:
            found = main(list(arguments))
        except SystemExit as error:  # argparse's
            found = int(error.code or 0)
        self.out, self.err = self._capsys.readouterr()
        assert found == code, f"exit code {found}\n{self.out}\n{self.err}"
        return self.out

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        data = msgspec.json.decode(self(*arguments, "--json", code=code))
        assert isinstance(data, dict)
        return data


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an empty ./guardrun-runs; answers the latter."""
    for name in list(os.environ):
        if name.startswith(("GUARDRUN_", "NCCL_", "TORCH_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURMD_NODENAME", NODE)
    # What root has kept of this machine is no part of any test.
    monkeypatch.setattr(find_places, "__defaults__", (tmp_path / "var-lib-guardrun",))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "guardrun-runs"
    folder.mkdir()
    return folder


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str], runs: Path) -> Ctl:
    return Ctl(capsys)


def make_run(runs: Path, run_id: str, **changes: Any) -> tuple[Path, RunFile]:
    """A run directory with its run.json; `latest` points to it."""
    run = run_file(run_id=run_id, **changes)
    run_dir = runs / run_id
    run_dir.mkdir()
    write_run_file(run_dir, run)
    latest = runs / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(run_id)
    return run_dir, run


def record_journal(run_dir: Path, nodes: Sequence[str] = (NODE, NODE), share: int = 2) -> None:
    """Two ranks train, one falls: a journal as a real engine and a real journal make it. share: ranks of the head."""
    engine, journal = Engine(), Journal(run_dir)
    ranks = [ev.Rank(global_rank=n, local_rank=n, pid=4241 + n, node=node) for n, node in enumerate(nodes)]
    reports = [ev.RankReport(global_rank=n, progress_s=4.0, progress=5, step=20, phase="train") for n in range(2)]
    story: list[tuple[float, ev.Event]] = [
        (
            0.0,
            ev.RunOpened(
                run_id=run_dir.name, settings=ev.Settings(), node=NODE, command=[], world_size=share, wall_s=1795e6
            ),
        ),
        (0.5, ev.AttemptStarted(attempt=0, ranks=ranks)),
        (4.0, ev.NodeReport(node=NODE, attempt=0, ranks=reports)),
        (4.5, ev.CheckpointSaved(attempt=0, global_rank=0, path="/out/ckpt_20.pt", step=20, duration_s=0.1)),
        (6.0, ev.RankExited(attempt=0, global_rank=1, pid=4242, exitcode=-9, at_s=6.0)),
    ]
    try:
        for now_s, event in story:
            journal.append(event, engine.handle(event, now_s), now_s)
    finally:
        journal.close()


@pytest.fixture
def recorded(runs: Path) -> Path:
    """A run that is over: a journal, two incidents, a summary."""
    run_dir, run = make_run(runs, "vocab-1", config={"hang": {"floor_s": 3.0}, "origins": {"hang.floor_s": "x.toml"}})
    record_journal(run_dir)
    assert write_look(run_dir / "looks" / "0-1", [rank_look(rank) for rank in range(3)], {}) == ""
    write_incident(run_dir, hang(looks=["looks/0-1"]), run, wall)
    write_incident(run_dir, crash(), run, wall)
    write_summary(run_dir, summary(), run, wall)
    return run_dir


TRACED_ROWS = [
    TraceRow(12, "layers.0\x1b[2J", "forward", 0.0125, 100 << 20),
    TraceRow(12, "", "forward", 0.05, 164 << 20),
    TraceRow(12, "layers.0", "backward", 0.025, 100 << 20),
]


def keep_trace(run_dir: Path, number: int, rank: int, rows: list[TraceRow] = TRACED_ROWS) -> None:
    """A trace of a rank, as the run keeps it."""
    trace = ModuleTrace(number=number, rank=rank, node="node-a", attempt=0, at_s=1.0, rows=rows, steps=[(12, 0.1)])
    write_trace(run_dir, trace)


class FakeSupervisor:
    """Answers Asks on a ROUTER as the supervisor does, with what the test says."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[Ask] = []
        self.answers: dict[str, Answer | None] = {}
        """Per verb; None: no answer."""
        self.ends_at = ""
        """At which verb it goes away, its socket with it, in place of an answer."""
        self.noise: list[bytes] = []
        """Frames sent before each answer."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{folder / CONTROL_SOCKET}")
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._stop.close()
        self._socket.close(linger=0)
        self._context.term()

    def _serve(self) -> None:
        with self._context.socket(zmq.PAIR) as stop:
            stop.connect("inproc://stop")
            self._answer_until(stop)

    def _answer_until(self, stop: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while stop not in dict(poller.poll()):
            peer, frame = self._socket.recv_multipart()
            ask = msgspec.msgpack.decode(frame, type=Ask)
            self.asked.append(ask)
            if ask.verb == self.ends_at:
                self._socket.close(linger=0)
                stop.recv()
                return
            for noise in self.noise:
                self._socket.send_multipart([peer, noise])
            answer = self.answers.get(ask.verb)
            if answer is not None:
                self._socket.send_multipart([peer, msgspec.msgpack.encode(answer)])


STATUS: dict[str, Any] = {
    "run_id": "live-1",
    "state": "training",
    "attempt": 1,
    "world_size": 2,
    "node": NODE,
    "uptime_s": 125.0,
    "held": False,
    "stall": None,
    "ranks": [
        {
            "global_rank": rank,
            "local_rank": rank,
            "pid": 4241 + rank,
            "node": NODE,
            "state": "R" if rank == 0 else "T",
            "exitcode": None,
            "step": 120 + rank,
            "step_time_s": 0.25,
            "loss": 2.5,
            "grad_norm": 0.75,
            "learning_rate": 1e-4,
            "left_out": rank,
            "phase": "train",
            "last_beat_s": 0.4,
            "last_progress_s": 0.2,
            "hooks": rank == 0,
        }
        for rank in range(2)
    ],
    "incidents": [{"id": "001", "kind": "hang", "cause": "rank_blocked", "summary": "It hung.", "action": "restart"}],
    "restarts": 1,
    "goodput": 0.93,
    "checkpoint": {"path": "/out/ckpt_100.pt", "step": 100},
}


def stacks_answer(ranks: list[int]) -> Answer:
    looks: list[RankLook] = [rank_look(rank) for rank in ranks]
    return Answer(is_ok=True, data={"ranks": msgspec.to_builtins(looks), "missing": {"7": "it is gone"}})


@pytest.fixture
def live(runs: Path) -> Iterator[FakeSupervisor]:
    """A run whose launcher is this process, with a supervisor that answers."""
    # A socket's path has 107 bytes: pytest's own folders may be too deep.
    sockets = Path(tempfile.mkdtemp(prefix="guardrun-"))
    me = read_stat(os.getpid())
    assert me is not None
    make_run(
        runs,
        "live-1",
        socket_dir=str(sockets),
        launcher_pid=os.getpid(),
        launcher_start=me.start,
        boot_id=BOOT_ID.read_text().strip(),
    )
    supervisor = FakeSupervisor(sockets)
    supervisor.answers["status"] = Answer(is_ok=True, data=STATUS)
    try:
        yield supervisor
    finally:
        supervisor.close()
        shutil.rmtree(sockets)


@pytest.fixture
def stale_socket(runs: Path) -> Iterator[Callable[[], None]]:
    """Makes a run whose launcher lives and whose socket nobody listens on."""
    sockets = Path(tempfile.mkdtemp(prefix="guardrun-"))

    def make() -> None:
        me = read_stat(os.getpid())
        assert me is not None
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(sockets / CONTROL_SOCKET))
        bound.close()
        make_run(
            runs,
            "wedged-1",
            socket_dir=str(sockets),
            launcher_pid=os.getpid(),
            launcher_start=me.start,
            boot_id=BOOT_ID.read_text().strip(),
        )

    yield make
    shutil.rmtree(sockets)
