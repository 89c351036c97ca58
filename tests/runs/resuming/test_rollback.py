"""Training whose loss goes to NaN for one batch, and ends as if it had not."""

from __future__ import annotations

import json
import math

from tests.runs.runs import RESUME, EdgeRuns, check_show, only, own_lines

CONFIG = RESUME + '[guards]\nnumeric = "rollback"\n'
BAD_SAMPLE = 261


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
    assert set(skipped.values()) == {"it was written when training had gone wrong"}
    assert not {str(folder / f"ckpt_{step}.pt") for step in (20, 40, 60)} & set(skipped)
    assert "as if it had not been: True" in finished.stdout
    assert any("back to a checkpoint from before step 67" in line for line in own_lines(finished))
    assert finished.summary is not None and finished.summary["outcome"] == "finished"
    check_show("NaN", finished)


def test_the_only_checkpoint_of_a_script_that_renames_it_and_saves_when_it_is_told_to_end(edge: EdgeRuns) -> None:
    """Written within a second of the bad step; what a handler of SIGTERM would put in its place is of NaN."""
    finished = edge.run("nan_once.py", "--keeps-one", config=CONFIG)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert incident["resumed_from"] == {"path": str(edge.folder / "out/last.pt"), "step": 60}
    assert "as if it had not been: True" in finished.stdout


def test_a_batch_that_would_do_it_again_is_left_out(edge: EdgeRuns) -> None:
    finished = edge.run("nan_sample.py", config=CONFIG)
    assert finished.returncode == 0, finished
    incident = only(finished)
    evidence, rank, step = incident["evidence"], incident["culprits"][0]["rank"], incident["step"]
    [bad] = evidence["indices"][str(rank)]
    assert BAD_SAMPLE in bad and len(bad) == 4
    left_out = evidence["left_out_batches"]
    assert left_out[str(rank)] == [bad] and len(left_out["0"]) == len(left_out["1"]) == 1
    assert evidence["batches_to_leave_out"] == left_out
    assert finished.summary is not None
    [booked] = finished.summary["left_out"]
    assert booked["ranks"] == left_out
    assert (booked["incident"], booked["attempt"], booked["step"]) == (incident["id"], 1, step)
    for number in (0, 1):
        told = json.loads((edge.folder / f"out/trained-1-{number}.json").read_text())
        assert math.isfinite(told["loss"]) and told["step"] == 59
        order = whole_order(number)
        assert order[step - 1] == left_out[str(number)][0]
        resumed = incident["resumed_from"]["step"]
        assert told["trained"] == order[resumed : step - 1] + order[step:]
        # Another loader hands out the same batches, and all of them.
        assert told["checked"] == sorted(index for batch in order for index in batch)


def whole_order(rank: int) -> list[list[int]]:
    """What the script's sampler hands out in its first epoch."""
    from torch.utils.data import DistributedSampler

    sampler: DistributedSampler = DistributedSampler(range(480), num_replicas=2, rank=rank, seed=5)  # type: ignore[arg-type]
    indices = list(sampler)
    return [indices[at : at + 4] for at in range(0, len(indices), 4)]
