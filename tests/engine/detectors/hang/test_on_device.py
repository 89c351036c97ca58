"""Calls in a device's own time: pending ones outrank whatever the host does, and nobody is named by chance."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.detectors.hang.hang import find
from guardrun.supervisor.engine.detectors.hang.hang_verdicts import tell_blind
from guardrun.supervisor.engine.detectors.hang.memory import HangMemory
from guardrun.supervisor.engine.detectors.hang.suspicion import with_device
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.events import Rank, Settings
from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.model.verdicts import Remark
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import DEVICE_WORKS, Judgement, RankActivity, judge
from guardrun.supervisor.engine.state.state import Attempt, RankState

LINE = Frame("train", "/home/me/train.py", 60)
RANKS = [0, 1, 2, 3]


def call(seq: int, state: str = "completed", op: str = "all_reduce", peer: int = -1) -> Call:
    return Call(seq, op, [[512]], "float32", state, float(seq), LINE, peer)


def told(*calls: Call, issued: int = 0, backend: str = "nccl") -> GroupLook:
    return GroupLook(
        name="0",
        desc="default_pg",
        backend=backend,
        ranks=RANKS,
        issued=issued or max((one.seq for one in calls if one.peer < 0), default=0),
        calls=list(calls),
    )


def look(rank: int, group: GroupLook, at_s: float = 108.0, **fields: object) -> RankLook:
    return RankLook(global_rank=rank, at_s=at_s, process=ProcessLook(pid=1000 + rank), groups=[group], **fields)  # type: ignore[arg-type]


def judged(rank: int, doing: RankActivity, group: GroupLook, reason: str = "", **fields: object) -> Judgement:
    plain = Judgement(global_rank=rank, doing=doing, reason=reason, **fields)  # type: ignore[arg-type]
    return with_device(plain, look(rank, group, 100.0), look(rank, group))


def finding(groups: dict[int, GroupLook], doing: dict[int, RankActivity]) -> Finding:
    all_judged = [judged(rank, doing.get(rank, RankActivity.SPINNING), group) for rank, group in groups.items()]
    found = find(all_judged, [], Settings(), match([look(rank, group) for rank, group in groups.items()]))
    assert found is not None
    return found


PENDING = told(call(50), call(51), call(52, "issued"))
BEHIND = told(call(50), call(51))


@pytest.mark.parametrize(
    "doing",
    [
        RankActivity.SPINNING,
        RankActivity.CHURNING,
        RankActivity.IDLE,
        RankActivity.GIL_HELD,
        RankActivity.IO_BLOCKED,
        RankActivity.DATA,
        RankActivity.COLLECTING,
        RankActivity.UNSEEN,
    ],
)
def test_whoever_has_issued_all_that_others_have_is_no_culprit(doing: RankActivity) -> None:
    """Its host spins in a synchronisation, keeps the GIL in a launch, sits in the driver: rank 3 has not issued."""
    groups = dict.fromkeys((0, 1, 2), PENDING) | {3: BEHIND}
    found = finding(groups, {0: doing, 3: RankActivity.IDLE})
    assert (found.cause, found.culprits, found.waiting) == ("rank_blocked", [3], [0, 1, 2])
    found = finding(groups, {0: doing, 3: RankActivity.GIL_HELD})
    assert (found.cause, found.culprits) == ("gil_held", [3])


@pytest.mark.parametrize("doing", [RankActivity.STOPPED, RankActivity.TRACED])
def test_a_process_that_is_stopped_moves_no_data(doing: RankActivity) -> None:
    found = finding(dict.fromkeys(RANKS, PENDING), {2: doing})
    assert (found.cause, found.culprits) == ("rank_stopped", [2])


def test_a_device_at_work_may_only_wait_for_others() -> None:
    """NCCL's kernels count as work while they wait; nothing else that moves is taken for waiting."""
    held = {"is_held_by_device": True}
    assert judged(0, RankActivity.BUSY, PENDING, DEVICE_WORKS, **held).doing is RankActivity.WAITING
    assert judged(0, RankActivity.BUSY, BEHIND, DEVICE_WORKS, **held).doing is RankActivity.BUSY
    for reason in (DEVICE_WORKS, "its frames change", "moves 4 MB/s", "its collectives advance"):
        assert judged(0, RankActivity.BUSY, PENDING, reason).doing is RankActivity.BUSY


