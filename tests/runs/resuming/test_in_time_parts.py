"""FSDP2 with replicas: ranks that are well save a part each before the ranks are ended, or nothing is saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import QUICK, RESUME, EdgeRuns, Finished, own_lines

CONFIG = RESUME + "jit_s = 30\n" + QUICK
STEPS, FIRST_SAVE = 16, 5
KILLED, BLOCKED, TORN = 9, 12, 14
RANKS = range(4)


class Trained:
    """Four ranks, two parts, and a fault in each attempt but the last; then the same once more, undisturbed."""

    def __init__(self, folder: Path, finished: Finished) -> None:
        assert finished.returncode == 0, finished
        self.finished, self.folder = finished, folder
        self.jit = [incident["evidence"]["jit"] for incident in finished.incidents]
        self.asked = sorted(path.name for path in folder.glob("asked-*"))
        self.resumed = [Path(one["resumed_from"]["path"]).name for one in finished.incidents]

    def lines(self, name: str, rank: int) -> list[list[str]]:
        return [line.split() for line in (self.folder / f"{name}-{rank}").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    runs = EdgeRuns(tmp_path_factory.mktemp("parts"))
    faults = (f"kill@{KILLED}:0", f"block@{BLOCKED}:3", f"kill@{TORN}:1")
    arguments = [*(f"--fault={fault}" for fault in faults), "--how=bare", "--how=well", "--how=part", "--how=well"]
    arguments += ["--shards=2", "--again", f"--steps={STEPS}", f"--first-save={FIRST_SAVE}"]
    yield Trained(runs.folder, runs.run("in_time.py", *arguments, config=CONFIG, ranks=len(RANKS)))
    runs.close()


def known(jit: dict[str, Any]) -> tuple[Any, ...]:
    return jit["rank"], jit["ranks"], jit["step"], Path(jit["path"]).name


def test_where_a_rank_dies_others_save_its_part_and_their_own(trained: Trained) -> None:
    assert known(trained.jit[0]) == (2, [2, 3], KILLED - 1, f"jit_{KILLED - 1}_rank0.pt")
    lines = own_lines(trained.finished)
    assert sum(re.match(rf"ranks 2-3 saved step {KILLED - 1} in [\d.]+ s ", line) is not None for line in lines) == 1


def test_where_a_rank_hangs_those_whose_step_is_furthest_save(trained: Trained) -> None:
    """Rank 2 waits for shards of rank 3 in its forward pass."""
    assert known(trained.jit[1]) == (0, [0, 1], BLOCKED - 1, f"jit_{BLOCKED - 1}_shard0_of_2.pt")


def test_a_part_that_fails_to_be_written_is_none_and_the_checkpoint_before_is_taken(trained: Trained) -> None:
    assert trained.jit[2] == {"why": "rank 3: OSError: no space left for this"}
    names = [f"jit_{KILLED - 1}_rank0.pt", f"jit_{BLOCKED - 1}_shard0_of_2.pt", f"jit_{BLOCKED - 1}_shard0_of_2.pt"]
    assert trained.resumed == names


def test_no_step_is_done_twice_where_all_parts_were_saved_and_every_loss_is_the_same(trained: Trained) -> None:
    steps = [range(1, KILLED), range(KILLED, BLOCKED), range(BLOCKED, TORN), range(BLOCKED, STEPS + 1)]
    for rank in RANKS:
        lines, undisturbed = trained.lines("losses", rank), trained.lines("undisturbed", rank)
        assert [int(step) for _, step, _ in lines] == [step for attempt in steps for step in attempt]
        assert {(step, loss) for _, step, loss in lines} == {(step, loss) for _, step, loss in undisturbed}
        assert len(undisturbed) == STEPS
    assert set(trained.asked) >= {"asked-0-2", "asked-0-3", "asked-1-0", "asked-1-1", "asked-2-3"}
    assert not [name for name in trained.asked if name.startswith("asked-3")]


def test_parts_are_one_checkpoint_of_torch_s_own_format(edge: EdgeRuns) -> None:
    """Loaded by torch's own function, and none of it by a collective; then again, after a resume from it."""
    faults = (f"--fault=kill@{KILLED}:0", f"--fault=kill@{BLOCKED}:3")
    arguments = (*faults, "--shards=2", "--dcp", "--again", f"--steps={STEPS}", f"--first-save={FIRST_SAVE}")
    trained = Trained(edge.folder, edge.run("in_time.py", *arguments, config=CONFIG, ranks=len(RANKS)))
    assert [known(jit) for jit in trained.jit] == [
        (2, [2, 3], KILLED - 1, f"jit_{KILLED - 1}"),
        (0, [0, 1], BLOCKED - 1, f"jit_{BLOCKED - 1}"),
    ]
    assert trained.resumed == [f"jit_{KILLED - 1}", f"jit_{BLOCKED - 1}"]
    for rank in RANKS:
        lines, undisturbed = trained.lines("losses", rank), trained.lines("undisturbed", rank)
        assert [line[1:] for line in lines] == [line[1:] for line in undisturbed], "bit for bit, no step twice"
    names = [f"ckpt_{FIRST_SAVE}", f"jit_{BLOCKED - 1}", f"jit_{KILLED - 1}"]
    assert sorted(path.name for path in (edge.folder / "out").iterdir()) == names


def test_without_replicas_a_part_is_lost_with_its_rank(edge: EdgeRuns) -> None:
    arguments = ("--shards=2", f"--fault=kill@{KILLED}:1", f"--steps={KILLED}", f"--first-save={FIRST_SAVE}")
    trained = Trained(edge.folder, edge.run("in_time.py", *arguments, config=CONFIG))
    assert trained.jit == [{"why": "no rank that is well holds part 1 of 2, which was held by rank 1 alone"}]
    assert trained.resumed == [f"ckpt_{FIRST_SAVE}_shard0_of_2.pt"] and trained.asked == []
