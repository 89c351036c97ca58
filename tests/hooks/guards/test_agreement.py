"""Ranks that agree by way of a store: all have one verdict, whoever comes late or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from guardrun.hooks.guards import agreement
from guardrun.hooks.guards.agreement import Agreement


def make_store() -> Any:
    """No fixture: it is closed when nobody has it any more, as the test's function returns."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module", autouse=True)
def _libuv_is_loaded() -> None:
    """It opens a pipe for signals, once a process."""
    make_store()


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """What each returns."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_one_that_wants_it_is_enough_and_all_have_the_same() -> None:
    store = make_store()
    ranks = [Agreement(store.clone(), 4) for _ in range(4)]
    for bad in ([], [2], [0, 1, 2, 3], [], [3]):
        asked = [lambda rank=rank, wants=index in bad: rank.ask("a", wants=wants) for index, rank in enumerate(ranks)]
        assert in_threads(*asked) == [bool(bad)] * 4
    assert store.num_keys() == 2, "the last time's"


def test_who_comes_late_gets_what_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()
    ranks = [Agreement(store.clone(), 3) for _ in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(agreement, "WAIT_S", 0.1)
        asked = in_threads(*(lambda rank=rank: rank.ask("a", wants=True) for rank in ranks[:2]))
    assert asked == [None, None]
    assert ranks[2].ask("a", wants=True) is None
    assert in_threads(*(lambda rank=rank: rank.ask("b", wants=True) for rank in ranks)) == [True] * 3


def test_what_a_rank_of_before_has_left_behind_decides_nothing() -> None:
    store = make_store()
    before = [Agreement(store.clone(), 2) for _ in range(2)]
    assert in_threads(*(lambda rank=rank: rank.ask("a", wants=True) for rank in before)) == [True, True]
    assert Agreement(store.clone(), 2).ask("a", wants=False) is None
