"""Reading stacks, and the one sentence of an incident."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.incidents.advice import ADVICE
from guardrun.supervisor.engine.incidents.evidence import MAX_RANKS, most_telling
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation import frames as fr
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity
from tests.engine.conftest import ERROR, Told
from tests.sim.activity import torchs, users, waiting


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/user/train.py", True),
        ("/home/user/torch/model.py", True),
        ("train.py", True),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_whose_code_a_frame_is(file: str, expected: bool) -> None:
    assert fr.is_users(Frame("f", file, 1)) is expected


def test_the_users_innermost_frame() -> None:
    stack = list(users("fetch", 7, Frame("recv", "/usr/lib/python3.11/socket.py", 9)))
    assert fr.spot(stack) == "fetch (train.py:7)"
    assert fr.place(stack) == "/home/user/train.py:fetch"
    assert fr.spot([]) == fr.place([]) == ""
    assert fr.user_frame([Frame("a", "<x>", 1)]) == Frame("a", "<x>", 1)


def test_what_a_stack_waits_for() -> None:
    assert fr.communication(list(waiting("all_reduce")))
    assert not fr.communication(list(users("compute", 1)))
    init = list(users("main", 1, torchs("init_process_group", "distributed/distributed_c10d.py")))
    assert fr.waits_in_init(init)
    assert not fr.waits_in_init(list(waiting("barrier")))
    assert fr.waits_for_data(list(users("train", 1, torchs("_get_data", "utils/data/dataloader.py"))))
    assert fr.is_in_backward([torchs("_engine_run_backward", "autograd/graph.py")])


@pytest.mark.parametrize(
    ("ranks", "expected"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([8, 0, 1, 2, 6], "0-2,6,8")]
)
def test_ranks_in_words(ranks: list[int], expected: str) -> None:
    assert fr.rank_list(ranks) == expected


def test_evidence_is_bounded_and_keeps_the_culprits() -> None:
    told = most_telling(list(range(2048)), [2000, 1717])
    assert len(told) == MAX_RANKS and {1717, 2000} <= set(told) and told == sorted(told)
    assert len(most_telling(list(range(2048)), list(range(2048)))) == MAX_RANKS
    assert most_telling([0, 1], []) == [0, 1]


def finding(
    doing: RankActivity, culprits: tuple[int, ...] = (1,), waits: tuple[int, ...] = (0,), cause: str = "x"
) -> Finding:
    return Finding(cause=cause, culprits=list(culprits), waiting=list(waits), confidence=1, patience_s=1, doing=doing)


@pytest.mark.parametrize("doing", [d for d in RankActivity if d not in (RankActivity.BUSY, RankActivity.GONE)])
def test_every_doing_has_its_sentence(told: Told, doing: RankActivity) -> None:
    told.running(3)
    assert told.state.attempt is not None
    judged = {
        1: Judgement(global_rank=1, doing=doing, reason="", spot="fetch (train.py:7)"),
        0: Judgement(global_rank=0, doing=RankActivity.WAITING, reason="", waits_in="all_reduce"),
    }
    text = hang_sentence(told.state.attempt, finding(doing), judged, 33.4)
    assert text.startswith("Rank 1 on node-a has ") and "33 s" in text
    assert text.endswith("; rank 0 waits for it in all_reduce.")


def test_a_rank_that_is_given_no_cpu_has_not_used_it_for_nothing(told: Told) -> None:
    told.running(3)
    assert told.state.attempt is not None
    judged = {
        1: Judgement(global_rank=1, doing=RankActivity.CHURNING, reason="", spot="fit (train.py:7)", is_starved=True)
    }
    text = hang_sentence(told.state.attempt, finding(RankActivity.CHURNING), judged, 33.4)
    assert ", at fit (train.py:7): its node is busy, and gives it little; rank 0 waits for it" in text


def test_sentences_of_several(told: Told) -> None:
    told.running(8)
    assert told.state.attempt is not None
    judged = {n: Judgement(global_rank=n, doing=RankActivity.WAITING, reason="", waits_in="barrier") for n in range(8)}
    several = hang_sentence(told.state.attempt, finding(RankActivity.IDLE, (1, 2), (3, 4)), judged, 5)
    assert several.startswith("Ranks 1-2 on node-a have waited 5 s") and "2 ranks wait for them in barrier" in several
    nobody = hang_sentence(told.state.attempt, finding(RankActivity.WAITING, (), tuple(range(8))), judged, 61)
    assert nobody.startswith("No rank has advanced for 61 s: 8 ranks wait in barrier")


def test_every_cause_of_this_engine_has_advice() -> None:
    causes = "init rank_blocked rank_spinning rank_stopped gil_held gc_pause dataloader_stall io_blocked poison_step"
    causes += " collective_mismatch collective_timeout exception import_error cuda_oom host_oom segfault killed abort"
    causes += " nccl_error gpu_lost disk_full checkpoint_corrupt bus_error exit_code unknown"
    assert set(causes.split()) <= set(ADVICE)


@pytest.mark.parametrize(("step", "words"), [(20, "after step 20."), (21, "at step 21.")])
def test_a_checkpoints_step_is_not_the_step_of_a_fall(told: Told, step: int, words: str) -> None:
    """A rank that counts no steps stays at the checkpoint's, however far it gets."""
    told.running()
    told.crashed()
    told.restarted(step, ev.Checkpoint(path="/x/ckpt_20.pt", step=20))
    told.crashed(1, ERROR)
    assert told.incidents["001"].summary.endswith(" at step 10.")
    assert told.incidents["002"].summary.endswith(f" {words}")
