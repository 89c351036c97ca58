"""Training whose loss goes to NaN for one batch, and ends as if it had not."""

from __future__ import annotations

from tests.runs.runs import RESUME, EdgeRuns, only, own_lines

CONFIG = RESUME + '[guards]\nnumeric = "rollback"\n'


def test_training_goes_on_from_the_newest_checkpoint_before_it(edge: EdgeRuns) -> None:
    finished = edge.run("nan_once.py", config=CONFIG)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["cause"], incident["step"], incident["action"]) == ("nan_loss", 67, "restart")
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    folder = edge.folder / "out"
    assert incident["resumed_from"] == {"path": str(folder / "ckpt_60.pt"), "step": 60}
    assert incident["recovered"] is not None
    skipped = {entry["path"]: entry["reason"] for entry in incident["evidence"]["skipped_checkpoints"]}
    assert set(skipped.values()) == {"it was written while the loss was no number"}
    assert not {str(folder / f"ckpt_{step}.pt") for step in (20, 40, 60)} & set(skipped)
    assert "as if it had not been: True" in finished.stdout
    assert any("back to a checkpoint from before step 67" in line for line in own_lines(finished))
    assert finished.summary is not None and finished.summary["outcome"] == "finished"
