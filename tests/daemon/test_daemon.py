"""The supervisor that decides, before its launcher is there: a run of which the journal already tells something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from guardrun import __version__
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.daemon.daemon import Daemon
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.fleet.coordinator.event_aggregator import SILENT_S
from guardrun.supervisor.fleet.protocol.messages import Down
from guardrun.supervisor.fleet.rendezvous.join_file import JoinFile
from guardrun.supervisor.fleet.transport.link import Body, Head, Link
from guardrun.supervisor.rundir.journal import JOURNAL_VERSION, NAME, Journal, read_lines
from guardrun.supervisor.rundir.run_directory import FleetFile, RunFile
from guardrun.supervisor.wire import control_messages
from tests.cli.conftest import record_journal
from tests.report.samples import run_file
from tests.support.journals import set_version
from tests.support.waiting import SOON_S, wait_until

EARLY = ev.HistoryLoaded(places=[])
NODE, OTHER = "node-a", "node-b"
PLAN = ev.FleetPlan(least=2, most=2)
HELLO = control_messages.LauncherHello(pid=1, world_size=2, attempt=-1, alive=[], is_first=True)


@contextmanager
def daemon_of(folder: Path, **changes: Any) -> Iterator[Daemon]:
    """A supervisor of the run in folder, without its loop."""
    (folder / "s").mkdir(exist_ok=True)
    changes = {"config": {"node": {"state_dir": str(folder / "state")}}, **changes}  # not this machine's own
    run: RunFile = run_file(run_id=folder.name, socket_dir=str(folder / "s"), clock_mono_s=time.monotonic(), **changes)
    with ExitStack() as stack:
        writer = BackgroundWriter(patience_s=60.0)
        stack.callback(writer.close)
        daemon = Daemon(folder, run, writer)
        stack.callback(daemon.close)
        yield daemon


def heads_file(folder: Path) -> FleetFile:
    return FleetFile(
        is_head=True, slot=0, join_file=str(folder / "join"), plan=PLAN, key="job", address="127.0.0.1", work="w"
    )


def told(folder: Path) -> list[str]:
    return [type(line.event).__name__ for line in read_lines(folder) if line is not None]


@pytest.mark.parametrize("age_s", [10.0, 3600.0])
def test_a_run_that_goes_on_is_judged_from_then_on(tmp_path: Path, age_s: float) -> None:
    """Until its launcher is there, nothing is due, and what comes is kept for afterwards."""
    record_journal(tmp_path)
    before = told(tmp_path)
    with daemon_of(tmp_path, session=1, clock_base_s=age_s) as daemon:
        assert daemon.engine.next_deadline_s() is not None
        assert daemon.due_s() is None
        daemon.turn({})
        daemon.skipped(30.0)
        assert daemon.feed(EARLY)
        daemon.greeted(HELLO)
        assert daemon.due_s() is not None
    assert told(tmp_path)[len(before) :] == ["RunContinued", "HistoryLoaded"]


@pytest.mark.parametrize("version", [0, JOURNAL_VERSION + 1])
@pytest.mark.parametrize("session", [0, 1])
def test_a_run_whose_journal_another_version_wrote_is_gone_on_with_as_without_a_journal(
    tmp_path: Path, version: int, session: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is not replayed. A new guardrun resumes from the newest checkpoint; beside a living one nothing is stopped."""
    record_journal(tmp_path)
    set_version(tmp_path / NAME, version)
    before = told(tmp_path)
    hello = HELLO if session else msgspec.structs.replace(HELLO, attempt=3)
    with daemon_of(tmp_path, session=session, clock_base_s=10.0) as daemon:
        daemon.greeted(hello)
        phase, following = daemon.engine.state.phase, daemon.engine.state.next_attempt
    assert told(tmp_path)[len(before) :] == ["RunOpened"]
    assert (phase, following) == ((Phase.CHOOSING, 0) if session else (Phase.STARTING, 3))
    lines = [line for line in read_lines(tmp_path) if line is not None]
    assert [line.n for line in lines] == list(range(len(lines))) and lines[-1].v == JOURNAL_VERSION
    theirs = f"has version {version}" if version else "has no version"
    said = f"the journal {theirs}, and this guardrun reads version {JOURNAL_VERSION}: it is not replayed, and "
    assert said + "attempts, incidents and restarts are counted anew" in capfd.readouterr().err

    with daemon_of(tmp_path, session=session, clock_base_s=10.0) as daemon:
        assert daemon.engine.state.phase is phase, "the next supervisor goes on from what this one has written"
    assert "is not replayed" not in capfd.readouterr().err