@pytest.mark.parametrize(("others", "is_held"), [([], True), (["evaluate"], False)])
def test_a_host_that_goes_about_is_not_held_by_its_device(others: list[str], is_held: bool) -> None:
    """It evaluates on its device, say, with an asynchronous call pending that the others will come to."""
    stack = [Frame("synchronize", "/x/site-packages/torch/cuda/__init__.py", 1000), LINE]
    variety = [[Frame(name, "/home/me/train.py", 70)] for name in others]
    looks = []
    for at_s in (100.0, 108.0):
        thread = ThreadLook(tid=1, is_main=True, frames=stack)
        process = ProcessLook(pid=1, state="R", cpu_s=at_s, threads=[thread], variety=variety, source="py-spy")
        looks.append(RankLook(global_rank=0, at_s=at_s, process=process, heart_s=at_s, gpu_busy=1.0))
    found = judge(*looks)
    assert (found.doing, found.reason, found.is_held_by_device) == (RankActivity.BUSY, DEVICE_WORKS, is_held)


def test_a_call_that_gets_on_between_two_looks_is_none_to_wait_for() -> None:
    plain = Judgement(global_rank=0, doing=RankActivity.SPINNING, reason="")
    before, after = look(0, told(call(51, "issued")), 100.0), look(0, PENDING)
    assert with_device(plain, before, after).doing is RankActivity.SPINNING


STANDING = {"0": [52, -1, 51]}


def test_equal_numbers_say_that_it_was_pending_before() -> None:
    """The look before had no calls of the device, which are asked for only where two looks agree."""
    plain = Judgement(global_rank=0, doing=RankActivity.SPINNING, reason="")
    after = look(0, PENDING, device_counts=STANDING)

    def doing(before: RankLook) -> RankActivity:
        return with_device(plain, before, after).doing

    assert doing(look(0, told(issued=52), 100.0, device_counts=STANDING)) is RankActivity.WAITING
    assert doing(look(0, told(issued=52), 100.0, device_counts={"0": [52, -1, 50]})) is RankActivity.SPINNING
    assert doing(look(0, told(issued=52), 100.0)) is RankActivity.SPINNING


@pytest.mark.parametrize(("completed", "expected"), [(60, RankActivity.BUSY), (51, RankActivity.SPINNING)])
def test_a_device_that_works_off_what_its_host_has_launched_gets_somewhere(
    completed: int, expected: RankActivity
) -> None:
    """The host spins in `.item()`, hundreds of steps ahead, and counts nothing."""
    stack = [Frame("read", "/home/me/train.py", 70)]
    looks = []
    for at_s, counts in ((100.0, [500, -1, 51]), (108.0, [500, -1, completed])):
        thread = ThreadLook(tid=1, is_main=True, frames=stack, cpu_s=at_s)
        process = ProcessLook(pid=1, state="R", cpu_s=at_s, threads=[thread], variety=[stack], source="py-spy")
        looks.append(RankLook(global_rank=0, at_s=at_s, process=process, heart_s=at_s, device_counts={"0": counts}))
    assert judge(*looks).doing is expected


@pytest.mark.parametrize(
    ("issued", "cause", "culprits"),
    [(51, "gil_held", [3]), (52, "collective_timeout", [])],
    ids=["behind", "with them"],
)
def test_who_keeps_the_gil_and_could_not_be_read_is_given_as_long_as_torch_would(
    issued: int, cause: str, culprits: list[int]
) -> None:
    """torch's server starts when somebody asks, by a thread that needs the GIL."""
    looks = [look(rank, PENDING) for rank in (0, 1, 2)] + [look(3, told(issued=issued), is_unread=True)]
    all_judged = [judged(rank, RankActivity.SPINNING, PENDING) for rank in (0, 1, 2)]
    all_judged.append(Judgement(global_rank=3, doing=RankActivity.GIL_HELD, reason="", is_unread=True))
    found = find(all_judged, [], Settings(gil_patience_s=60.0), match(looks))
    assert found is not None
    assert (found.cause, found.culprits, found.patience_s, found.confidence) == (cause, culprits, 600, 0.6)


