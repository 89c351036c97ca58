"""The demo as a job of three nodes and a spare: one goes dark in mid-run, is drained, replaced, and training ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from examples.demo import on_slurm
from tests.slurm.programs import QUICKER
from tests.support.demolines import foreign_lines
from tests.support.slurmlab import SlurmLab

SMALL = ("--steps=60", "--save-every=10", "--batch-size=4", "--width=32")


@pytest.mark.real("slurm")
@pytest.mark.timeout(300)
def test_a_node_goes_dark_and_the_spare_takes_over(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: it is the demo, whole."""
    for name in ("train.py", "guardrun.toml"):
        shutil.copy(on_slurm.HERE / name, tmp_path)
    said: list[str] = []
    dark_at = 25
    try:
        ending = on_slurm.play(
            on_slurm.Story(slurm_lab, tmp_path, SMALL, dark_at, QUICKER, said.append, slurm_lab.guardctl)
        )
        on_slurm.check(ending)
    except BaseException:
        print(*said, sep="\n")
        raise
    assert ending.summary["last_step"] == 60
    # Where it stood, and where it went on from: nothing but what came after the last whole checkpoint was done twice.
    assert ending.incident["resumed_from"]["step"] >= dark_at - 15
    foreign = [line for line in foreign_lines(ending.output) if not line.startswith(("srun: ", "slurmstepd: "))]
    assert foreign == []
    # Whoever watches sees all of it, once, and the moment of the fault.
    told = "\n".join(said)
    assert told.count("step   20 ") >= 1 and told.count("n2 goes dark") == 1
    assert told.index("n2 goes dark") < told.index("guardrun: incident 001: n2") < told.index("step   60 ")


def test_what_is_not_as_it_must_be_is_named(tmp_path: Path) -> None:
    incident = {
        "id": "001",
        "kind": "node",
        "cause": "node_lost",
        "action": "isolate_node",
        "culprits": [{"rank": 1, "node": "n2"}],
        "recovered": "2026-11-21T03:11:09Z",
        "resumed_from": {"step": 40},
    }
    drained = {"State": "IDLE+DRAIN", "Reason": "guardrun: slurm-5 incident 001 node_lost: n2 cannot be reached"}
    summary = {"outcome": "finished", "restarts": 1}
    (tmp_path / "report.html").touch()
    output = "guardrun: the next attempt goes without n2 and with n4\n"
    good = on_slurm.Ending("5", tmp_path, tmp_path, incident, summary, drained, output)
    on_slurm.check(good)
    for wrong, words in (
        ({"incident": {**incident, "cause": "network"}}, "'network'"),
        ({"incident": {**incident, "culprits": []}}, "no other, is to blame"),
        ({"incident": {**incident, "resumed_from": None}}, "checkpoint"),
        ({"drained": {**drained, "State": "DOWN"}}, "drained: DOWN"),
        ({"drained": {**drained, "Reason": "Not responding"}}, "'Not responding'"),
        ({"output": "…"}, "the spare"),
        ({"summary": {**summary, "outcome": "gave_up"}}, "gave_up, 1"),
    ):
        with pytest.raises(on_slurm.Unexpected, match=words):
            on_slurm.check(on_slurm.Ending(**{**vars(good), **wrong}))


def test_without_slurm_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_slurm, "missing", lambda part: f"no program slurmctld (for {part})")
    assert on_slurm.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "This demo starts a Slurm on this machine, as root: no program slurmctld (for slurm)." in said.err
    assert "guardctl sbatch --nodes=3 --spares=1" in said.err
