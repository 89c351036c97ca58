"""A rank that keeps more of each step than its memory holds for the whole training, which ends all the same."""

from __future__ import annotations

from tests.runs.runs import RESUME, EdgeRuns, check_show, own_lines, ranks_of

CONFIG = RESUME + '[guards]\nmemory = "save"\n[leaks]\nmemory_window_s = 1.5\n'
STEPS, MIB, ROOM_MIB = 400, 2, 600
STEP_S = 0.1
REDONE_S = 12.0
"""From the save until the attempt ends: until it is found whole, and a moment beyond; slow disks and busy machines."""


def test_it_is_saved_before_nothing_is_left_and_goes_on_from_there(edge: EdgeRuns) -> None:
    """It takes three quarters of a minute: growth is taken for a leak once several windows have shown it."""
    assert STEPS * MIB > 1.3 * ROOM_MIB, "one attempt can't come to the end"
    finished = edge.run(
        "train.py", "--asked", f"--steps={STEPS}", f"--step-s={STEP_S}", f"--hold={MIB}", "--save-every=100000",
        "--times=times", config=CONFIG,
    )  # fmt: skip
    assert finished.returncode == 0, finished
    assert finished.summary is not None and finished.summary["outcome"] == "finished"
    outcomes = [one["outcome"] for one in finished.summary["attempts"]]
    assert outcomes[0] == "host_leak" and set(outcomes[1:-1]) <= {"host_leak"}, "no rank has fallen"
    incident = finished.incidents[0]
    assert {one["cause"] for one in finished.incidents} == {"host_leak"}
    assert (incident["action"], ranks_of(incident)) == ("restart", [1])
    saved = incident["evidence"]["saved"]
    assert saved["asked"] is True and saved["path"].endswith(f"ckpt_{saved['step']}.pt")
    assert incident["resumed_from"] == {"path": saved["path"], "step": saved["step"]}
    assert incident["recovered"] is not None
    assert f"starts at step {saved['step']}," in finished.stdout
    steps = [tuple(map(int, line.split()[:2])) for line in (edge.folder / "times").read_text().splitlines()]
    furthest = max(step for attempt, step in steps if attempt == 0)
    assert 100 < saved["step"] <= furthest < ROOM_MIB / MIB
    assert furthest - saved["step"] <= REDONE_S / STEP_S
    check_show("save before memory runs out", finished, incident["id"])
    lines = own_lines(finished)
    for words in ("the ranks are asked to save", "restarting from it before memory runs out"):
        assert sum(f"incident {incident['id']}: " in line and words in line for line in lines) == 1