@pytest.mark.parametrize("doing", [RankActivity.SPINNING, RankActivity.IDLE, RankActivity.WAITING])
@pytest.mark.parametrize(("is_unread", "least_s"), [(True, 600), (False, 0)], ids=["blind", "read"])
def test_blind_and_all_alike_ends_no_job_before_torch_would(
    doing: RankActivity, is_unread: bool, least_s: float
) -> None:
    settings = Settings(spin_patience_s=120.0, idle_patience_s=30.0, data_patience_s=60.0)
    alike = [Judgement(global_rank=n, doing=doing, reason="", place="a:b", is_unread=is_unread) for n in RANKS]
    found = find(alike, [], settings, match([]))
    assert found is not None
    assert found.patience_s >= least_s
    assert is_unread or found.patience_s <= 120


def test_who_has_not_come_is_named_as_soon_by_what_hooks_have_counted() -> None:
    """Blind, and not alike: one has issued less, and sleeps in a call of its own. So is one that is stopped."""
    looks = [look(rank, PENDING, is_unread=True) for rank in (0, 1, 2)] + [look(3, BEHIND, is_unread=True)]
    waiting = [Judgement(global_rank=n, doing=RankActivity.WAITING, reason="", is_unread=True) for n in (0, 1, 2)]
    for doing, patience_s in ((RankActivity.IDLE, 30), (RankActivity.STOPPED, 3)):
        odd = Judgement(global_rank=3, doing=doing, reason="", is_unread=True)
        settings = Settings(idle_patience_s=30.0, stopped_patience_s=3.0)
        found = find([*waiting, odd], [], settings, match(looks))
        assert found is not None
        assert (found.culprits, found.patience_s) == ([3], patience_s)
        assert found.confidence >= 0.95


def test_a_group_s_first_call_is_given_time_by_its_size() -> None:
    """It makes the group's connections."""
    many = list(range(2000))
    first, later = (msgspec.structs.replace(told(call(seq, "issued"), issued=seq), ranks=many) for seq in (1, 2))
    patience = [finding(dict.fromkeys(many, group), {}).patience_s for group in (first, later)]
    assert patience == [700, 600]


def test_that_nobody_can_read_devices_is_said_once() -> None:
    memory = HangMemory()
    read = [look(0, PENDING), look(1, PENDING)]
    unread = [look(n, PENDING, is_unread=True, groups_trouble="the flight recorder is off") for n in (2, 3)]
    assert list(tell_blind(memory, read)) == []
    [said] = tell_blind(memory, [*read, *unread])
    assert isinstance(said, Remark)
    assert said.text == (
        "blind: what the devices of rank 2-3 do can't be read (the flight recorder is off); torch's own timeouts stand"
    )
    assert list(tell_blind(memory, unread)) == []


def test_what_the_host_carries_out_says_nothing_of_a_device() -> None:
    group = told(call(52, "issued"), backend="gloo")
    assert judged(0, RankActivity.SPINNING, group).doing is RankActivity.SPINNING


@pytest.mark.parametrize("backend", ["nccl", "xccl", "hccl", "somebody's own"])
def test_issued_by_all_and_completed_by_none_names_nobody(backend: str) -> None:
    group = told(call(51), call(52, "issued"), backend=backend)
    found = finding(dict.fromkeys(RANKS, group), {2: RankActivity.GIL_HELD})
    assert (found.cause, found.culprits) == ("collective_timeout", [])
    assert "issued theirs and none is completed" in found.why_nobody
    assert found.patience_s == 600, "torch would have waited as long"


def attempt() -> Attempt:
    ranks = {n: RankState(rank=Rank(global_rank=n, local_rank=n, pid=n + 1, node="node-a")) for n in RANKS}
    return Attempt(number=0, started_s=1.0, ranks=ranks)


def test_the_device_that_has_not_begun_is_told_where_devices_tell() -> None:
    begun, waits = told(call(52, "started")), told(call(52, "issued"))
    found = finding({0: begun, 1: begun, 2: waits, 3: begun}, {})
    assert (found.cause, found.culprits, found.waiting, found.confidence) == ("collective_timeout", [2], [0, 1, 3], 0.8)
    by_rank = {rank: judged(rank, RankActivity.SPINNING, begun) for rank in RANKS}
    assert hang_sentence(attempt(), found, by_rank, 40) == (
        "Rank 2 on node-a has a device that has not begun in 40 s with what the others' devices have; 3 ranks wait for "
        "it in all_reduce."
    )
    half = finding({0: begun, 1: begun, 2: waits, 3: waits}, {})
    assert half.culprits == [], "as many have begun as have not"


