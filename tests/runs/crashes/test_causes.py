"""Causes and recurrence in whole runs, and against the words of the torch that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.supervisor.engine.failures.failure_causes import cause_of_error
from guardrun.supervisor.engine.model.events import ErrorRecord
from tests.runs.runs import EdgeRuns, only, own_lines, ranks_of

REAL_ERRORS = Path(__file__).parents[2] / "support" / "real_errors.py"
LIVE = {
    "load_truncated": "checkpoint_corrupt",
    "load_flipped_pickle": "checkpoint_corrupt",
    "load_flipped_pickle_unsafe": "checkpoint_corrupt",
    "load_empty": "checkpoint_corrupt",
    "load_zeros": "checkpoint_corrupt",
    "load_garbage": "checkpoint_corrupt",
    "load_legacy_truncated": "checkpoint_corrupt",
    "load_not_a_checkpoint_of_this_model": "exception",
    "dcp_without_metadata": "checkpoint_corrupt",
    "dcp_truncated": "checkpoint_corrupt",
    "dcp_missing_part": "checkpoint_corrupt",
    "worker_bus": "bus_error",
    "worker_raises": "exception",
    "worker_imports": "import_error",
    "worker_disk_full": "disk_full",
    "cpu_allocator": "host_oom",
    "wrapped_from": "checkpoint_corrupt",
}


def test_the_installed_torch_says_what_the_patterns_expect(tmp_path: Path) -> None:
    command = [sys.executable, str(REAL_ERRORS), str(tmp_path), "", *LIVE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    records = {name: ErrorRecord(**record) for name, record in json.loads(done.stdout).items()}
    assert {name: cause_of_error(record).cause for name, record in records.items()} == LIVE, records


def test_a_checkpoint_with_a_flipped_bit_is_told_named_and_not_taken_again(edge: EdgeRuns) -> None:
    """Long: four attempts, one after the other."""
    finished = edge.run("train.py", "--plan", "0:flip@25:0,0:kill@27:0", "--steps", "30")
    out = edge.folder / "out"
    assert finished.returncode == 0, finished
    killed, corrupt = finished.incidents
    assert killed["resumed_from"]["path"] == str(out / "ckpt_20.pt"), "its directory is whole"
    assert (corrupt["kind"], corrupt["cause"]) == ("crash", "checkpoint_corrupt")
    assert ranks_of(corrupt) in ([0, 1], [0], [1]), "the second may be ended before it has read as far"
    assert corrupt["evidence"]["checkpoint"] == str(out / "ckpt_20.pt")
    assert f"it was loading {out}/ckpt_20.pt" in corrupt["summary"]
    assert finished.run_dir is not None
    assert f'"failed_load":"{out}/ckpt_20.pt"' in (finished.run_dir / "events.jsonl").read_text(), "as the hooks said"
    assert str(out / "ckpt_20.pt") in corrupt["advice"]
    assert corrupt["resumed_from"] == {"path": str(out / "ckpt_10.pt"), "step": 10}
    assert corrupt["recovered"] is not None
    assert f"skipped checkpoint {out}/ckpt_20.pt: the script could not load it" in own_lines(finished)


def test_the_same_place_twice_is_said_in_a_run_and_in_the_next(edge: EdgeRuns) -> None:
    first = edge.run("plain.py", "--plan", "0:raise@15:1,1:raise@25:1", "--steps", "40")
    assert [incident["evidence"]["place"] for incident in first.incidents] == [
        "exception ValueError in load_sample (faults.py)"
    ] * 2
    again = first.incidents[1]
    assert again["summary"].endswith("; the 2nd time at this place in this run.")
    assert again["evidence"]["recurrence"]["earlier"] == ["001"]
    assert any(line == f"incident 002: {again['summary']}" for line in own_lines(first))
    second = edge.run("plain.py", "--plan", "0:raise@35:1", "--steps", "40")
    incident = only(second)
    day = again["detected"][:10]
    assert incident["summary"].endswith(f"; seen in 1 earlier run, last on {day}.")
    assert incident["evidence"]["recurrence"]["earlier_runs"] == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"evidence": 3}', b"\xff" * 100, b'{"evidence": {"place": 7}}'])
def test_what_earlier_runs_left_may_be_anything(tmp_path: Path, content: bytes) -> None:
    from guardrun.supervisor.daemon.earlier_runs import read_past

    for name in ("now", "before"):
        (tmp_path / name / "incidents" / "001-exception").mkdir(parents=True)
        (tmp_path / name / "run.json").write_bytes(b"{}")
    (tmp_path / "before" / "incidents" / "001-exception" / "incident.json").write_bytes(content)
    assert read_past(tmp_path / "now").places == []
