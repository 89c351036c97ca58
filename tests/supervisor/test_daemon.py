"""The supervisor that decides, before its launcher is there: a run of which the journal already tells something."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor import wire
from guardrun.supervisor.core import events as ev
from guardrun.supervisor.daemon import Daemon
from guardrun.supervisor.journal import read_lines
from guardrun.supervisor.rundir import RunFile
from guardrun.supervisor.scribe import Scribe
from tests.ctl.conftest import record_journal
from tests.render.samples import run_file

EARLY = ev.PastRead(places=[])
HELLO = wire.LauncherHello(pid=1, world_size=2, attempt=-1, alive=[], is_first=True)


@contextmanager
def daemon_of(folder: Path, **changes: Any) -> Iterator[Daemon]:
    """A supervisor of the run in folder, without its loop."""
    (folder / "s").mkdir(exist_ok=True)
    run: RunFile = run_file(run_id=folder.name, socket_dir=str(folder / "s"), clock_mono_s=time.monotonic(), **changes)
    with ExitStack() as stack:
        scribe = Scribe()
        stack.callback(scribe.close)
        daemon = Daemon(folder, run, scribe)
        stack.callback(daemon.close)
        yield daemon


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
    assert told(tmp_path)[len(before) :] == ["RunContinued", "PastRead"]


def test_a_new_run_hears_what_came_before_its_launcher(tmp_path: Path) -> None:
    with daemon_of(tmp_path) as daemon:
        assert daemon.feed(EARLY)
        daemon.greeted(HELLO)
    assert told(tmp_path) == ["RunOpened", "PastRead"]


def test_a_supervisor_that_is_started_again_is_not_held_up(tmp_path: Path) -> None:
    """Its launcher may be the one that does not answer."""
    record_journal(tmp_path)
    with daemon_of(tmp_path, clock_base_s=10.0) as daemon:
        assert daemon.due_s() is not None
        daemon.feed(EARLY)
    assert told(tmp_path)[-1] == "PastRead"