# Sends and receives --------------------------------------------------------------------------------------------------


def stage(rank: int, *, received: str, sent: str, number: int = 5) -> GroupLook:
    """A stage of a pipeline: it receives from the one before, and sends to the next. A state of "" is not issued."""
    calls = [call(1, op="all_reduce")]
    if rank > 0 and received:
        calls.append(call(number, received, "irecv", rank - 1))
    if rank < 3:
        calls.append(call(number if sent else number - 1, sent or "completed", "isend", rank + 1))
    return told(*calls, issued=1)


def test_waits_of_a_pipeline_are_followed_to_the_stage_at_the_root() -> None:
    """Stage 0 has not sent its fifth batch: 1 waits for it, 2 for 1, 3 for 2, each in a receive of its device."""
    groups = {0: stage(0, received="", sent="")} | {r: stage(r, received="issued", sent="") for r in (1, 2, 3)}
    found = finding(groups, {0: RankActivity.IDLE})
    assert (found.cause, found.culprits, found.waiting) == ("rank_blocked", [0], [1, 2, 3])


def test_both_sides_of_a_transfer_that_have_issued_it_blame_nobody() -> None:
    """A link is dead: what looked like a circle of ranks that wait for each other is a transfer that is not done."""
    groups = {
        0: stage(0, received="", sent="issued"),
        1: stage(1, received="issued", sent=""),
        2: stage(2, received="issued", sent=""),
        3: stage(3, received="issued", sent=""),
    }
    matched = match([look(rank, group) for rank, group in groups.items()])
    assert matched.mismatch is None
    assert {tuple(wait.ranks): wait.waits_for for wait in matched.waits} == {(0,): [], (1,): [], (2,): [1], (3,): [2]}
    found = finding(groups, {})
    assert (found.cause, found.culprits, found.waiting) == ("collective_timeout", [], RANKS)
    assert found.why_nobody.startswith("ranks 0-1, which the others wait for, have issued theirs and none is completed")


def test_an_order_of_sends_and_receives_that_cannot_meet_is_not_taken_for_a_link() -> None:
    """Hosts run on and issue both sides; their devices come to them in an order in which neither is ever there."""
    groups = {
        rank: told(call(7, "issued", "irecv", 1 - rank), call(7, "issued", "isend", 1 - rank), issued=1)
        for rank in (0, 1)
    }
    found = finding(groups, {})
    assert (found.cause, found.culprits) == ("collective_timeout", [])
    assert found.why_nobody.endswith(
        "so it is a link, a device or the order of sends and receives, and no rank can be named"
    )
    assert "order" not in finding(dict.fromkeys(RANKS, PENDING), {}).why_nobody


def test_an_exchange_of_two_is_no_circle() -> None:
    ring = {
        rank: told(call(7, "issued", "isend", 1 - rank), call(7, "issued", "irecv", 1 - rank), issued=1)
        for rank in (0, 1)
    }
    matched = match([look(rank, group) for rank, group in ring.items()])
    assert matched.mismatch is None and matched.is_all_in and matched.roots == []


def test_whoever_waits_on_the_host_for_a_rank_whose_device_is_held_names_nobody() -> None:
    """Rank 3 is in a barrier over gloo, for which rank 0 has not come: that waits for a loss of its device."""
    barrier = told(call(1), call(2, "issued", "barrier"), backend="gloo", issued=2)
    before = told(call(1), backend="gloo", issued=1)
    groups = {rank: [before, PENDING] for rank in (0, 1, 2)} | {3: [barrier, PENDING]}
    looks = [
        RankLook(
            global_rank=rank,
            at_s=108.0,
            process=ProcessLook(pid=1000 + rank),
            groups=[msgspec.structs.replace(group, name=group.backend) for group in both],
        )
        for rank, both in groups.items()
    ]
    waits = [Judgement(global_rank=rank, doing=RankActivity.WAITING, reason="") for rank in RANKS]
    found = find(waits, [], Settings(), match(looks))
    assert found is not None and (found.cause, found.culprits) == ("collective_timeout", [])
    assert found.why_nobody.startswith("ranks 0-2, which the others wait for")


