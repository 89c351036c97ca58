"""guardctl report: a page for any run, whatever is left of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from guardrun.supervisor.rundir.journal import NAME
from tests.cli.conftest import Ctl, FakeSupervisor, make_run, record_journal
from tests.report.soundness import check
from tests.support.journals import set_version


def test_a_finished_run(ctl: Ctl, recorded: Path) -> None:
    assert ctl("report") == f"{recorded / 'report.html'}\n"
    page = (recorded / "report.html").read_text()
    text = check(page)
    for part in (
        "guardrun gave up at step 80 after 1 min 11 s, with 2 incidents and 1 restart",
        "the same error at the same step twice",
        "61.2%",
        "001 rank_blocked",
        "detecting",
        "rank 1",
    ):
        assert part in text, part
    assert 'href="incidents/001-rank_blocked/report.html"' in page


def test_elsewhere(ctl: Ctl, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    assert ctl("report", "vocab-1", "--output", "pages/x.html") == f"{tmp_path / 'pages' / 'x.html'}\n"
    page = (tmp_path / "pages" / "x.html").read_text()
    assert 'href="../guardrun-runs/vocab-1/incidents/001-rank_blocked/report.html"' in page
    assert not (recorded / "report.html").exists()
    ctl("report", "--output", "nowhere/x.html", code=1)
    assert "nowhere/x.html can't be written: No such file" in ctl.err


def test_json(ctl: Ctl, recorded: Path) -> None:
    data = ctl.json("report")
    assert data["page"] is None and not (recorded / "report.html").exists()
    assert (data["outcome"], data["state"], data["is_alive"], data["goodput"]) == ("gave_up", "ended", False, 0.6123)
    assert [i["id"] for i in data["incidents"]] == ["001", "002"]
    assert list(data["uses_s"]) == ["training", "detecting", "stopping", "starting", "redoing", "other"]
    assert data["troubles"] == []
    assert ctl.json("report", "--output", "x.html")["page"]


def test_a_run_that_broke_off(ctl: Ctl, recorded: Path) -> None:
    """No summary, a torn journal, an incident without its record."""
    (recorded / "summary.json").unlink()
    shutil.rmtree(recorded / "incidents")
    journal = recorded / NAME
    journal.write_bytes(journal.read_bytes()[:-40] + b'\n{"n": 9, "t"\n\xff\xfe\n')
    ctl("report")
    text = check((recorded / "report.html").read_text())
    assert "Training has not come to its end at step 20" in text
    assert "3 lines of the journal are torn" in text
    data = ctl.json("report")
    assert data["attempts"][0]["attempt"] == 0 and data["outcome"] is None


def test_a_journal_of_another_version(ctl: Ctl, recorded: Path) -> None:
    """It is drawn, but nothing is decided by it again."""
    set_version(recorded / NAME, 9)
    ctl("report")
    text = check((recorded / "report.html").read_text())
    said = "the journal has version 9, and this guardrun reads version 2: 5 lines are not replayed, and what guardrun"
    assert f"{said} decided is told by summary.json and the incidents alone" in text
    assert "guardrun gave up at step 80" in text and "001 rank_blocked" in text and "no timeline" not in text
    (recorded / "summary.json").unlink()
    assert ctl.json("report")["attempts"] == []


def test_a_run_without_a_journal(ctl: Ctl, runs: Path) -> None:
    run_dir, _ = make_run(runs, "empty-1")
    ctl("report")
    text = check((run_dir / "report.html").read_text())
    assert "the journal can't be read" in text and "no timeline" in text


def test_a_live_run(ctl: Ctl, live: FakeSupervisor, runs: Path) -> None:
    record_journal(runs / "live-1")
    ctl("report")
    assert "Training goes on at step 20" in check((runs / "live-1" / "report.html").read_text())


def test_another_schema(ctl: Ctl, recorded: Path) -> None:
    (recorded / "summary.json").write_text('{"schema": 9, "lost_s": null, "attempts": [7, {}], "incidents": {}}')
    incident = recorded / "incidents" / "001-rank_blocked" / "incident.json"
    incident.write_text('{"schema": 9, "onset": 7, "culprits": null}')
    ctl("report")
    assert "could not be drawn" not in check((recorded / "report.html").read_text())