def test_a_new_run_hears_what_came_before_its_launcher(tmp_path: Path) -> None:
    with daemon_of(tmp_path) as daemon:
        assert daemon.feed(EARLY)
        daemon.greeted(HELLO)
    assert told(tmp_path) == ["RunOpened", "HistoryLoaded"]


@pytest.mark.parametrize(
    ("table", "nodes", "is_told"),
    [
        ({"mirror": True}, 1, True),
        ({"mirror": True, "resume_args": ["{path}"]}, 1, False),
        ({"mirror": False}, 1, False),
        ({"mirror": True}, 2, False),  # there it may be for shards that are kept by hooks.snapshot()
    ],
)
def test_a_mirror_that_is_of_no_use_is_told(
    tmp_path: Path, table: dict[str, object], nodes: int, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {"node": {"state_dir": str(tmp_path / "state")}, "checkpoint": table}
    with daemon_of(tmp_path, config=config, fleet=heads_file(tmp_path) if nodes > 1 else None) as daemon:
        daemon.greeted(HELLO)
    assert ("mirror = true keeps nothing here" in capfd.readouterr().err) == is_told


def test_a_supervisor_that_is_started_again_is_not_held_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher may be the one that does not answer."""
    record_journal(tmp_path)
    before = told(tmp_path)
    monkeypatch.setattr("guardrun.supervisor.daemon.daemon.GREET_S", 0.0)
    with daemon_of(tmp_path, clock_base_s=10.0) as daemon:
        daemon.feed(EARLY)
        assert daemon.due_s() is None
        daemon.sampled()
        assert daemon.due_s() is not None
        daemon.greeted(HELLO)
    assert told(tmp_path)[len(before) :] == ["SupervisorRestarted", "HistoryLoaded"]


@dataclass
class Stoppable:
    """This process as the supervisor has it, which can be stopped for a while at any place in its code."""

    stopped_s: float = 0.0

    def stop(self, seconds: float) -> None:
        """Clocks go on, and nothing else does."""
        self.stopped_s += seconds


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Stoppable:
    process, now, now_ns = Stoppable(), time.monotonic, time.monotonic_ns
    monkeypatch.setattr(time, "monotonic", lambda: now() + process.stopped_s)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + round(process.stopped_s * 1e9))
    return process


STOPPED_S = 40.0
"""Longer than a node may be silent."""


@pytest.mark.parametrize("where", ["before others are judged", "while they are", "before the engine is asked"])
def test_time_in_which_the_head_was_stopped_is_no_nodes_silence(
    tmp_path: Path, process: Stoppable, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As by scontrol suspend. It goes on in the middle of a turn, with what it had heard before: there is no saying
    where a process is stopped."""
    record_fleet(tmp_path, is_started=True)
    with head_of(tmp_path) as (daemon, pump):
        daemon.greeted(HELLO)
        pump(lambda: OTHER in joined(tmp_path))
        assert daemon.fleet is not None
        daemon.sampled()
        if where == "while they are":
            tick = daemon.fleet.aggregator.tick

            def judge(now_s: float) -> list[ev.Event]:
                """The node was last heard almost long enough ago to be called silent."""
                events = tick(now_s + SILENT_S)
                process.stop(STOPPED_S)
                return events

            monkeypatch.setattr(daemon.fleet.aggregator, "tick", judge)
            daemon.sampled()
            monkeypatch.setattr(daemon.fleet.aggregator, "tick", tick)
        elif where == "before others are judged":
            process.stop(STOPPED_S)
            daemon.sampled()
        else:
            daemon.fleet.pass_on(daemon.fleet.aggregator.tick(daemon.node.clock.now() + SILENT_S))
            assert OTHER in silent(daemon)
            process.stop(STOPPED_S)
        daemon.turn({})
        assert daemon.engine.state.phase is Phase.RUNNING and not daemon.engine.state.incidents
        assert told(tmp_path).count("TimeSkipped") == 1
        pump(lambda: not silent(daemon))
        assert daemon.engine.state.phase is Phase.RUNNING and not daemon.engine.state.incidents


def test_a_node_that_stays_silent_after_the_head_was_stopped_is_lost(tmp_path: Path, process: Stoppable) -> None:
    record_fleet(tmp_path, is_started=True)
    with head_of(tmp_path) as (daemon, pump):
        daemon.greeted(HELLO)
        pump(lambda: OTHER in joined(tmp_path))
        process.stop(STOPPED_S)
        for _ in range(40):  # It runs now, and that node does not. (A busy machine may stop it once more.)
            process.stop(3.0)
            daemon.sampled()
            daemon.turn({})
            if daemon.engine.state.incidents:
                break
        assert [one.cause for one in daemon.engine.state.incidents.values()] == ["node_lost"]


def silent(daemon: Daemon) -> list[str]:
    """Nodes that the engine holds to be silent."""
    assert daemon.engine.state.fleet is not None
    return daemon.engine.state.fleet.quiet


@contextmanager
def head_of(folder: Path) -> Iterator[tuple[Daemon, Callable[[Callable[[], bool]], None]]]:
    """A head, without its loop, that another node joins; and what lets both talk until something is so."""
    with daemon_of(folder, fleet=heads_file(folder), clock_base_s=10.0) as daemon:
        poller = zmq.Poller()
        daemon.register(poller)
        join = msgspec.json.decode((folder / "join").read_bytes(), type=JoinFile)
        assert join.client is not None
        info = {"version": __version__, "work": "w", "ranks": 1, "attempt": 0}
        link = Link(Head(join.addresses, join.port, join.server_key), join.client, OTHER, slot=1, info=info)

        def until(is_so: Callable[[], bool]) -> None:
            def talk() -> bool:
                ready = dict(poller.poll(20))
                daemon.turn(ready)
                daemon.sampled()
                link.read(ready)
                return is_so()

            wait_until(talk, 10.0, "both to have talked", every_s=SOON_S)

        try:
            link.register(poller)
            yield daemon, until
        finally:
            link.close()


@pytest.mark.parametrize("seen", [Phase.RUNNING, Phase.STARTING])
def test_ranks_of_a_node_that_joins_before_the_launcher_does_are_left_alone(tmp_path: Path, seen: Phase) -> None:
    """A head's supervisor is started again; another node's is quicker to join than its own launcher is to greet."""
    record_fleet(tmp_path, is_started=seen is Phase.RUNNING)
    with daemon_of(tmp_path, fleet=heads_file(tmp_path), clock_base_s=10.0) as daemon:
        assert daemon.engine.state.phase is seen
        poller = zmq.Poller()
        daemon.register(poller)
        join = msgspec.json.decode((tmp_path / "join").read_bytes(), type=JoinFile)
        assert join.client is not None
        info = {"version": __version__, "work": "w", "ranks": 1, "attempt": 0}
        link = Link(Head(join.addresses, join.port, join.server_key), join.client, OTHER, slot=1, info=info)
        try:
            link.register(poller)
            orders = pump(daemon, link, poller, 1.0)
            daemon.greeted(HELLO)
            orders += pump(daemon, link, poller, 10.0, until=lambda: OTHER in joined(tmp_path))
            orders += pump(daemon, link, poller, 0.5)
        finally:
            link.close()
    assert not [order for order in orders if isinstance(order, control_messages.Stop)], orders
    assert joined(tmp_path)[-1] == OTHER


def record_fleet(run_dir: Path, *, is_started: bool) -> None:
    """Two nodes are there; their ranks have been started, or are about to be."""
    engine, journal = Engine(), Journal(run_dir)
    ranks = [ev.Rank(global_rank=n, local_rank=0, pid=4241 + n, node=node) for n, node in enumerate((NODE, OTHER))]
    story: list[ev.Event] = [
        ev.RunOpened(
            run_id=run_dir.name, settings=ev.Settings(), node=NODE, command=[], world_size=1, wall_s=1.0, fleet=PLAN
        ),
        ev.NodeJoined(node=NODE, slot=0, ranks=1),
        ev.NodeJoined(node=OTHER, slot=1, ranks=1),
        *([ev.AttemptStarted(attempt=0, ranks=ranks)] if is_started else []),
    ]
    try:
        for number, event in enumerate(story):
            journal.append(event, engine.handle(event, float(number)), float(number))
    finally:
        journal.close()


def joined(folder: Path) -> list[str]:
    lines = [line.event for line in read_lines(folder) if line is not None]
    after = max((n for n, one in enumerate(lines) if isinstance(one, ev.SupervisorRestarted)), default=len(lines))
    return [one.node for one in lines[after:] if isinstance(one, ev.NodeJoined)]


def pump(
    daemon: Daemon, link: Link, poller: zmq.Poller, timeout_s: float, until: Callable[[], bool] = lambda: False
) -> list[object]:
    """Let both talk; what the node was ordered."""
    decoder: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
    orders: list[object] = []
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s and not until():
        ready = dict(poller.poll(20))
        daemon.turn(ready)
        orders += [decoder.decode(what.body) for what in link.read(ready) if isinstance(what, Body)]
    return orders