@pytest.mark.parametrize("knows", [False, True])
def test_a_group_that_its_other_member_has_not_made_names_nobody(knows: bool) -> None:
    """Rank 0 waits for rank 1 in a group of these two, of which rank 1 tells nothing: it has made no such group."""

    def pair(*calls: Call) -> GroupLook:
        return GroupLook(name="1", backend="nccl", ranks=[0, 1], issued=len(calls), calls=list(calls))

    in_pair = [told(call(3)), pair(call(1, "issued"))]
    made = [pair()] if knows else []
    waits = msgspec.structs.replace(told(call(3), call(4, "issued")), source="both")
    groups = {0: in_pair, 1: [waits, *made], 2: [told(call(3), call(4, "issued"))]}
    looks = [
        RankLook(global_rank=rank, at_s=108.0, process=ProcessLook(pid=1000 + rank), groups=own)
        for rank, own in groups.items()
    ]
    judgements = [Judgement(global_rank=rank, doing=RankActivity.WAITING, reason="") for rank in groups]
    found = find(judgements, [], Settings(), match(looks))
    assert found is not None
    assert (found.cause, found.culprits, found.patience_s) == ("collective_mismatch", [], Settings().data_patience_s)
    why = "rank 0 waits in all_reduce of group 1, which rank 1 has not made: who is wrong cannot be told"
    assert (found.why_nobody == why) is not knows


@pytest.mark.parametrize(("backend", "is_certain"), [("gloo", True), ("nccl", False)])
def test_a_circle_through_a_device_may_be_left_again(backend: str, is_certain: bool) -> None:
    """Rank 0 has gathered asynchronously before its barrier, rank 1 does so after it: no order is broken by that."""

    def group(name: str, kind: str, *calls: Call) -> GroupLook:
        return GroupLook(name=name, backend=kind, ranks=[0, 1], issued=max(one.seq for one in calls), calls=list(calls))

    gathers = [group("data", backend, call(1), call(2, "issued", "all_gather")), group("save", "gloo", call(1))]
    stands = [group("data", backend, call(1)), group("save", "gloo", call(1), call(2, "issued", "barrier"))]
    looks = [
        RankLook(global_rank=rank, at_s=108.0, process=ProcessLook(pid=1000 + rank), groups=groups)
        for rank, groups in enumerate([gathers, stands])
    ]
    found = find(
        [Judgement(global_rank=rank, doing=RankActivity.WAITING, reason="") for rank in (0, 1)],
        [],
        Settings(),
        match(looks),
    )
    assert found is not None and (found.cause, found.is_certain) == ("collective_mismatch", is_certain)
    assert found.patience_s == (Settings().mismatch_patience_s if is_certain else Settings().data_patience_s)


def test_a_peer_that_is_not_seen_is_waited_for() -> None:
    matched = match([look(0, told(call(7, "issued", "irecv", 3), issued=1))])
    assert matched.waits[0].waits_for == [3]


def test_of_a_batch_the_receive_may_lack_its_other_side_when_the_send_does_not() -> None:
    batch = [msgspec.structs.replace(call(7, "issued", op, 1), at_s=9.0) for op in ("isend", "irecv")]
    received = [call(6, "completed", "isend", 0), call(7, "completed", "irecv", 0)]
    matched = match([look(0, told(*batch, issued=1)), look(1, told(*received, issued=1))])
    assert (matched.roots, matched.waits[0].op) == ([1], "irecv")


def test_a_side_that_goes_back_too_far_to_be_told_is_not_waited_for() -> None:
    matched = match([look(0, told(call(7, "issued", "irecv", 1), issued=1)), look(1, told(call(9), issued=9))])
    assert (matched.waits[0].waits_for, matched.waits[0].unseen, matched.roots) == ([], [1], [])


