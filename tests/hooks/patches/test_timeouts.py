"""Whose timeout a process group has: the script's, the user's, torch's, or guardrun's."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.patches import timeouts
from guardrun.hooks.rank.rank import private_words
from guardrun.hooks.wire.board import Field

OURS, TORCHS = timedelta(seconds=2100), timedelta(seconds=600)


class Backend:
    """One of a group's."""

    def __init__(self, name: str, timeout: timedelta) -> None:
        self._name = name
        self.options = SimpleNamespace(_timeout=timeout)

    def name(self) -> str:
        return self._name

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout


class Calls:
    """The calls page: which groups the script has given a timeout of its own."""

    def own_timeout_ns(self, name: str) -> int:
        return {"own": 5, "gone": -1}.get(name, 0)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One for which guardrun has set NCCL_TIMEOUT."""
    monkeypatch.setenv("NCCL_TIMEOUT", "2100")
    return SimpleNamespace(
        settings={"nccl_timeout": "2100"},
        words=private_words(),
        calls=Calls(),
        fail=lambda *args: pytest.fail(str(args)),
    )


def default_of(rank: Any, backend: str, torchs: timedelta = TORCHS) -> timedelta:
    default: timedelta = timeouts.wrap_default(lambda backend: torchs, rank)(backend)
    return default


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", "xccl", "somebody's own"])
def test_on_a_device_torch_s_own_stands_until_it_is_read(rank: Any, backend: str) -> None:
    assert default_of(rank, backend) == TORCHS
    rank.words[Field.TIMEOUT_RAISED] = 1
    assert default_of(rank, backend) == OURS
    assert default_of(rank, backend, timedelta(hours=1)) == timedelta(hours=1), "never lowered"


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", "mpi"])
def test_on_hosts_guardrun_s_counts_from_the_start(rank: Any, backend: str) -> None:
    assert default_of(rank, backend) == OURS


@pytest.mark.parametrize(("has_nccl", "expected"), [(True, TORCHS), (False, OURS)])
def test_a_backend_that_nobody_names_is_a_device_s_where_there_are_any(
    rank: Any, monkeypatch: pytest.MonkeyPatch, has_nccl: bool, expected: timedelta
) -> None:
    module = SimpleNamespace(_NCCL_AVAILABLE=has_nccl)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)  # type: ignore[arg-type]
    assert default_of(rank, "undefined") == expected


@pytest.mark.parametrize("text", ["2100", "77"])
def test_the_user_s_counts_everywhere(rank: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Even where it is what guardrun would have set: the launcher leaves its mark out then."""
    monkeypatch.setenv("NCCL_TIMEOUT", text)
    if text == "2100":
        rank.settings = {}
    for backend in ("nccl", "gloo"):
        assert default_of(rank, backend) == timedelta(seconds=int(text))
    frame = sys._getframe()
    assert timeouts.own_timeout_ns(None, frame, rank) == int(text) * 10**9, "guardrun is no less patient"
    assert timeouts.own_timeout_ns(timedelta(seconds=5), frame, rank) == 5 * 10**9


def test_guardrun_s_is_nobody_s_word(rank: Any) -> None:
    assert timeouts.own_timeout_ns(None, sys._getframe(), rank) == 0


def test_groups_that_there_are_get_it_once_they_are_read(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def group(name: str, *backends: Backend) -> SimpleNamespace:
        return SimpleNamespace(
            group_name=name,
            _device_types=list(range(len(backends))),
            _get_backend=lambda device: backends[device],
        )

    half_hour = timedelta(minutes=30)
    usual, own, gone = Backend("nccl", TORCHS), Backend("nccl", TORCHS), Backend("nccl", TORCHS)
    gloo, half = Backend("gloo", half_hour), Backend("nccl", half_hour)
    changed = Backend("nccl", timedelta(seconds=100))
    groups = [group("0", usual), group("own", own), group("gone", gone), group("1", gloo, half), group("2", changed)]
    module = SimpleNamespace(_world=SimpleNamespace(pg_map=dict.fromkeys(range(5))))
    module._world.pg_map = groups
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)  # type: ignore[arg-type]

    timeouts.raise_timeouts(rank)
    assert (usual.options._timeout, half.options._timeout) == (OURS, OURS)
    assert (own.options._timeout, gone.options._timeout, gloo.options._timeout) == (TORCHS, TORCHS, half_hour)
    assert changed.options._timeout == timedelta(seconds=100), "by _set_pg_timeout"

    usual.options._timeout = TORCHS
    rank.settings = {}
    timeouts.raise_timeouts(rank)
    assert usual.options._timeout == TORCHS, "NCCL_TIMEOUT is the user's"
