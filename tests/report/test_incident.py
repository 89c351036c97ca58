"""An incident's folder: what is in it, and that it can be written again and again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.collect.ranks.look_files import write_look
from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.report import incident as rendering
from guardrun.supervisor.report.incident import incident_folders, incident_json, write_incident
from guardrun.supervisor.report.run_record import write_summary
from tests.report.samples import crash, hang, rank_look, run_file, summary, wall


def write(run_dir: Path, incident: Incident) -> Path:
    return write_incident(run_dir, incident, run_file(), wall)


def take_look(run_dir: Path, name: str, at_s: float = 40.0) -> str:
    """A look's files, as the collectors write them."""
    assert write_look(run_dir / "looks" / name, [rank_look(rank, at_s) for rank in range(2)], {}) == ""
    return f"looks/{name}"


def taken_at(path: Path) -> str:
    return path.read_text().splitlines()[1]


def test_incident_json_is_what_the_contract_says() -> None:
    record = incident_json(hang(), run_file(), wall)
    evidence = record.pop("evidence")
    assert record == {
        "schema": 1,
        "id": "001",
        "run_id": "20261118-vocab-1a2b",
        "attempt": 0,
        "kind": "hang",
        "cause": "rank_blocked",
        "confidence": 0.95,
        "summary": "Rank 1 on node-a has waited 33 s in fetch_vocabulary_update (train.py:73); "
        "7 ranks wait for it in all_reduce.",
        "culprits": [{"rank": 1, "local_rank": 1, "node": "node-a", "pid": 4242, "gpu": None}],
        "onset": "2026-11-18T11:06:50.000Z",
        "detected": "2026-11-18T11:07:23.100Z",
        "acted": "2026-11-18T11:07:24.100Z",
        "step": 60,
        "advice": "Give the call a timeout.",
        "action": "restart",
        "resumed_from": {"path": "/home/user/project/out/ckpt_40.pt", "step": 40},
        "recovered": "2026-11-18T11:07:29.000Z",
    }
    assert evidence["silent_s"] == 33.1


def test_what_is_not_known_is_null() -> None:
    record = incident_json(hang(step=None, resumed_from=None, recovered_s=None), run_file(), wall)
    assert (record["step"], record["resumed_from"], record["recovered"]) == (None, None, None)


def test_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, hang(looks=[take_look(tmp_path, "0-1")]))
    assert folder == tmp_path / "incidents" / "001-rank_blocked"
    assert json.loads((folder / "incident.json").read_text()) == incident_json(hang(), run_file(), wall)
    assert sorted(path.name for path in (folder / "stacks").glob("*.txt")) == [
        "rank-0-pid-4241.txt",
        "rank-0-pid-5241.txt",
        "rank-1-pid-4242.txt",
        "rank-1-pid-5242.txt",
    ]
    assert "stacks/rank-1-pid-4242.txt" in (folder / "report.html").read_text()
    assert not list(folder.rglob(".*")), "temporary files are left"
    assert oct((tmp_path / "incidents").stat().st_mode & 0o777) == "0o700"


def test_writing_again_replaces_what_changed(tmp_path: Path) -> None:
    folder = write(tmp_path, hang(recovered_s=None))
    assert json.loads((folder / "incident.json").read_text())["recovered"] is None
    assert write(tmp_path, hang()) == folder
    assert json.loads((folder / "incident.json").read_text())["recovered"]
    assert "recovered" in (folder / "report.html").read_text()


def test_a_cause_that_changes_renames_the_folder(tmp_path: Path) -> None:
    old = write(tmp_path, hang(looks=[take_look(tmp_path, "0-1")]))
    new = write(tmp_path, hang(cause="poison_step"))
    assert new.name == "001-poison_step"
    assert not old.exists()
    assert (new / "stacks" / "rank-1-pid-4242.txt").exists()
    assert incident_folders(tmp_path) == [new]


def test_the_last_look_is_on_top_and_earlier_ones_below(tmp_path: Path) -> None:
    looks = [take_look(tmp_path, f"0-{number}", at_s=40.0 + number) for number in (1, 2, 3)]
    stacks = write(tmp_path, hang(looks=looks)) / "stacks"
    name = "rank-1-pid-4242.txt"
    assert taken_at(stacks / name) == "at 43.00 s of the run"
    assert taken_at(stacks / "look-1" / name) == "at 41.00 s of the run"
    assert taken_at(stacks / "look-2" / name) == "at 42.00 s of the run"


