"""From which checkpoint the next attempt goes on, and how the script gets to know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, EdgeRuns, only, ordered_lines, own_lines

BY_ENV = RESUME + 'resume_env = { MY_RESUME = "{step}:{dir}" }\n'


def starts(stdout: str, attempt: int) -> list[str]:
    """What each rank of an attempt said when it started."""
    return re.findall(rf"attempt {attempt} rank \d: starts (.*)", stdout)


def test_a_torn_newest_checkpoint_is_skipped_and_named_and_the_one_before_it_taken(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:tear@35:0", config=BY_ENV)
    incident = only(finished)
    folder = edge.folder / "out"
    assert finished.returncode == 0
    assert incident["resumed_from"] == {"path": str(folder / "ckpt_30.safetensors"), "step": 30}
    skipped = incident["evidence"]["skipped_checkpoints"]
    assert [entry["path"] for entry in skipped] == [str(folder / "ckpt_99.safetensors")]
    assert re.search(r"\d+ bytes", skipped[0]["reason"])
    said = own_lines(finished)
    assert f"skipped checkpoint {folder}/ckpt_99.safetensors: {skipped[0]['reason']}" in said
    assert f"starting attempt 1: resuming from {folder}/ckpt_30.safetensors (step 30)" in said
    assert (folder / "ckpt_99.safetensors").stat().st_size == 600  # never touched


def test_a_checkpoint_that_holds_up_whoever_looks_into_it_holds_up_nobody(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:bomb@35:0", config=BY_ENV)
    incident = only(finished)
    folder = edge.folder / "out"
    assert finished.returncode == 0
    assert incident["resumed_from"] == {"path": str(folder / "ckpt_30.safetensors"), "step": 30}
    skipped = {entry["path"]: entry["reason"] for entry in incident["evidence"]["skipped_checkpoints"]}
    assert skipped[str(folder / "ckpt_99.pt")].startswith("could not be judged: ")


def test_the_script_is_told_by_arguments_and_by_environment(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:kill@25:0", config=BY_ENV)
    out = edge.folder / "out"
    assert (
        starts(finished.stdout, 0)
        == ["at step 0 GUARDRUN_RESUME_FROM=None GUARDRUN_RESUME_STEP=None MY_RESUME=None"] * 2
    )
    assert (
        starts(finished.stdout, 1)
        == [f"at step 20 GUARDRUN_RESUME_FROM={out}/ckpt_20.safetensors GUARDRUN_RESUME_STEP=20 MY_RESUME=20:{out}"] * 2
    )


def test_without_any_resume_setting_the_environment_still_tells_and_the_arguments_stay(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:kill@25:0", config='[checkpoint]\ndir = "out"\n')
    told = starts(finished.stdout, 1)
    assert len(told) == 2
    assert all(text.startswith("at step 0 GUARDRUN_RESUME_FROM=") and "STEP=20" in text for text in told)


@pytest.mark.parametrize("kind", ["no folder", "empty folder", "nothing of ours", "garbage"])
def test_where_nothing_whole_lies_it_starts_from_the_beginning_and_says_so(edge: EdgeRuns, kind: str) -> None:
    out = edge.folder / "out"
    if kind != "no folder":
        out.mkdir()
    if kind == "nothing of ours":
        (out / "notes.txt").write_text("lr 3e-4")
        (out / "model.onnx").write_bytes(bytes(4096))
        (out / "checkpoint-40").mkdir()
    if kind == "garbage":
        (out / "ckpt_40.pt").write_bytes(b"PK\x03\x04" + bytes(4096))
        (out / "ckpt_50.pt").write_bytes(b"")
    finished = edge.run("plain.py", "--plan", "0:kill@5:1", "--steps", "20")
    assert finished.returncode == 0
    assert only(finished)["resumed_from"] is None
    assert ordered_lines(finished)[-2] == "starting attempt 1: no whole checkpoint, so from the beginning"
    assert all(text.startswith("at step 0 ") for text in starts(finished.stdout, 1))


def test_another_run_s_checkpoints_in_the_same_folder_are_not_taken(edge: EdgeRuns) -> None:
    first = edge.run("plain.py", "--steps", "40")
    second = edge.run("plain.py", "--plan", "0:kill@5:1", "--steps", "20")
    assert first.returncode == second.returncode == 0
    assert first.run_dir != second.run_dir
    assert only(second)["resumed_from"] is None


def test_with_resume_first_they_are_and_the_first_attempt_starts_from_them(edge: EdgeRuns) -> None:
    edge.run("plain.py", "--steps", "40")
    finished = edge.run("plain.py", "--steps", "60", "--plan", "0:kill@45:1", config=RESUME + "resume_first = true\n")
    assert finished.returncode == 0
    assert [text.split()[2] for text in starts(finished.stdout, 0)] == ["40", "40"]
    assert only(finished)["resumed_from"]["step"] == 40  # started from it, so it is this run's, too


@pytest.mark.parametrize("written", ["in order", "clock set back"])
def test_the_newest_is_the_one_saved_last_whatever_the_clock_says(edge: EdgeRuns, written: str) -> None:
    """torch.save, seen by the hooks; no folder is configured. A clock set back dates the later files earlier."""
    arguments = ["--plan", "0:kill@25:1", "--steps", "30"]
    if written == "clock set back":
        arguments += ["--clock-back", "15"]
    finished = edge.run("train.py", *arguments, config='[checkpoint]\nresume_args = ["--resume", "{path}"]\n')
    assert finished.returncode == 0
    assert only(finished)["resumed_from"] == {"path": str(Path(edge.folder, "out/ckpt_20.pt")), "step": 20}
    assert "attempt 1 rank 0: starts at step 20" in finished.stdout
