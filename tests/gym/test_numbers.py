"""What the gym has of numbers that go wrong, and how it judges what was said of them: pure."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from benchmarks.gym.numeric.cases import DECOYS, DRIFT, FAULTS, NAN, SHORT, TRAINERS, Case, Fault
from benchmarks.gym.numeric.suite import SCRIPTS, Seen, as_markdown

FAULT = Fault("nan_batch", "a NaN", SHORT, ranks=3)


def told(**changes: Any) -> dict[str, Any]:
    first = {
        "kind": "numeric",
        "cause": NAN,
        "culprits": [{"rank": 2}],
        "step": 321,
        "action": "none",
        "summary": "It.",
    }
    return {**first, **changes}


def test_there_are_as_many_decoys_as_faults_and_the_script_knows_each() -> None:
    assert len(FAULTS) >= 24 and len(DECOYS) >= 25
    tree = ast.parse((SCRIPTS / "train.py").read_text())
    [ways] = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "WAYS"
    ]
    assert isinstance(ways, ast.Dict)
    known = [ast.literal_eval(key) for key in ways.keys if key is not None]
    others = [case for case in (*FAULTS, *DECOYS) if case.script != "train.py"]
    assert sorted(known) == sorted(case.name for case in (*FAULTS, *DECOYS) if case not in others)
    assert {case.script for case in others} == {TRAINERS}
    assert {case.name.partition("_")[0] for case in others} == {"transformers", "lightning"}


@pytest.mark.parametrize(
    ("incidents", "misses"),
    [
        ([told()], []),
        ([told(step=322)], []),
        ([told(step=319)], ["step 319, not 321"]),
        ([told(step=330)], ["step 330, not 321"]),
        ([], ["not found"]),
        ([told(cause="loss_spike")], ["cause loss_spike"]),
        ([told(culprits=[])], ["culprits []"]),
        ([told(culprits=[{"rank": 0}, {"rank": 2}])], ["culprits [0, 2]"]),
        ([told(), told(action="restart")], ["something was done about it"]),
    ],
)
def test_a_fault_is_found_with_its_cause_its_rank_and_its_step(
    incidents: list[dict[str, Any]], misses: list[str]
) -> None:
    assert Seen(FAULT, 321, 0, incidents).misses() == misses


@pytest.mark.parametrize(
    ("agreed", "step", "is_right"), [(60, 500, True), (320, 321, True), (321, 500, False), (60, 320, False)]
)
def test_replicas_are_found_to_differ_between_two_checks(agreed: int, step: int, is_right: bool) -> None:
    fault = Fault("flipped", "a bit", SHORT, causes=DRIFT, ranks=3)
    seen = Seen(fault, 321, 0, [told(cause=DRIFT[0], step=step, evidence={"agreed_step": agreed})])
    assert seen.misses() == ([] if is_right else [f"between steps {agreed} and {step}, not 321"])
    assert f"| {agreed}–{step}, 321 |" in as_markdown([seen])


def test_a_decoy_is_left_alone_and_ends_well() -> None:
    decoy = Case("ordinary", "nothing")
    assert Seen(decoy, 300, 0).misses() == []
    assert Seen(decoy, 300, 1).misses() == ["exit status 1"]
    assert Seen(decoy, 300, 0, [told()]).misses() == ["nan_loss: It."]


def test_the_table_says_what_falls_short() -> None:
    table = as_markdown([Seen(FAULT, 321, 0, [told()]), Seen(FAULT, 321, 0), Seen(Case("ordinary", "nothing"), 300, 0)])
    assert table.startswith("1 of 2 faults found, 1 with the right cause, rank and step; 0 of 1 decoys reported.")
    assert "| `nan_batch` | a NaN | nan_loss | rank 2 | 321, 321 |  |" in table
    assert "| `nan_batch` | a NaN | – |  |  | not found |" in table
