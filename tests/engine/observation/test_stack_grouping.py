"""Equal stacks of all ranks merged, the odd ones first."""

from __future__ import annotations

import time

import msgspec

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.stack_grouping import (
    CHILD,
    EVIDENCE_GROUPS,
    MAIN,
    LineRanks,
    Stack,
    StackGroup,
    evidence_groups,
    frame_words,
    group_looks,
    group_stacks,
)
from tests.report.samples import BLOCKED, TRAIN, WAITING, WORKER, rank_look


def test_the_odd_ones_come_first_and_children_after_ranks() -> None:
    groups = group_looks([rank_look(rank) for rank in range(8)])
    assert [group.title() for group in groups] == [
        "Rank 1",
        "Ranks 0,2-7",
        "Rank 1, child process 5242 (pt_data_worker)",
        "Ranks 0,2-7, 7 × child process (pt_data_worker)",
        'Ranks 0-7, 8 × other thread (tqdm\'s "monitor")',
    ]


def test_culprits_come_before_smaller_groups_and_stay_apart() -> None:
    stacks = [Stack(rank=0, frames=BLOCKED), *(Stack(rank=rank, frames=WAITING) for rank in (1, 2))]
    assert [(group.ranks, group.is_culprit) for group in group_stacks(stacks, [2])] == [
        ([2], True),
        ([0], False),
        ([1], False),
    ]


def test_lines_do_not_part_stacks_and_are_kept() -> None:
    moved = [Frame(WAITING[0].function, WAITING[0].file, 1), WAITING[1], Frame("train_step", TRAIN, 70), *WAITING[3:]]
    [group] = group_stacks([Stack(rank=n, frames=moved if n == 3 else WAITING) for n in range(9)])
    assert rank_list(group.ranks) == "0-8" and group.count == 9
    assert [frame.lines for frame in group.frames] == [[1, 3007], [81], [66, 70], [91], [99]]
    assert group.spread == [LineRanks(70, "3"), LineRanks(66, "0-2,4-8")]
    assert frame_words(group.frames[2]) == "train_step (train.py:66,70)"
    assert frame_words(group.frames[0]) == "all_reduce (torch/distributed/distributed_c10d.py:1,3007)"


def test_one_line_everywhere_in_the_users_code_is_no_spread() -> None:
    stacks = [Stack(rank=n, frames=[Frame("poll", "/usr/lib/python3.11/x.py", n), *WAITING]) for n in range(20)]
    [group] = group_stacks(stacks)
    assert group.spread == []
    assert group.frames[0].line_words == "0,1,2,3,4,5,6,7,…"


def test_workers_of_a_rank_are_one_group_whatever_their_numbers() -> None:
    stacks = [Stack(rank=0, pid=50 + n, kind=CHILD, name=f"worker {n}", frames=WORKER) for n in range(8)]
    [group] = group_stacks(stacks)
    assert group.title() == "Rank 0, 8 × child process (worker 0)"
    assert group.pids == list(range(50, 58))


def test_no_stacks_and_no_frames() -> None:
    assert group_stacks([]) == []
    groups = group_stacks([Stack(rank=0, note="ptrace refused"), Stack(rank=-1), Stack(rank=1, note="ptrace refused")])
    assert [(group.title(), group.frames) for group in groups] == [("A process", []), ("Ranks 0-1", [])]


def test_the_evidence_is_plain_bounded_data() -> None:
    looks = [rank_look(rank) for rank in range(8)]
    first, second, *_ = evidence_groups(looks, [1])
    assert first["ranks"] == "1" and first["is_culprit"] is True and first["kind"] == MAIN
    assert first["frames"][1] == {"folded": "2 frames of requests"}
    assert first["frames"][2] == {"function": "fetch_vocabulary_update", "file": TRAIN, "lines": [73]}
    assert second["ranks"] == "0,2-7" and second["count"] == 7
    many = [
        RankLook(
            global_rank=rank,
            at_s=1.0,
            process=ProcessLook(
                pid=rank, threads=[ThreadLook(tid=rank, is_main=True, frames=[Frame(f"f{rank}", "x.py", n)] * 60)]
            ),
        )
        for rank in range(200)
        for n in (1,)
    ]
    told = evidence_groups(many)
    assert len(told) == EVIDENCE_GROUPS + 1 and told[-1] == {"left_out": 200 - EVIDENCE_GROUPS}
    assert len(msgspec.json.encode(told)) < 60_000


def test_groups_are_messages() -> None:
    groups = group_looks([rank_look(rank) for rank in range(3)], [1])
    assert msgspec.json.decode(msgspec.json.encode(groups), type=list[StackGroup]) == groups


def test_a_thousand_ranks_with_workers_are_grouped_at_once() -> None:
    deep = [Frame(f"layer_{n}", "/home/user/model.py", n) for n in range(30)]

    def process(pid: int, frames: list[Frame]) -> ProcessLook:
        return ProcessLook(pid=pid, command="python", threads=[ThreadLook(tid=pid, is_main=True, frames=frames)])

    looks = [
        RankLook(
            global_rank=rank,
            at_s=1.0,
            process=process(rank, [*WAITING, *deep] if rank != 700 else [*BLOCKED, *deep]),
            children=[process(5000 + rank * 8 + n, [*WORKER, *deep[: 10 + n]]) for n in range(8)],
        )
        for rank in range(1024)
    ]
    began_s = time.process_time()
    groups = group_looks(looks, [700])
    took_s = time.process_time() - began_s
    assert took_s < 1.0, f"{took_s:.2f} s of CPU"  # 0.1 s on an idle core
    assert groups[0].ranks == [700]
    assert rank_list(groups[1].ranks) == "0-699,701-1023"
    assert sum(group.count for group in groups) == 1024 * 9
