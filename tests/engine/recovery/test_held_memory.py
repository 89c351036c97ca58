"""What ranks were started into: noted with the incident that they were restarted for, and said where it may be felt."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.gpu.memory_release import FOREIGN, OURS, MemoryHolder
from tests.engine.conftest import Told

DEAD = MemoryHolder(subject="gpu:A", index=3, pid=4242, used_bytes=60 << 30, rank=1)
BOBS = MemoryHolder(subject="gpu:A", index=3, pid=77, used_bytes=None, whose=FOREIGN, user="bob", command="python")


def restart(told: Told, *waits: ev.MemoryWait) -> list[str]:
    """Crash, and start again into this; what is said at the start."""
    told.running()
    told.crashed()
    told.chosen()
    ranks = [ev.Rank(global_rank=r, local_rank=r, pid=200 + r, node="node-a") for r in range(2)]
    actions = told.tell(ev.AttemptStarted(attempt=1, ranks=ranks, memory=list(waits)))
    return [action.text for action in actions if isinstance(action, ac.Say)]


def noted(told: Told) -> list[dict[str, Any]]:
    [incident] = told.incidents.values()
    return list(incident.evidence.get("gpu_memory", []))


def test_what_was_not_freed_is_named_and_noted(told: Told) -> None:
    wait = ev.MemoryWait(node="node-a", waited_s=19.2, why="limit", asked_s=20.0, holders=[DEAD, BOBS])
    assert restart(told, wait) == [
        "node-a: GPU memory of the last attempt was not freed within 20 s: 60.0 GiB of GPU 3 by process 4242 (rank 1), "
        "which has ended; memory of GPU 3 by process 77 (python) of user bob, which is none of this run"
    ]
    [one] = noted(told)
    assert (one["node"], one["waited_s"], [holder["pid"] for holder in one["holders"]]) == ("node-a", 19.2, [4242, 77])


def test_what_was_freed_in_time_is_said_where_it_took_long(told: Told) -> None:
    wait = ev.MemoryWait(node="node-a", waited_s=3.25, why="free", asked_s=4.0)
    assert restart(told, wait) == ["node-a: the start waited 3.2 s for GPU memory"]


def test_a_driver_that_did_not_answer_is_noted_only(told: Told) -> None:
    assert restart(told, ev.MemoryWait(node="node-a", waited_s=2.1, why="unknown")) == []
    assert [wait["why"] for wait in noted(told)] == ["unknown"]


def test_a_moment_and_others_memory_are_noted_only(told: Told) -> None:
    assert restart(told, ev.MemoryWait(node="node-a", waited_s=0.3, why="free", holders=[BOBS])) == []
    assert noted(told)


def test_nothing_to_tell_is_nothing(told: Told) -> None:
    assert restart(told) == []
    assert noted(told) == []


def test_a_process_that_cannot_be_ended_and_memory_of_nobody(told: Told) -> None:
    stuck = MemoryHolder(subject="gpu:A", index=0, pid=5, used_bytes=1 << 30, whose=OURS)
    nobodys = MemoryHolder(subject="gpu:A", index=0, used_bytes=3 << 30)
    [said] = restart(told, ev.MemoryWait(node="n", waited_s=20, why="limit", asked_s=20, holders=[stuck, nobodys]))
    assert "1.0 GiB of GPU 0 by process 5, which cannot be ended; 3.0 GiB of GPU 0, by no process" in said
