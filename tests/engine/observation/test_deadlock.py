"""Whether a rank's threads can ever go on, from what each of them waits for."""

from __future__ import annotations

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.deadlock import (
    Waiter,
    Waits,
    is_closed,
    is_monitor,
    key,
    may_go_on,
    why,
)


def world(*waits: Waits, **more: object) -> list[Waiter]:
    return [Waiter(pid=1, tid=number, waits=one, **more) for number, one in enumerate(waits, 1)]  # type: ignore[arg-type]


def test_one_thread_that_may_go_on_is_enough() -> None:
    assert is_closed(world(Waits.LOCK, Waits.PIPE, Waits.CHILD), 1)
    assert not is_closed(world(Waits.LOCK, Waits.OPEN), 1)
    assert not is_closed(world(Waits.OPEN, Waits.LOCK), 1)
    assert not is_closed(world(Waits.LOCK), 7), "the thread that is asked about is not there"
    assert is_closed([*world(Waits.LOCK), Waiter(pid=1, tid=2, name="gloo_tcp_loop", waits=Waits.OPEN)], 1)
    assert not is_closed(
        [*world(Waits.LOCK), Waiter(pid=1, tid=2, name="gloo_tcp_loop", waits=Waits.OPEN, is_python=True)], 1
    )
    assert is_closed([*world(Waits.LOCK), Waiter(pid=1, tid=2, waits=Waits.OPEN, is_monitor=True)], 1)


def test_words_and_keys() -> None:
    stopped = Waiter(pid=9, tid=9, waits=Waits.STOPPED)
    assert "stopped (9)" in why([*world(Waits.CHILD), stopped], 1)
    assert "other end" in why(world(Waits.PIPE), 1)
    assert "release" in why(world(Waits.LOCK), 1)
    assert key(world(Waits.LOCK, switches=3)) != key(world(Waits.LOCK, switches=4))
    helper = Waiter(pid=1, tid=5, name="gloo_tcp_loop", waits=Waits.OPEN, switches=77)
    assert key([*world(Waits.LOCK), helper]) == key(world(Waits.LOCK))


def test_whoever_is_stopped_is_not_asked_and_ends_nothing() -> None:
    assert not is_closed(world(Waits.STOPPED, Waits.LOCK), 1), "whoever stopped it may let it run"
    assert is_closed(world(Waits.CHILD, Waits.STOPPED), 1)
    assert [may_go_on(one) for one in world(*Waits)] == [one is Waits.OPEN for one in Waits]
    assert "no more than itself" in why(world(Waits.CHILD, Waits.LOCK), 1)


def stack(*files: str) -> list[Frame]:
    """Innermost first."""
    return [Frame("f", file, 1) for file in files]


def test_a_thread_of_the_script_that_calls_what_is_wrapped_is_no_monitor() -> None:
    """It saves in the background, and waits over gloo for another rank, which will come."""
    start = ("/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/threading.py")
    wrapper, call = "/x/guardrun/hooks/patches/collectives.py", "/x/site-packages/torch/distributed/distributed_c10d.py"
    saver = stack(wrapper, call, wrapper, "/x/site-packages/torch/distributed/checkpoint/utils.py", *start)
    assert not is_monitor(saver)
    assert not is_monitor(stack(wrapper, "/home/u/train.py", *start))
    assert is_monitor(stack("/usr/lib/python3.11/queue.py", "/x/guardrun/hooks/beat/heartbeat.py"))
    assert is_monitor(stack("/x/guardrun/hooks/beat/heartbeat.py", *start))
    assert is_monitor(stack(start[0], "/x/site-packages/tqdm/_monitor.py", *start))
    assert not is_monitor([]) and not is_monitor(stack(*start))
