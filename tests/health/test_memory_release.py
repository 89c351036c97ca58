"""What is waited for of a device's memory before ranks are started again, and what never is."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.health.gpu.memory_release import (
    ENDED,
    FOREIGN,
    OURS,
    SHRINKS_BYTES,
    UNNAMED_BYTES,
    MemoryHolder,
    MemoryRelease,
    Owner,
    Verdict,
)
from guardrun.supervisor.health.gpu.rank_device import INITIAL_PID_NAMESPACE

A, B = "gpu:A", "gpu:B"
RANKS = {4241: 0, 4242: 1}
GIB = 1 << 30
LIMIT_S = 20.0


class Node:
    """Two GPUs that the ranks of an attempt had, which ended at 100 s."""

    def __init__(self, *, survivors: tuple[int, ...] = (), limit_s: float = LIMIT_S) -> None:
        self.release = MemoryRelease(
            {A: 0, B: 1}, RANKS, 100.0, limit_s, survivors=survivors, namespace=INITIAL_PID_NAMESPACE
        )
        self.living = {77: Owner("bob", "python")}
        self.values: dict[str, dict[str, Value | None]] = {A: {"holders": ""}, B: {"holders": ""}}
        self.namespace = INITIAL_PID_NAMESPACE

    def judge(self, now_s: float) -> Verdict:
        samples = [Sample(subject=s, name=n, value=v) for s, of in self.values.items() for n, v in of.items()]
        samples.append(Sample(subject="node", name="pid_namespace", value=self.namespace))
        readout = Readout(sensor="gpu", at_s=now_s, samples=samples)
        return self.release.judge(readout, self.living.get, now_s)


def test_free_memory_is_waited_for_not_at_all() -> None:
    assert Node().judge(100.1) == Verdict(True, "free")


def test_the_deads_memory_is_waited_for_until_it_is_freed() -> None:
    node = Node()
    node.values[B]["holders"] = f"4242={60 * GIB}"
    held = MemoryHolder(subject=B, index=1, pid=4242, used_bytes=60 * GIB, whose=ENDED, rank=1)
    assert node.judge(100.1) == Verdict(False, "held", (held,))
    assert node.judge(119.9) == Verdict(False, "held", (held,))
    node.values[B]["holders"] = ""
    assert node.judge(120.5) == Verdict(True, "free")


def test_up_to_a_limit_and_then_it_is_named() -> None:
    node = Node()
    node.values[B]["holders"] = "4242=?"
    assert node.judge(119.9).why == "held"
    [held] = node.judge(120.0).holders
    assert (held.pid, held.used_bytes, held.rank) == (4242, None, 1)
    assert node.judge(120.0).why == "limit"


def test_a_child_of_a_rank_has_memory_too() -> None:
    """Whoever has ended will be freed: whose it was is not known any more."""
    node = Node()
    node.values[A]["holders"] = "5000=7"
    verdict = node.judge(101.0)
    assert not verdict.is_over and verdict.holders[0].rank == -1


def test_a_process_that_cannot_be_ended_is_waited_for() -> None:
    node = Node(survivors=(4241,))
    node.living[4241] = Owner("me", "python")
    node.values[A]["holders"] = "4241=7"
    verdict = node.judge(101.0)
    assert not verdict.is_over and verdict.holders[0].whose == OURS


def test_others_memory_is_named_and_never_waited_for() -> None:
    node = Node()
    node.values[A]["holders"] = f"77={30 * GIB}"
    foreign = MemoryHolder(subject=A, index=0, pid=77, used_bytes=30 * GIB, whose=FOREIGN, user="bob", command="python")
    assert node.judge(100.1) == Verdict(True, "free", (foreign,))


def test_a_ranks_process_id_that_is_anothers_by_now_is_foreign() -> None:
    node = Node()
    node.living[4241] = Owner("bob", "vim")
    node.values[A]["holders"] = "4241=7"
    assert node.judge(100.1).is_over
    assert node.judge(100.1).holders[0].whose == FOREIGN


def test_other_devices_are_nobodys_business() -> None:
    node = Node()
    node.values["gpu:C"] = {"holders": "5000=7"}
    assert node.judge(100.1) == Verdict(True, "free")


def test_what_nvml_does_not_tell_is_not_waited_for() -> None:
    for what in ({"holders": None}, {}):
        node = Node()
        node.values[A]["holders"] = "4241=7"
        node.values[B] = dict(what)
        assert node.judge(100.1) == Verdict(True, "unknown")
    node = Node()
    node.values = {}
    assert node.judge(100.1) == Verdict(True, "unknown"), "no driver"


def test_process_ids_of_the_host_are_not_waited_for() -> None:
    node = Node()
    node.namespace = 4026532000
    node.values[A]["holders"] = "4241=7 5000=7"
    assert node.judge(100.1) == Verdict(True, "unknown")
    node.values[A]["holders"] = "4241=7"
    assert not node.judge(100.1).is_over, "a driver that translates"


def test_memory_of_nobody_is_waited_for_while_it_shrinks() -> None:
    node = Node()
    node.values[A]["memory_used_bytes"] = 60 * GIB
    assert [holder.pid for holder in node.judge(100.1).holders] == [0]
    node.values[A]["memory_used_bytes"] = 60 * GIB - SHRINKS_BYTES
    assert not node.judge(100.4).is_over
    node.values[A]["memory_used_bytes"] = 60 * GIB - SHRINKS_BYTES - 1
    assert node.judge(100.7) == Verdict(True, "free"), "it stays: a leak of the driver's, or another container's"


def test_what_a_driver_keeps_for_itself_is_nothing() -> None:
    node = Node()
    node.values[A]["memory_used_bytes"] = UNNAMED_BYTES - 1
    node.values[B] |= {"memory_used_bytes": 31 * GIB, "holders": f"77={30 * GIB}"}
    assert node.judge(100.1).is_over
    node.values[B]["holders"] = "77=?"
    assert node.judge(100.1).is_over, "how much is nobody's cannot be told"


def test_a_limit_of_nothing() -> None:
    node = Node(limit_s=0.0)
    node.values[A]["holders"] = "4241=7"
    assert node.judge(100.0).why == "limit"
