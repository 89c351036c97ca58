"""A folder of runs, living ones with supervisors that answer, and `guardctl web` for it: one for a module's tests."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from guardrun.supervisor.cli.base.verb import BOOT_ID
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.report.incident import write_incident
from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import NODE, FakeSupervisor, keep_trace, make_run, record_journal, stacks_answer
from tests.report.samples import crash, hang, summary, wall
from tests.support.web_client import WebClient, environment
from tests.watch.stories import lines, status

BAD = "\"><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202e" + "long_name_" * 30
STEERING_REPORT = (
    "<!doctype html><title>report</title><script>parent.document.title='run';document.title='run'</script>"
    "<form action='/api/runs/vocab-1/order' method=post><input name=a></form>"
    "<meta http-equiv=refresh content='0;url=/'><img src='/page/icon.svg'><p id=here>The report</p>"
)
OVER, HUNG, MANY, HEALTHY, HOSTILE = "vocab-1", "hung-8", "many-1000", "healthy-2", "hostile-4"


class Served(NamedTuple):
    """The folder, its supervisors by the names of their runs, and the process."""

    folder: Path
    supervisors: dict[str, FakeSupervisor]
    web: WebClient
    start: Callable[[], WebClient]
    """Another one for the same folder."""


def hostile_status() -> dict[str, Any]:
    told = status(4, notes=[f"rank 0: {BAD}"], stall={"summary": BAD, "outlook": BAD, "who": [{"rank": 1}]})
    for rank in told["ranks"]:
        rank |= {"phase": BAD, "node": BAD, "state": BAD}
    told["nodes"] = [{"node": BAD, "role": BAD, "standing": BAD, "why": BAD}]
    return told


def _live(folder: Path, name: str, told: dict[str, Any], steps: int, incident: str) -> tuple[FakeSupervisor, Path]:
    sockets = Path(tempfile.mkdtemp(prefix="guardrun-"))
    me = read_stat(os.getpid())
    assert me is not None
    alive = {"launcher_pid": os.getpid(), "launcher_start": me.start, "boot_id": BOOT_ID.read_text().strip()}
    run_dir, run = make_run(folder, name, socket_dir=str(sockets), created_wall_s=time.time() - 300, **alive)
    (run_dir / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines(told["world_size"], steps)))
    if incident:
        write_incident(run_dir, hang(summary=incident, advice=incident), run, wall)
        keep_trace(run_dir, 1, 0)
    supervisor = FakeSupervisor(sockets)
    supervisor.answers = {verb: Answer(is_ok=True, data={"text": ""}) for verb in ("hold", "unhold", "restart")}
    supervisor.answers["status"] = Answer(is_ok=True, data={**told, "run_id": name})
    supervisor.answers["stacks"] = stacks_answer([0, 1, 2, 3])
    return supervisor, sockets


def lay_out(folder: Path) -> list[tuple[str, FakeSupervisor, Path]]:
    made = []
    for name, told, steps, incident in (
        (HUNG, status(8), 600, "Rank 1 hangs."),
        (MANY, status(1000), 40, ""),
        (HEALTHY, status(2, state="training", stall=None, incidents=[]), 600, ""),
        (HOSTILE, hostile_status(), 100, BAD),
    ):
        made.append((name, *_live(folder, name, told, steps, incident)))
    run_dir, run_file = make_run(folder, OVER)
    record_journal(run_dir)
    write_incident(run_dir, hang(), run_file, wall)
    write_incident(run_dir, crash(), run_file, wall)
    write_summary(run_dir, summary(), run_file, wall)
    (run_dir / "incidents" / "002-exception" / "report.html").write_text(STEERING_REPORT)
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("web")
    folder, runtime = base / "runs", base / "runtime"
    folder.mkdir()
    runtime.mkdir(mode=0o700)
    started: list[WebClient] = []

    def start() -> WebClient:
        started.append(WebClient(folder, environment(runtime, SLURMD_NODENAME=NODE)))
        return started[-1]

    made = lay_out(folder)
    try:
        yield Served(folder, {name: supervisor for name, supervisor, _ in made}, start(), start)
    finally:
        for one in started:
            one.close()
        for _, supervisor, sockets in made:
            supervisor.close()
            shutil.rmtree(sockets)
