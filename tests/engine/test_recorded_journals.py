"""Journals of real runs, one for each cause and more: played again, they lead to the same incidents."""

from __future__ import annotations

import json

import pytest

from tests.support.journals import FOLDER, OUTCOMES, play, read, scrub

EXPECTED = json.loads(OUTCOMES.read_text())


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_a_recorded_run_is_judged_as_it_was(case: str) -> None:
    assert play(read(case)) == EXPECTED[case]


def test_every_journal_has_its_outcome() -> None:
    assert {path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.gz")} == set(EXPECTED)


def test_a_machines_paths_are_left_out() -> None:
    line = (
        '{"file":"/home/x/lib/python3.11/site-packages/torch/nn/a.py","b":"/home/x/python/lib/python3.11/'
        'threading.py","c":"/tmp/runs/train.py","d":"/home/x/repo/hooks/heart.py"}'
    )
    assert scrub(line) == (
        '{"file":"/opt/venv/lib/site-packages/torch/nn/a.py","b":"/usr/lib/python3.11/threading.py",'
        '"c":"/home/me/run/train.py","d":"/opt/venv/lib/site-packages/guardrun/hooks/heart.py"}'
    )
