"""Data that is not what one thinks, told while training goes on, and nothing else is done about it."""

from __future__ import annotations

import json
from pathlib import Path

from guardrun.supervisor.engine.model.events import NodeReport
from guardrun.supervisor.rundir.journal import read_lines
from tests.runs.runs import SCRIPTS, EdgeRuns, finish
from tests.support.keep_group import KEEP_GROUP
from tests.support.waiting import wait_until

SCRIPT = str(SCRIPTS / "epochs.py")
TURNS, LOSSES = 4, 16
"""What a rank tells of a loader that it goes over again and again."""


def test_ranks_that_share_samples_and_an_order_that_repeats_are_told(edge: EdgeRuns, tmp_path: Path) -> None:
    run = edge.start(KEEP_GROUP, SCRIPT, "wrong", str(tmp_path / "stop"), config="")
    run.wait_for_output("note: both ranks train on the same samples")
    run.wait_for_output("note: samples come in the same order in every epoch")
    notes = [text for text in json.loads(run.guardctl("status", "--json"))["notes"] if "guardrun: " in text]
    assert {text.split(": ")[1] for text in notes} == {"same_samples", "same_order"}
    (tmp_path / "stop").touch()
    finished = finish(run)
    assert finished.returncode == 0 and finished.incidents == []
    assert finished.stderr.count("note: ") == 2, "each once"
    assert finished.summary is not None and finished.run_dir is not None
    told = {note["topic"]: note for note in finished.summary["notes"]}
    assert told["same_samples"]["evidence"]["ranks"] == "0-1"
    assert told["same_order"]["evidence"]["sampler_epoch"] == 0
    run.guardctl("report")
    page = (finished.run_dir / "report.html").read_text()
    assert "both ranks train on the same samples" in page and "set_epoch(epoch)" in page


def test_shares_of_their_own_in_a_new_order_are_not(edge: EdgeRuns, tmp_path: Path) -> None:
    run = edge.start(KEEP_GROUP, SCRIPT, "right", str(tmp_path / "stop"), config="")

    def is_seen() -> bool:
        if run.run_dir is None or not (run.run_dir / "events.jsonl").exists():
            return False
        orders, losses = [0, 0], [0, 0]
        for line in read_lines(run.run_dir):
            for report in line.event.ranks if line is not None and isinstance(line.event, NodeReport) else ():
                orders[report.global_rank] += len(report.samples)
                losses[report.global_rank] += len(report.losses)
        return orders == [TURNS, TURNS] and losses == [LOSSES, LOSSES]

    wait_until(is_seen, 60, "all that can be told")
    (tmp_path / "stop").touch()
    finished = finish(run)
    assert finished.returncode == 0 and finished.incidents == []
    assert "note: " not in finished.stderr
    assert finished.summary is not None and "notes" not in finished.summary
