"""Runs of the real guardrun over the scripts of this folder, each held against its own record when it is over."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.engine.model.actions import WriteIncident
from guardrun.supervisor.engine.model.events import AttemptStarted
from guardrun.supervisor.report.elements.quantities import parse_iso_time
from guardrun.supervisor.rundir.journal import read_lines, replay
from guardrun.supervisor.rundir.run_directory import read_run_file
from tests.support import scenes
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.leaks import RESOURCE_TRACKER
from tests.support.waiting import wait_until

SCRIPTS = Path(__file__).parent / "scripts"

RESUME = """
[checkpoint]
dir = "out"
resume_args = ["--resume", "{path}"]
"""

QUICK = """
[hang]
floor_s = 2
sensitivity = "eager"
scale = 0.1
tell_s = 2
"""
"""Patience for tests: as patient as it must be to tell one thing from the other on two busy cores."""

USAGE_ERROR = 2
DATE_S = 2.0
STANDS_S = 10.0
"""A process that stands between two looks at its clocks has a line's date so late, now and then."""

INCIDENT_KEYS = {
    "schema", "id", "run_id", "attempt", "kind", "cause", "confidence", "summary", "culprits", "onset", "detected",
    "acted", "step", "evidence", "advice", "action", "resumed_from", "recovered",
}  # fmt: skip


def check_show(scene: str, finished: Finished, incident: str = "last", *, until: str = "") -> None:
    """What `guardctl show` prints of an incident is what docs/debugging.md shows of this scene."""
    assert finished.run_dir is not None
    folder = finished.run_dir.parents[1]
    printed = scenes.guardctl(folder, "show", incident, "--run", str(finished.run_dir))
    scenes.check(scene, "guardctl show last", printed, folder, until=until)