def test_a_receive_that_was_issued_early_makes_nobody_a_culprit() -> None:
    """Rank 0 saves, and its device has a receive pending that rank 1 will send after the next reduction."""
    early = told(call(1), call(1, "issued", "irecv", 1), issued=1)
    later = told(call(1), call(2, "issued"))
    saves = judged(0, RankActivity.IO_BLOCKED, early, is_in_long_work=True)
    waits = [judged(rank, RankActivity.SPINNING, later) for rank in (1, 2, 3)]
    looks = [look(0, early), *(look(rank, later) for rank in (1, 2, 3))]
    found = find([saves, *waits], [], Settings(), match(looks))
    assert found is not None and (found.cause, found.culprits) == ("collective_mismatch", [])
    assert found.patience_s == Settings().save_patience_s


# Recorders that were not read ----------------------------------------------------------------------------------------


def unread(issued: int) -> GroupLook:
    return msgspec.structs.replace(told(issued=issued), source="hooks")


def test_whoever_has_counted_what_is_pending_waits_there_too() -> None:
    found = finding(dict.fromkeys((0, 1, 2), PENDING) | {3: unread(52)}, {})
    assert (found.cause, found.culprits, found.waiting) == ("collective_timeout", [], RANKS)
    assert found.patience_s == 600
    found = finding(dict.fromkeys((0, 1, 2), PENDING) | {3: unread(51)}, {})
    assert (found.cause, found.culprits) == ("rank_spinning", [3])


def test_of_a_member_of_which_nothing_is_known_nobody_is_made_the_culprit() -> None:
    waits = [Judgement(global_rank=rank, doing=RankActivity.WAITING, reason="", order=rank) for rank in RANKS]
    looks = [look(rank, PENDING) for rank in (0, 1, 2)]
    nothing = RankLook(global_rank=3, at_s=108.0, process=ProcessLook(pid=1003))
    found = find(waits, [], Settings(), match([*looks, nothing]))
    assert found is not None and (found.cause, found.culprits, found.patience_s) == ("collective_timeout", [], 600)
    assert found.why_nobody.startswith("nothing is known of the calls of rank 3")


def test_a_batch_that_is_not_named_meets_any_call() -> None:
    """Until torch 2.7 the recorder has the closing entry alone, and the hooks may not know it either."""
    unnamed, named = told(call(51), call(52, "issued", "coalesced")), told(call(51), call(52, "issued", "all_gather"))
    assert match([look(0, unnamed), look(1, named)]).mismatch is None
    odd = told(call(51), call(52, "issued", "broadcast"))
    mismatch = match([look(0, unnamed), *(look(rank, named) for rank in (1, 2)), look(3, odd)]).mismatch
    assert mismatch is not None and mismatch.culprits == [3]


# The backward pass ---------------------------------------------------------------------------------------------------

ENGINE = [
    Frame("_engine_run_backward", "/x/site-packages/torch/autograd/graph.py", 841),
    Frame("backward", "/x/site-packages/torch/_tensor.py", 626),
    Frame("main", "/home/u/train.py", 50),
]
OWN_FUNCTION = [
    Frame("read", "/usr/lib/python3.11/ssl.py", 1100),
    Frame("get", "/home/u/feature_store.py", 12),
    Frame("backward", "/home/u/my_function.py", 31),
    Frame("apply", "/x/site-packages/torch/autograd/function.py", 307),
]
ANOTHER = [Frame("read", "/home/u/log.py", 3), Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 995)]


def in_backward(at_s: float, *others: list[Frame]) -> RankLook:
    threads = [ThreadLook(tid=1, is_main=True, frames=ENGINE)]
    threads += [ThreadLook(tid=2 + index, frames=frames) for index, frames in enumerate(others)]
    process = ProcessLook(pid=1, state="S", threads=threads, source="py-spy")
    return RankLook(global_rank=1, at_s=at_s, process=process, heart_s=at_s)


def test_what_runs_below_the_engine_is_judged_in_the_backward_pass() -> None:
    others = ANOTHER, OWN_FUNCTION
    found = judge(in_backward(100, *others), in_backward(108, *others))
    assert (found.doing, found.spot) == (RankActivity.IDLE, "get (feature_store.py:12)")


def test_threads_of_the_script_are_none_of_the_engine_s() -> None:
    found = judge(in_backward(100, ANOTHER), in_backward(108, ANOTHER))
    assert (found.doing, found.waits_in) == (RankActivity.WAITING, "the backward pass")
