"""A restart that does not take up what is there, on real scripts; and those that do, each in its own way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.saves.overwrite_guard import HOLD_S
from tests.runs.runs import RESUME, EdgeRuns, only, own_lines
from tests.support.guardrun_run import Finished


def steps_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Per file, the step and the attempt that it is of."""
    import torch  # not where this file is only collected: it takes more than a second

    return {
        path.name: (state["step"], state["attempt"])
        for path in sorted((folder / "out").glob("*.pt"))
        for state in [torch.load(path)]
    }


def run(edge: EdgeRuns, *arguments: str, ranks: int = 1, config: str = "") -> Finished:
    return edge.run("anew.py", *arguments, ranks=ranks, config=config)


def kept(finished: Finished) -> dict[str, Any]:
    assert finished.run_dir is not None
    about: dict[str, Any] = json.loads((finished.run_dir / "kept.json").read_text())
    return about


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ((), ""),
        (("--save-first",), ""),
        (("--save-on-sigterm", "--step-s", "0.1"), ""),
        ((), RESUME),
    ],
    ids=["trains", "saves first", "saves on SIGTERM", "is told, and does not listen"],
)
def test_a_script_that_begins_anew_never_writes_over_what_is_there(
    edge: EdgeRuns, arguments: tuple[str, ...], config: str
) -> None:
    """Long on a busy machine: two attempts and more."""
    import torch  # not where this file is only collected: it takes more than a second

    finished = run(edge, "--steps", "60", *arguments, config=config)
    assert finished.returncode == 1, "the script's own, as under torchrun"
    assert steps_in(edge.folder) == {"ckpt.pt": (20, 0)}
    incident = only(finished)
    path = str(edge.folder / "out" / "ckpt.pt")
    assert (incident["cause"], incident["action"], incident["resumed_from"]) == ("exception", "give_up", None)
    assert incident["recovered"] is None
    assert f"began anew beside {path} (step 20)" in incident["evidence"]["not_resumed"]
    assert finished.summary is not None
    assert [one["outcome"] for one in finished.summary["attempts"]] == ["exception", "not resumed"]
    assert (finished.summary["outcome"], finished.summary["resumes"]) == ("gave_up", "ignores")
    assert "done" not in finished.stdout and "saved on SIGTERM" not in finished.stdout
    told = own_lines(finished)
    assert any(line.startswith("giving up: the script began anew") for line in told)
    assert any("(--init_from=resume): [checkpoint] resume_args" in line for line in told)
    assert "training is past" not in finished.stderr
    assert torch.load(kept(finished)["path"])["step"] == 20


def test_it_is_not_tried_again_in_the_next_run_and_said_how_goes_on(edge: EdgeRuns) -> None:
    """Long on a busy machine: three runs, one after the other."""
    run(edge, "--takes", "never")
    (edge.folder / "out" / "ckpt.pt").unlink()
    finished = run(edge, "--takes", "never")
    assert finished.summary is not None
    assert [one["outcome"] for one in finished.summary["attempts"]] == ["exception"]
    assert "began anew beside a checkpoint before" in finished.summary["reason"]
    assert finished.run_dir is not None
    resumed = edge.run(
        "anew.py", "--takes", "exists", ranks=1, flags=(f"--guard-run-id={finished.run_dir.name}",), config=RESUME
    )
    assert resumed.returncode == 0
    assert "attempt 1 rank 0: starts at step 20" in resumed.stdout


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        (("--takes", "exists"), 1),
        (("--takes", "rank0"), 2),
        (("--takes", "exists", "--name", "ckpt_{step}.pt"), 1),
        (("--takes", "bucket", "--name", "ckpt_{step}.pt"), 1),
    ],
    ids=["looks for it", "one rank for all", "a file a step", "fetches it from elsewhere"],
)
def test_one_that_resumes_by_itself_is_never_kept_waiting(
    edge: EdgeRuns, arguments: tuple[str, ...], ranks: int
) -> None:
    """Long on a busy machine: two attempts and more."""
    finished = run(edge, *arguments, ranks=ranks)
    assert (finished.returncode, [one["action"] for one in finished.incidents]) == (0, ["restart"])
    assert "attempt 1 rank 0: starts at step 20" in finished.stdout
    took_s = re.search(r"attempt 1 rank 0: done after (\S+) s", finished.stdout)
    assert took_s is not None and float(took_s[1]) < HOLD_S
    assert finished.summary is not None
    assert finished.summary["resumes"] == "opens"
    assert finished.run_dir is not None
    assert not (finished.run_dir / "kept").exists(), "nothing is left once all is well"


def test_whoever_asks_for_torchrun_s_restarts_gets_them(edge: EdgeRuns) -> None:
    """Long on a busy machine: training has to last until it has been told."""
    finished = edge.run("anew.py", "--steps", "600", ranks=1, config="", flags=("--max-restarts=2",))
    assert finished.returncode == 0
    assert steps_in(edge.folder) == {"ckpt.pt": (600, 1)}
    assert any(line.startswith("as far as can be seen, the script began anew beside") for line in own_lines(finished))


def test_with_nothing_to_lose_it_begins_anew(edge: EdgeRuns) -> None:
    """Long on a busy machine: two attempts and more."""
    finished = run(edge, "--takes", "never", "--crash-at", "5")
    assert finished.returncode == 0
    assert steps_in(edge.folder) == {"ckpt.pt": (40, 1)}


def test_one_that_counts_anew_is_ended_at_its_first_save(edge: EdgeRuns) -> None:
    """It takes the weights alone: what it has written over is in the kept copy's place no more, the newest one is."""
    import torch  # not where this file is only collected: it takes more than a second

    finished = run(edge, "--takes", "weights", "--name", "ckpt_{step}.pt", "--step-s", "0.1")
    assert finished.returncode == 1
    assert steps_in(edge.folder) == {"ckpt_10.pt": (10, 1), "ckpt_20.pt": (20, 0)}
    assert finished.summary is not None
    assert "saved " in finished.summary["reason"] and "ckpt_10.pt after " in finished.summary["reason"]
    assert torch.load(kept(finished)["path"])["step"] == 20


def test_a_save_that_is_cut_off_in_place_leaves_the_copy_to_resume_from(edge: EdgeRuns) -> None:
    """Long on a busy machine: three attempts."""
    finished = run(edge, "--takes", "exists", "--cut-at", "30")
    assert finished.returncode == 0
    assert [one["cause"] for one in finished.incidents] == ["exception", "killed"]
    assert finished.run_dir is not None
    assert finished.incidents[1]["resumed_from"] == {"path": str(finished.run_dir / "kept" / "ckpt.pt"), "step": 20}
    assert "attempt 2 rank 0: starts at step 20" in finished.stdout
    assert steps_in(edge.folder) == {"ckpt.pt": (40, 2)}


def test_a_reader_that_no_hook_knows_is_seen_by_the_kernel(edge: EdgeRuns) -> None:
    """plain.py reads its bytes itself, and says its own steps."""
    finished = edge.run("plain.py", "--plan", "0:raise@25:0", "--steps", "60", config=RESUME)
    assert finished.returncode == 0
    assert only(finished)["resumed_from"]["step"] == 20
    assert finished.run_dir is not None
    told = [json.loads(line) for line in (finished.run_dir / "events.jsonl").read_text().splitlines()]
    opened = [line["event"] for line in told if line.get("event", {}).get("type") == "checkpoint_opened"]
    assert [(one["attempt"], one["path"]) for one in opened] == [(1, str(edge.folder / "out" / "ckpt_20.safetensors"))]