class EdgeRuns:
    """Starts runs in one folder; `close` ends them and checks what they left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._starter = GuardrunStarter(folder)
        self._runs: list[GuardrunRun] = []

    def start(
        self,
        script: str,
        *arguments: str,
        flags: tuple[str, ...] = (),
        config: str | None = RESUME,
        env: dict[str, str | None] | None = None,
        ranks: int = 2,
        program: list[str] | None = None,
    ) -> GuardrunRun:
        """Start guardrun with a script of this folder, or with ./PATH from where it is started.

        flags: guardrun's; config: TOML of guardrun.toml; program: what is run in guardrun's place.
        """
        starter = self._starter if program is None else GuardrunStarter(self.folder, program)
        script = script if script.startswith("./") else str(SCRIPTS / script)
        command = [f"--nproc-per-node={ranks}", *flags, script, *arguments]
        run = starter.start(command, config=config, env=env)
        self._runs.append(run)
        return run

    def run(self, script: str, *arguments: str, timeout_s: float = 120.0, **options: Any) -> Finished:
        """Start and wait for the end; nothing of the run may be alive then."""
        return finish(self.start(script, *arguments, **options), timeout_s)

    def close(self) -> None:
        """End what is left, and replay the journal of every run: each decision must be reached again."""
        for run in self._runs:
            run.close()
        for journal in self.folder.glob("guardrun-runs*/*/events.jsonl"):
            if not journal.parent.is_symlink():
                check_replay(journal.parent)


def finish(run: GuardrunRun, timeout_s: float = 120.0) -> Finished:
    """Wait for the end of a run, after which nothing of it may be alive."""
    finished = run.wait(timeout_s)
    wait_until(lambda: not run.find(RESOURCE_TRACKER), 10, "Python's own helper, which ends when the launcher has")
    left = run.alive()
    assert not left, f"alive after the end: {'; '.join(map(str, left))}\n{finished}"
    check_record(finished)
    return finished


def kill_all(run: GuardrunRun) -> None:
    """End all of it at one moment: whoever saw another end would still write something."""
    stopped: set[int] = set()
    while left := [process.pid for process in run.alive() if process.pid not in stopped]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
    run.close()


def starts(done: Finished) -> set[int]:
    """At which steps ranks have begun."""
    return {int(step) for step in re.findall(r"starts at step (\d+)", done.stdout)}


def check_record(finished: Finished) -> None:
    """What holds for every run: incidents as the contract has them, told alike everywhere, with a page for people."""
    if finished.run_dir is None:
        return
    for incident in finished.incidents:
        assert set(incident) == INCIDENT_KEYS
        folder = finished.run_dir / "incidents" / f"{incident['id']}-{incident['cause']}"
        told = [path.name for path in (finished.run_dir / "incidents").iterdir()]
        assert folder.is_dir(), f"no {folder.name} among {told}"
        page = (folder / "report.html").read_text()
        assert "<html" in page
        assert re.search(r"src=[\"']?https?:|href=[\"']?https?:", page) is None, "the page needs the network"
        assert incident["onset"] <= incident["detected"] <= (incident["acted"] or incident["detected"])
        assert incident["summary"].endswith((".", "!")) and "\n" not in incident["summary"]
    if finished.summary is not None and finished.returncode != USAGE_ERROR:
        assert [i["id"] for i in finished.summary["incidents"]] == [i["id"] for i in finished.incidents]
        assert [i["summary"] for i in finished.summary["incidents"]] == [i["summary"] for i in finished.incidents]
        assert finished.summary["exit_code"] == finished.returncode


def check_replay(run_dir: Path) -> None:
    result = replay(run_dir)
    assert not result.mismatches, f"{run_dir}: {result.mismatches[:3]}"


def check_dates(run_dir: Path) -> None:
    """What is dated has the date at which the journal told it, whichever supervisor, or guardrun, wrote it last."""
    run = read_run_file(run_dir)
    told: dict[str, float] = {}
    late: list[str] = []
    for line in read_lines(run_dir, with_rotated=True):
        if line is None:
            continue
        at_s = run.date_s(line.t)
        off_s = parse_iso_time(line.wall) - at_s
        assert abs(off_s) < STANDS_S, f"{run_dir}: line {line.n} is {off_s:.1f} s off"
        late += [f"line {line.n} is {off_s:.1f} s off"] if abs(off_s) >= DATE_S else []
        if isinstance(line.event, AttemptStarted):
            told.setdefault(f"attempt {line.event.attempt}", at_s)
        for action in line.actions:
            if isinstance(action, WriteIncident):
                told.setdefault(f"incident {action.incident.id}", at_s)
    assert len(late) <= 2, f"{run_dir}: {late}"
    summary = json.loads((run_dir / "summary.json").read_text())
    found = {f"attempt {one['attempt']}": one["started"] for one in summary["attempts"]}
    for path in (run_dir / "incidents").glob("*/incident.json"):
        incident = json.loads(path.read_text())
        # A stall is told before it is an incident, which it is when something is done about it.
        found[f"incident {incident['id']}"] = incident["acted"] or incident["detected"]
    assert found.keys() == told.keys()
    for name, date in found.items():
        off_s = parse_iso_time(date) - told[name]
        assert abs(off_s) < DATE_S, f"{name}: {date}, {off_s:.1f} s off"
    check_times(summary)
    for path in run_dir.glob("summary.*.json"):
        before = json.loads(path.read_text())
        dates = [one["started"] for one in before["attempts"]]
        since = [one["started"] for one in summary["attempts"][: len(dates)]]
        assert (before["started"], dates) == (summary["started"], since)


def check_times(summary: dict[str, Any]) -> None:
    """From start to end, every second is somewhere."""
    started_s, ended_s = parse_iso_time(summary["started"]), parse_iso_time(summary["ended"])
    wall_s = summary["wall_s"]
    assert ended_s - started_s == pytest.approx(wall_s, abs=0.01)
    assert sum(summary["lost_s"].values()) + summary["goodput"] * wall_s == pytest.approx(wall_s, rel=0.01)
    for attempt in summary["attempts"]:
        assert started_s <= parse_iso_time(attempt["started"]) <= parse_iso_time(attempt["ended"]) <= ended_s + 0.01


def only(finished: Finished) -> dict[str, Any]:
    """The run's one incident."""
    assert len(finished.incidents) == 1, f"{[i['cause'] for i in finished.incidents]}\n{finished}"
    return finished.incidents[0]


def ranks_of(incident: dict[str, Any]) -> list[int]:
    return [culprit["rank"] for culprit in incident["culprits"]]


def own_lines(finished: Finished) -> list[str]:
    """guardrun's own words on the terminal, without their prefix."""
    lines = finished.stderr.splitlines()
    return [line.removeprefix("guardrun: ") for line in lines if line.startswith("guardrun: ")]


def ordered_lines(finished: Finished) -> list[str]:
    """Those of them that come in order: a page's path is said once it is written, which may be after what is next."""
    return [line for line in own_lines(finished) if not line.startswith("report: ")]


def last_word(finished: Finished) -> str:
    """The last of these."""
    return ordered_lines(finished)[-1]


def read_log(run_dir: Path) -> list[dict[str, Any]]:
    """guardrun.log."""
    return [json.loads(line) for line in (run_dir / "guardrun.log").read_text().splitlines()]


def log_of(run: GuardrunRun) -> str:
    """guardrun.log of a run that may not have begun it yet, as text."""
    path = run.run_dir / "guardrun.log" if run.run_dir else None
    return path.read_text() if path is not None and path.exists() else ""


def journal_of(run: GuardrunRun) -> str:
    """events.jsonl likewise."""
    path = run.run_dir / "events.jsonl" if run.run_dir else None
    return path.read_text() if path is not None and path.exists() else ""