@pytest.mark.parametrize("is_pruned", [False, True])
def test_looks_that_come_later(tmp_path: Path, is_pruned: bool) -> None:
    """Whether or not the earlier ones are still in RUN/looks."""
    looks: list[str] = []
    name = "rank-1-pid-4242.txt"
    for number in (1, 2, 3):
        looks.append(take_look(tmp_path, f"0-{number}", at_s=40.0 + number))
        for _ in range(2):
            stacks = write(tmp_path, hang(looks=looks)) / "stacks"
        if is_pruned:
            for path in sorted((tmp_path / looks[-1]).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            (tmp_path / looks[-1]).rmdir()
    found = {str(path.relative_to(stacks)): taken_at(path) for path in stacks.rglob(name)}
    assert found == {
        name: "at 43.00 s of the run",
        f"look-1/{name}": "at 41.00 s of the run",
        f"look-2/{name}": "at 42.00 s of the run",
    }


def test_writing_again_leaves_the_stacks_that_are_there_to_their_readers(tmp_path: Path) -> None:
    incident = hang(looks=[take_look(tmp_path, "0-1"), take_look(tmp_path, "0-2", at_s=43.0)])
    raw = tmp_path / "looks" / "0-2" / "raw"
    raw.mkdir(exist_ok=True)
    (raw / "pid-1.json").write_text("[]")
    stacks = write(tmp_path, incident) / "stacks"
    folders = [stacks, *(path for path in stacks.rglob("*") if path.is_dir())]
    assert stacks / "raw" in folders
    before = [(path, path.stat().st_mtime_ns) for path in folders]
    write(tmp_path, hang(looks=incident.looks, recovered_s=99.0))
    assert [(path, path.stat().st_mtime_ns) for path in folders] == before


def test_a_look_that_is_gone_is_no_error(tmp_path: Path) -> None:
    folder = write(tmp_path, hang(looks=["looks/none", "looks/nothing"]))
    assert list((folder / "stacks").iterdir()) == []


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have none: then files are copied."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = write(tmp_path, hang(looks=[take_look(tmp_path, "0-1")]))
    assert taken_at(folder / "stacks" / "rank-0-pid-4241.txt") == "at 40.00 s of the run"


def test_text_that_is_no_unicode(tmp_path: Path) -> None:
    """A path of other bytes than UTF-8 reaches us with lone surrogates."""
    folder = write(tmp_path, hang(summary="in caf\udce9.py", evidence={"ranks": [{"rank": 0, "at": "\udce9"}]}))
    assert json.loads((folder / "incident.json").read_text())["summary"] == "in caf?.py"
    assert "in caf?.py" in (folder / "report.html").read_text()


def test_a_page_that_cannot_be_made_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise KeyError("oops")

    monkeypatch.setattr(rendering, "report_html", fail)
    folder = write(tmp_path, crash())
    page = (folder / "report.html").read_text()
    assert "KeyError" in page and "&lt;script&gt;" in page
    assert (folder / "incident.json").exists()


def test_an_unwritable_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("in the way")
    with pytest.raises(OSError):
        write(tmp_path, hang())


def test_incidents_in_their_order(tmp_path: Path) -> None:
    for number in ("010", "002", "999", "1000"):
        write(tmp_path, hang(id=number))
    (tmp_path / "incidents" / "500-unfinished").mkdir()
    assert [folder.name[:4].rstrip("-") for folder in incident_folders(tmp_path)] == ["002", "010", "999", "1000"]


def test_summary_json(tmp_path: Path) -> None:
    data = msgspec.json.decode(write_summary(tmp_path, summary(), run_file(), wall).read_bytes())
    assert data["outcome"] == "gave_up" and data["exit_code"] == 1 and data["goodput"] == 0.6123
    assert data["started"] == "2026-11-18T11:06:40.000Z" and data["ended"] == "2026-11-18T11:07:51.250Z"
    assert data["lost_s"]["detecting"] == 33.1
    [attempt] = data["attempts"]
    assert attempt["started"] == "2026-11-18T11:06:40.250Z" and attempt["ended_s"] == 43.5
    assert data["incidents"] == [{"id": "001", "kind": "hang", "cause": "rank_blocked"}]
    assert "spike_score" not in data
    score: dict[str, float | int] = {"loss": 0.0002, "losses": 5000}
    told = msgspec.json.decode(write_summary(tmp_path, summary(spike_score=score), run_file(), wall).read_bytes())
    assert told["spike_score"] == score
