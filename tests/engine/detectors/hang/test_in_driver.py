"""Ranks that are seen in a device's driver: no culprits by that, and never acted on sooner than without that word."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.detectors.hang.hang import find
from guardrun.supervisor.engine.detectors.hang.memory import Stall
from guardrun.supervisor.engine.detectors.hang.suspicion import with_device
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.hang_patience import patience
from guardrun.supervisor.engine.model.looks import (
    PYSPY,
    Call,
    Frame,
    GroupLook,
    Library,
    NativeSpot,
    ProcessLook,
    RankLook,
    ThreadLook,
)
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity, judge
from guardrun.supervisor.engine.state.state import Attempt, RankState
from tests.engine.conftest import Told
from tests.engine.detectors.hang.looks import pass_time
from tests.sim import activity as act
from tests.sim.activity import Activity

SYNC = NativeSpot(Library.CUDA, "cuStreamSynchronize", "libcuda.so.1")
LAUNCH = NativeSpot(Library.CUDA, "cuLaunchKernel", "libcuda.so.1")
OWN = NativeSpot(Library.OTHER, "solve", "libmylib.so")
ITEM = [Frame("train", "/home/me/train.py", 41)]
SYNCHRONIZE = [Frame("synchronize", "/x/site-packages/torch/cuda/__init__.py", 1000), *ITEM]
ASLEEP = [Frame("fetch", "/home/me/data.py", 7)]
BARRIER = [Frame("barrier", "/x/site-packages/torch/distributed/distributed_c10d.py", 4000), *ASLEEP]
SETTINGS = ev.Settings(idle_patience_s=300, gil_patience_s=600, spin_patience_s=600, native_patience_s=1e9)


class Is(msgspec.Struct, kw_only=True):
    """What one rank shows in two looks."""

    stack: list[Frame]
    cpu: float = 0.0
    native: NativeSpot | None = None
    keeps_gil: bool = False
    order: int = 0
    groups: list[GroupLook] = []
    in_init: bool = False
    standstill: str = ""

    def looks(self, rank: int) -> tuple[RankLook, RankLook]:
        before, after = (self._look(rank, at_s) for at_s in (100.0, 108.0))
        return before, after

    def _look(self, rank: int, at_s: float) -> RankLook:
        thread = ThreadLook(tid=7, is_main=True, owns_gil=self.keeps_gil, cpu_s=1 + self.cpu * at_s, frames=self.stack)
        process = ProcessLook(
            pid=1000 + rank,
            state="R" if self.cpu else "S",
            cpu_s=self.cpu * at_s,
            threads=[thread],
            native=self.native,
            source=PYSPY,
        )
        return RankLook(
            global_rank=rank,
            at_s=at_s,
            process=process,
            heart_s=60.0 if self.keeps_gil else at_s,
            collectives=self.order,
            groups=self.groups,
            in_init_since_s=60.0 if self.in_init else 0.0,
            standstill=self.standstill,
            standstill_key=self.standstill,
        )


def spins(native: NativeSpot | None = SYNC, **fields: object) -> Is:
    """In `.item()`, as its line says."""
    return Is(**{"stack": ITEM, "cpu": 1.0, "native": native, **fields})  # type: ignore[arg-type]


def asleep(**fields: object) -> Is:
    return Is(stack=ASLEEP, **fields)  # type: ignore[arg-type]


def waits(**fields: object) -> Is:
    return Is(stack=BARRIER, **fields)  # type: ignore[arg-type]


def seen(*ranks: Is, settings: ev.Settings = SETTINGS) -> tuple[Finding | None, dict[int, Judgement]]:
    pairs = [each.looks(rank) for rank, each in enumerate(ranks)]
    judged = [with_device(judge(*pair), *pair) for pair in pairs]
    found = find(judged, [], settings, match([after for _, after in pairs]))
    return found, {j.global_rank: j for j in judged}


def found(*ranks: Is, settings: ev.Settings = SETTINGS) -> Finding:
    finding, _ = seen(*ranks, settings=settings)
    assert finding is not None
    return finding


def unasked(*ranks: Is) -> Finding:
    """What is found where nobody tells of native frames."""
    return found(*(msgspec.structs.replace(each, native=None) for each in ranks))


def sentence(*ranks: Is) -> str:
    finding, judged = seen(*ranks)
    assert finding is not None
    states = {
        n: RankState(rank=ev.Rank(global_rank=n, local_rank=n, pid=n + 1, node="node-a")) for n in range(len(ranks))
    }
    return hang_sentence(Attempt(number=0, started_s=1.0, ranks=states), finding, judged, 40.0)


# Faults: somebody else is the culprit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stack", [ITEM, SYNCHRONIZE], ids=["in a line of its own", "in a function of torch's that waits for the device"]
)
def test_who_has_not_issued_is_the_culprit_and_not_who_waits_for_its_device(stack: list[Frame]) -> None:
    finding = found(spins(stack=stack, order=50), asleep(order=49))
    assert (finding.cause, finding.culprits, finding.waiting) == ("rank_blocked", [1], [0])


def test_who_keeps_the_gil_in_a_launch_is_not_blamed_before_who_sleeps() -> None:
    """Nobody has counted anything: only where its native code is tells that it is no culprit."""
    launches = spins(LAUNCH, keeps_gil=True)
    assert unasked(launches, asleep()).culprits == [0]
    finding = found(launches, asleep())
    assert (finding.cause, finding.culprits) == ("rank_blocked", [1])
    assert finding.is_alone, "nobody has been seen to wait for it"
    assert finding.patience_s >= unasked(launches, asleep()).patience_s


@pytest.mark.parametrize("native", [OWN, None], ids=["the user's own library", "not told"])
def test_the_users_own_native_code_is_judged_as_ever(native: NativeSpot | None) -> None:
    for others in ([waits()], [waits(), waits()], [spins(native)], [asleep(order=3)]):
        assert found(spins(native), *others) == unasked(spins(native), *others)
    assert found(spins(native), waits()).culprits == [0]
    assert sentence(spins(native), waits()) == (
        "Rank 0 on node-a has been running in the same few lines for 40 s, at train (train.py:41); rank 1 waits for it"
        " in barrier."
    )


# Decoys: nobody ------------------------------------------------------------------------------------------------------


def test_where_all_are_in_their_drivers_nobody_is_blamed() -> None:
    finding = found(spins(), spins(), spins())
    assert (finding.cause, finding.culprits, finding.waiting) == ("collective_timeout", [], [0, 1, 2])
    assert (finding.is_alone, finding.is_still) == (True, False), "a kernel may take long: it is never acted on"
    assert sentence(spins(), spins(), spins()) == (
        "No rank has advanced for 40 s: ranks 0-2 wait for their GPUs in cuStreamSynchronize (libcuda.so.1), called"
        " from train.py:41; what for is not known, so no rank can be named."
    )


@pytest.mark.parametrize(
    "fields", [{}, {"stack": SYNCHRONIZE}, {"keeps_gil": True}], ids=["", "in torch", "with the GIL"]
)
def test_nor_who_shows_the_same_and_could_not_be_asked(fields: dict[str, Any]) -> None:
    """Its turn has not come, or py-spy does not get through its frames: it is not the culprit for that."""
    ranks = [spins(**fields), spins(**fields), spins(None, **fields)]
    assert found(*ranks).culprits == []
    assert sentence(*ranks) == (
        "No rank has advanced for 40 s: ranks 0-1 wait for their GPUs in cuStreamSynchronize (libcuda.so.1), called"
        " from train.py:41; rank 2 stands in train (train.py:41); what for is not known, so no rank can be named."
    )
    assert found(*ranks[:2], spins(OWN, **fields)).culprits == [2], "what is read is none of a driver's"


def test_nor_where_one_of_them_stands_elsewhere_in_its_driver() -> None:
    """By place alone it was: one logs a loss, the others launch into full queues."""
    logs = spins(stack=[Frame("log", "/home/me/train.py", 55)])
    ranks = [logs, *(spins(LAUNCH) for _ in range(3))]
    assert unasked(*ranks).culprits == [0]
    assert found(*ranks).culprits == []


def test_nor_where_it_has_counted_less_as_one_that_synchronises_each_step_does() -> None:
    ranks = [spins(order=10), spins(LAUNCH, order=60), spins(LAUNCH, order=61)]
    assert unasked(*ranks).culprits != []
    assert found(*ranks).culprits == []


def test_nor_where_others_wait_and_nothing_tells_for_whom() -> None:
    finding = found(spins(), waits())
    assert (finding.culprits, finding.waiting, finding.is_alone) == ([], [0, 1], False)
    assert finding.patience_s >= max(600, unasked(spins(), waits()).patience_s)
    assert sentence(spins(), waits()) == (
        "No rank has advanced for 40 s: rank 0 waits for its GPU in cuStreamSynchronize (libcuda.so.1), called from"
        " train.py:41; rank 1 waits in barrier; what for is not known, so no rank can be named."
    )


def test_a_long_kernel_is_left_alone_and_told_as_what_it_is(told: Told) -> None:
    """For an hour, over NCCL without a recorder: all in their drivers."""
    told.running(ranks=2, tell_s=15.0, is_sure=True, **patience("normal"))
    backend = [GroupLook(name="0", backend="nccl", ranks=[0, 1])]
    actions = pass_time(told, act.FITTING, act.FITTING, until_s=3600, groups=backend, native=SYNC)
    said = [action.text for action in actions if isinstance(action, ac.Say) and "stall" in action.text]
    assert told.incidents == {}
    assert len(said) == 1 and "ranks 0-1 wait for their GPUs in cuStreamSynchronize" in said[0]


@pytest.mark.parametrize("hard_timeout_s", [1800.0, 0.0])
def test_nothing_is_acted_on_sooner_than_without_that_word(hard_timeout_s: float) -> None:
    """Whatever the others do, and however the one in its driver looks."""
    settings = msgspec.structs.replace(SETTINGS, hard_timeout_s=hard_timeout_s)
    drivers = [spins(), spins(LAUNCH, keeps_gil=True), spins(stack=SYNCHRONIZE), spins(cpu=0.0)]
    others = [waits(), asleep(), spins(OWN), spins(None), spins(), spins(stack=SYNCHRONIZE)]
    for driver, *rest in itertools.product(drivers, others, others):
        ranks = [driver, *rest]
        finding, _ = seen(*ranks, settings=settings)
        bare, _ = seen(*(msgspec.structs.replace(each, native=None) for each in ranks), settings=settings)
        if finding is None or bare is None:
            assert finding is None or finding.patience_s >= 1e9 or finding.is_alone, ranks
            continue
        assert finding.patience_s >= bare.patience_s, ranks
        assert finding.is_alone == bare.is_alone, ranks
        assert not finding.is_still or bare.is_still, ranks
        assert 0 not in finding.culprits, ranks


# What is recorded comes first ----------------------------------------------------------------------------------------


def group(seq: int, state: str, backend: str = "nccl", ranks: tuple[int, ...] = (0, 1, 2)) -> GroupLook:
    calls = [Call(n, "all_reduce", [[8]], "float32", "completed", float(n)) for n in range(1, seq)]
    calls.append(Call(seq, "all_reduce", [[8]], "float32", state, float(seq)))
    return GroupLook(name="0", desc="default_pg", backend=backend, ranks=list(ranks), issued=seq, calls=calls)


PENDING, BEHIND = [group(5, "issued")], [group(4, "completed")]


def test_what_devices_have_pending_outranks_it() -> None:
    """All have issued it: as without native frames."""
    ranks = [spins(groups=PENDING), spins(LAUNCH, keeps_gil=True, groups=PENDING), asleep(groups=PENDING)]
    assert found(*ranks) == unasked(*ranks)
    assert "issued theirs and none is completed" in found(*ranks).why_nobody


def test_who_has_not_issued_what_others_have_pending_is_named_though_its_driver_is_where_it_is() -> None:
    """Its device is in something of its own."""
    ranks = [spins(groups=PENDING), spins(groups=PENDING), spins(groups=BEHIND)]
    assert found(*ranks) == unasked(*ranks)
    assert found(*ranks).culprits == [2]
    assert sentence(*ranks) == (
        "Rank 2 on node-a has waited 40 s for its GPU in cuStreamSynchronize (libcuda.so.1), called from train.py:41;"
        " 2 ranks wait for it in all_reduce."
    )


def test_so_is_who_keeps_the_gil_there() -> None:
    ranks = [spins(groups=PENDING), spins(groups=PENDING), spins(LAUNCH, keeps_gil=True, groups=BEHIND)]
    assert (found(*ranks).cause, found(*ranks).culprits) == ("gil_held", [2])
    assert sentence(*ranks) == (
        "Rank 2 on node-a has held the GIL for 40 s in train (train.py:41), and waits for its GPU in cuLaunchKernel"
        " (libcuda.so.1), called from train.py:41; 2 ranks wait for it in all_reduce."
    )


def test_so_is_whom_others_wait_for_in_a_call_of_the_hosts() -> None:
    """A mixed job: over gloo hosts wait for hosts."""
    called = [group(5, "issued", "gloo")]
    others = [waits(groups=called), waits(groups=called)]
    ranks = [*others, spins(groups=[group(4, "completed", "gloo")])]
    assert found(*ranks) == unasked(*ranks)
    assert found(*ranks).culprits == [2]
    assert found(*others, spins()).culprits == [], "of this one's calls nothing is known"
    in_torch = found(*others, spins(stack=SYNCHRONIZE, groups=[group(4, "completed", "gloo")]))
    assert (in_torch.culprits, in_torch.waits_for_device) == ([2], True)


@pytest.mark.parametrize(("native", "told_s"), [(SYNC, 60), (OWN, 300), (None, 300)])
def test_it_is_reported_sooner_than_what_computes_and_acted_on_no_sooner(
    told: Told, native: NativeSpot | None, told_s: float
) -> None:
    """As on a real one: `torch.cuda.synchronize()` is a place within a package, and uses a core."""
    told.running(ranks=2, tell_s=15.0, is_sure=True, **patience("normal"))
    synchronises = Activity("synchronises", stacks=(act.users("train", 41, SYNCHRONIZE[0]),), state="R", cpu=1.0)

    def stall() -> Stall | None:
        suspicion = told.state.detectors.hang.suspicion
        return suspicion and suspicion.stall

    pass_time(told, act.WAITING, synchronises, until_s=900, is_enough=lambda: stall() is not None, native=native)
    found = stall()
    assert found is not None and told.incidents == {}
    # Nothing that was recorded says for whom the other one waits.
    assert (found.culprits, found.acts_s) == ([] if native is SYNC else [1], pytest.approx(1800, abs=5))
    assert told_s <= found.told_s <= 1.25 * told_s
    assert ("for its GPU in cuStreamSynchronize" in found.summary) == (native is SYNC)


def test_so_is_who_is_not_through_a_group_s_creation() -> None:
    init = [Frame("init_process_group", "/x/site-packages/torch/distributed/distributed_c10d.py", 1700), *ASLEEP]
    ranks = [Is(stack=init, in_init=True), Is(stack=init, in_init=True), spins()]
    assert (found(*ranks).cause, found(*ranks).culprits) == ("init", [2])


def test_a_proof_is_none_the_less_one() -> None:
    """What was read of its native frames was before."""
    stuck = asleep(native=SYNC, standstill="nothing is left to end it")
    finding = found(stuck, waits())
    assert (finding.culprits, finding.is_certain, finding.proof) == ([0], True, "nothing is left to end it")


def test_what_is_advised_is_about_its_device(told: Told) -> None:
    told.running(ranks=2)
    pass_time(told, act.WAITING_IN_INIT, act.FITTING, until_s=400, native=SYNC)
    [incident] = told.incidents.values()
    assert ([culprit.rank for culprit in incident.culprits], incident.evidence["hint"]) == ([1], "device_wait")
    assert incident.advice.startswith("Its device has not come to the end of what it was given")


# What a rank is said to do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spot", "expected"),
    [
        (SYNC, "waits for its GPU in cuStreamSynchronize (libcuda.so.1), called from train.py:41"),
        (
            NativeSpot(Library.CUDA, "", "libcuda.so.580.65.06"),
            "waits for its GPU in libcuda.so.580.65.06, called from",
        ),
        (NativeSpot(Library.NCCL, "ncclGroupEnd", "libnccl.so.2"), "waits in ncclGroupEnd (libnccl.so.2), called from"),
        (NativeSpot(Library.HIP, "hipStreamSynchronize", "libamdhip64.so.6"), "waits for its GPU in hipStreamSync"),
        (NativeSpot(Library.LEVEL_ZERO, "zeFenceHostSynchronize", "libze_loader.so.1"), "waits for its device in ze"),
        (OWN, "uses 100% of a core in the same few lines"),
    ],
)
def test_it_is_said_where_it_waits(spot: NativeSpot, expected: str) -> None:
    judged = judge(*spins(spot).looks(0))
    assert judged.reason.startswith(expected)
    assert bool(judged.device_wait) == (spot is not OWN)


def test_whoever_touches_new_memory_gets_on_whatever_library_it_was_in() -> None:
    before, after = spins().looks(0)
    fields = [msgspec.structs.replace(look.process, faults=int(1e4 * look.at_s)) for look in (before, after)]
    looks = [
        msgspec.structs.replace(look, process=process) for look, process in zip((before, after), fields, strict=True)
    ]
    judged = judge(*looks)
    assert (judged.doing, judged.device_wait) == (RankActivity.CHURNING, "")
