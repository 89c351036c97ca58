"""Templates: what a run says stays text wherever it stands, and a page that cannot be made from one is still a page."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from jinja2 import StrictUndefined, UndefinedError

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Culprit
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, Stack
from guardrun.supervisor.report.elements import html_page
from guardrun.supervisor.report.elements.source_lines import Source
from guardrun.supervisor.report.incident import incident_json, write_incident
from guardrun.supervisor.report.incident_page import report_html
from guardrun.supervisor.report.run_page import run_html
from guardrun.supervisor.report.timeline.story import RunIncident, run_story
from tests.report.pages import run_data
from tests.report.samples import hang, run_file, story_of, told_timeline, wall
from tests.report.soundness import Hostile, check


def test_what_a_run_says_is_text_wherever_it_stands() -> None:
    bad = Hostile()
    rank = {"rank": 1, "judgement": bad(), "at": bad(), "reason": bad(), "phase": bad(), "state": bad(), "node": bad()}
    call = {"group": bad(), "seq": 3, "op": bad(), "sizes": bad(), "state": bad(), "ranks": bad(), "where": bad()}
    group = {"name": bad(), "desc": bad(), "ranks": bad(), "issued": bad(), "source": bad()}
    side = {"ranks": bad(), "call": bad(), "seq": bad(), "group": bad()}
    worker = {"rank": 1, "standing": bad(), "at": bad(), "file": bad(), "dead_mount": bad()}
    evidence = {
        "ranks": [rank],
        "waits": [{"ranks": [0], "for": [1], "group": bad(), "seq": 3, "op": bad(), "where": bad()}],
        "traceback": bad(),
        "collectives": {"rows": [call], "groups": [group], "trouble": [bad()]},
        "mismatch": {"sides": [side], "told_by": bad()},
        "workers": [worker],
        "readings": [{"name": bad(), "value": bad(), "note": bad()}, {"name": "x", "value": 1.5, "unit": bad()}],
        "skipped_checkpoints": [{"path": bad(), "reason": bad()}],
        "recurrence": {"said": bad()},
        bad(): bad(),
    }
    incident = hang(
        cause=bad(),
        summary=bad(),
        advice=f"{bad()}\n\n{bad()}",
        culprits=[Culprit(rank=1, local_rank=1, node=bad(), pid=4242)],
        resumed_from=Checkpoint(path=bad(), step=40),
        action=bad(),
        evidence=evidence,
    )
    file = bad()
    frames = [Frame(bad(), bad(), 1), Frame(bad(), file, 2)]
    stacks = [
        Stack(rank=1, pid=1, frames=frames, note=bad()),
        Stack(rank=1, pid=2, kind=CHILD, name=bad(), frames=[Frame(bad(), bad(), 3)]),
    ]
    sources = {file: Source(lines=["", bad()], trouble=bad())}
    timeline = told_timeline()
    gauge = bad(), bad()
    for at_s in (47.0, 48.0):
        told = ev.NodeFindingsReported(node="n", findings=[], gauges=[ev.Gauge(at_s, *gauge, 1.0)])
        timeline.feed(told, at_s)
    record = incident_json(incident, run_file(run_id=bad()), wall)
    page = report_html(record, stacks, [f"stacks/{bad()}"], story_of(incident, timeline), sources)
    assert len(bad.said) > 50
    assert bad.missing_in(page) == []


def test_so_it_is_on_a_runs_page() -> None:
    bad = Hostile()
    incident = run_data()["incidents"][0] | {"cause": bad(), "summary": bad(), "action": bad(), "onset": "x"}
    attempt = {"attempt": 0, "started": "x", "outcome": bad(), "incident": bad(), "resumed_from": {"step": bad()}}
    data = run_data(
        run_id=bad(),
        run_dir=bad(),
        node=bad(),
        nodes=[bad(), bad()],
        command=[bad()],
        reason=bad(),
        outcome=bad(),
        started=bad(),
        ended=bad(),
        incidents=[incident],
        attempts=[attempt],
        troubles=[bad()],
    )
    page = run_html(data, run_story(told_timeline(), [RunIncident(bad(), bad(), 10.0, 49.0)]))
    assert bad.missing_in(page) == []


def test_templates_escape_by_themselves_and_know_all_names() -> None:
    environment = html_page.environment()
    assert environment.autoescape is True and environment.undefined is StrictUndefined
    assert environment.from_string("{{ said }}").render(said="<b>&\r\u202e") == "&lt;b&gt;&amp;\n\\u202e"
    with pytest.raises(UndefinedError):
        environment.from_string("{{ nothing }}").render()
    for template in html_page.TEMPLATES.iterdir():
        assert not re.search(r"\bsafe\b|autoescape", template.read_text()), template
    assert html_page.STYLE in report_html(incident_json(hang(), run_file(), wall), [])


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Nothing has been loaded; and is not when the test is over."""
    html_page._loading.cache_clear()
    yield
    html_page._loading.cache_clear()


def test_who_waits_for_templates_in_vain_is_told_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    never: Future[Any] = Future()
    monkeypatch.setattr(html_page, "_loading", lambda: never)
    with pytest.raises(TimeoutError, match=r"templates could not be read within 0\.01 s"):
        html_page.environment(0.01)


def written(tmp_path: Path) -> str:
    folder = write_incident(tmp_path, hang(summary="Rank 1 <b> hangs."), run_file(), wall)
    assert (folder / "incident.json").exists()
    page = (folder / "report.html").read_text()
    assert html_page.STYLE in page
    return check(page)


@pytest.mark.usefixtures("unloaded")
def test_without_templates_a_page_has_the_sentence_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ImportError("No module named 'jinja2'")

    monkeypatch.setattr(html_page, "_load", fail)
    text = written(tmp_path)
    assert "Rank 1 <b> hangs." in text and "No module named 'jinja2'" in text


@pytest.mark.usefixtures("unloaded")
def test_templates_that_cannot_be_read_hold_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie where guardrun is installed: that mount may be what the run has died of."""
    answers = threading.Event()
    load = html_page._load

    def load_late() -> Any:
        answers.wait(30)
        return load()

    monkeypatch.setattr(html_page, "_load", load_late)
    monkeypatch.setattr(html_page, "LOAD_S", 0.1)
    html_page.load_soon()
    try:
        assert "TimeoutError" in written(tmp_path)
    finally:
        answers.set()
    monkeypatch.setattr(html_page, "LOAD_S", 30.0)
    assert "Who waits for whom" in written(tmp_path), "the next page is as ever"


@pytest.mark.usefixtures("unloaded")
def test_no_more_threads_is_no_reason_to_stop_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    html_page.load_soon()
    monkeypatch.undo()
    assert html_page.environment().list_templates(), "the next page tries again"
