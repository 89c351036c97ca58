"""What replicas hold is summed after the same steps on all ranks; who differs shows, and training is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.hooks.checksums import checker as checking
from guardrun.hooks.checksums.checker import Checker, Watched
from guardrun.hooks.checksums.replicas import ReplicaSet
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.checksums_page import Kind
from guardrun.hooks.wire.messages import HookFailed, Noted
from guardrun.supervisor.engine.model.events import ReplicaCheck
from guardrun.supervisor.engine.observation.tensor_groups import parse_groups
from tests.hooks.bed import Bed, finish
from tests.support.keep_group import KEEP_GROUP
from tests.support.ports import free_ports

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "replicas.py")
FLIPPED = ("static", "hybrid")
"""Ways in which rank 1 flips a bit after step 55, in its first parameter."""


class Told(msgspec.Struct):
    """What a rank prints."""

    is_same: bool
    found: dict[str, list[ReplicaCheck]]
    groups: dict[str, tuple[int, int] | None]
    """Whose gradients are averaged, as it was told to those who compare samples."""


def differing(checks: list[list[ReplicaCheck]], kind: Kind, count: int) -> list[int] | None:
    """Places of tensors in which two ranks differ; None where they can't be compared."""
    [first, second] = [next((one for one in rank if (one.kind, one.count) == (kind, count)), None) for rank in checks]
    if first is None or second is None or first.layout != second.layout:
        return None
    groups = zip(parse_groups(first.digests) or (), parse_groups(second.digests) or (), strict=True)
    return [place for place, (one, other) in enumerate(groups) if one != other]


def test_replicas_are_compared_however_they_are_trained() -> None:
    """Two DDP models at a time, layers that are unused, frozen, tied, ignored or sharded, joins, ZeRO, a mesh."""
    [port] = free_ports(1)
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with Bed(world_size=2) as bed:
        for rank in range(2):
            bed.make_board(rank)
        ranks = [bed.start([KEEP_GROUP, SCRIPT, *FLIPPED], rank=rank, more=more) for rank in range(2)]
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
    told = [msgspec.json.decode(rank.stdout, type=Told) for rank in done]
    assert all(rank.is_same for rank in told), "checks change no bit of training, and draw no random number"
    assert told[0].groups == told[1].groups and told[0].groups.pop("sharded") is None
    [group] = set(told[0].groups.values())
    assert group is not None and group[0] > 0 and group[1] == 2
    for way in told[0].found:
        checks = [rank.found[way] for rank in told]
        if way in ("sharded", "joined"):
            # Shards are no replicas; ranks that have joined count other steps.
            assert checks == [[], []], way
            continue
        for of in checks:
            counts = [(one.count, one.is_echo) for one in of if one.kind == Kind.PARAMETERS]
            assert counts == [(50, False), (60, True)], way
            assert {one.replicas for one in of} == {2}
        assert len({one.of for of in checks for one in of}) == 1, way
        [names] = [one.names for of in checks for one in of if one.names]
        expected = [0] if way in FLIPPED else []
        assert differing(checks, Kind.PARAMETERS, 50) == [], way
        assert differing(checks, Kind.PARAMETERS, 60) == expected, way
        # Each rank has the moments of its own part there.
        assert differing(checks, Kind.MOMENTS, 60) == (None if way == "zero" else []), way
        if way == "hybrid":
            assert names[:2] == ["a replicated mesh dimension", "parameter 0 [8, 8]"]
        else:
            assert names[0] == "a DistributedDataParallel model" and names[1] in ("0.weight", "extra.weight")
        assert ("2.bias" in names) == (way not in ("ignored", "tied", "hybrid"))
        writes = [one.writes for of in checks for one in of if one.kind == Kind.PARAMETERS and one.is_echo]
        assert min(writes) > 0 and (len(set(writes)) == 1) == (way != "zero"), way
    assert len({one.of for checks in told[0].found.values() for one in checks}) == 8


class Optimizer:
    """One that steps."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": []}]
        self.state: dict[Any, Any] = {}


class Steps(ReplicaSet):
    """A set that is only counted."""

    def __init__(self) -> None:
        super().__init__("a model", [0, 1], 0, 0)

    def find(self) -> list[tuple[str, Any]]:
        return []

    def adopt(self, optimizer: Any, parameters: set[int]) -> bool:
        super().adopt(optimizer, parameters)
        return super().adopt(optimizer, {id(self)})

    def parameters(self) -> list[tuple[str, Any]] | None:
        return [("me", self)]


def counts(order: str) -> list[int]:
    """The count after each step of these optimizers, by letter; a capital one is made anew before it steps."""
    steps, optimizers, found = Steps(), dict[str, Optimizer](), []
    kept = []
    for letter in order:
        name = letter.lower()
        if letter != name or name not in optimizers:
            kept.append(optimizers.get(name))
            optimizers[name] = Optimizer()
        optimizer = optimizers[name]
        steps.adopt(optimizer, {id(steps)})
        steps.ends_step(id(optimizer))
        found.append(steps.count)
    return found


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("aaaa", [1, 2, 3, 4]),
        ("abababab", [1, 1, 1, 2, 2, 3, 3, 4]),  # the inner one, then the outer one; or two of one model
        ("aaaAaaa", [1, 2, 3, 3, 3, 4, 5]),  # another takes its place
        ("aabaab", [1, 2, 2, 2, 3, 3]),  # out of step, on all ranks alike
    ],
)
def test_a_step_ends_with_its_last_optimizer_and_all_ranks_count_alike(order: str, expected: list[int]) -> None:
    assert counts(order) == expected


def test_checks_come_after_fifty_steps_and_then_at_multiples_each_with_an_echo() -> None:
    watched = Watched(Steps(), 500)
    due = [(count, not watched.is_main(count)) for count in range(1, 1600) if watched.is_due(count)]
    assert due == [
        (50, False), (60, True), (500, False), (510, True), (1000, False), (1010, True), (1500, False), (1510, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (400, [(450, False), (460, True), (500, False), (510, True), (1000, False), (1010, True)]),
        (
            500,
            [(510, True), (550, False), (560, True), (1000, False), (1010, True)],
        ),  # as 500 was
        (497, [(510, True), (547, False), (557, True), (1000, False), (1010, True)]),
        (450, [(500, False), (510, True), (1000, False), (1010, True)]),
        (7000, [(7010, True), (7050, False), (7060, True), (7500, False), (7510, True), (8000, False), (8010, True)]),
    ],
)
def test_what_is_resumed_is_checked_where_it_was_checked_before(base: int, expected: list[tuple[int, bool]]) -> None:
    watched = Watched(Steps(), 500, base)
    counts = range(1, 1020 - base % 1000)
    assert [(base + n, not watched.is_main(n)) for n in counts if watched.is_due(n)] == expected


def test_a_resumed_rank_whose_checks_cost_too_much_checks_half_as_often() -> None:
    watched = Watched(Steps(), 500, 400)
    for count, cost_ns in ((50, 10**9), (60, 10**9), (100, 400_000), (110, 400_000), (600, 900_000), (610, 1)):
        watched.replicas.count = count
        watched.book(count * 10**6 + 10**12, count * 10**6 + 10**12 + cost_ns)
        assert watched.every == (500 if count < 610 else 1000)
    assert not watched.is_due(1100) and watched.is_due(1600), "steps 1500 and 2000"


@pytest.mark.parametrize(("step", "base"), [(None, 0), ("400", 400), ("", 0), ("-3", 0), ("last", 0)])
def test_all_ranks_are_told_from_where_to_count(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, step: str | None, base: int
) -> None:
    """By the environment: what each has loaded, and when that is known, differs."""
    monkeypatch.delenv("GUARDRUN_RESUME_STEP", raising=False)
    if step is not None:
        monkeypatch.setenv("GUARDRUN_RESUME_STEP", step)
    monkeypatch.setattr(rank, "world_size", 2)
    checking.install(rank)
    checker = rank.checksums
    assert isinstance(checker, Checker) and checker._base == base
    checker.watch(Steps())
    assert checker._sets[0].is_due(100) == (base == 400)


def test_a_rank_whose_checks_cost_too_much_checks_half_as_often() -> None:
    """What it still checks the others check as well."""
    watched = Watched(Steps(), 500)
    for count, cost_ns in ((50, 10**9), (60, 10**9), (500, 400_000), (510, 400_000), (1000, 900_000), (1010, 1)):
        watched.replicas.count = count
        watched.book(count * 10**6 + 10**12, count * 10**6 + 10**12 + cost_ns)
        assert watched.every == (500 if count < 1010 else 1000)
    assert not watched.is_due(1500) and watched.is_due(2000)


def test_what_fails_three_times_is_turned_off(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    checker = rank.checksums = Checker(rank, 20)
    steps, optimizer = Steps(), Optimizer()
    checker.watch(steps)
    monkeypatch.setattr(Checker, "_start", fail)
    for count in range(1, 61):
        if rank.checksums is not None:
            checker.on_optimizer(optimizer, count)
    assert rank.checksums is None
    assert [kind for kind, fields in drain(rank) if fields.get("hook") == "checksums"] == ["HookFailed"]


def drain(rank: Rank) -> list[tuple[str, dict[str, object]]]:
    """What the rank was to send."""
    found = []
    while not rank.outbox._queue.empty():
        found.append(rank.outbox._queue.get())
    return found


def test_nothing_is_asked_while_a_graph_is_captured(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(Checker, "_start", lambda self, watched: started.append(watched))
    checker = Checker(rank, 20)
    checker.watch(Steps())
    optimizer = Optimizer()
    rank.words[checking._CAPTURES] = 1
    for count in range(1, 41):
        checker.on_optimizer(optimizer, count)
    assert not started
    rank.words[checking._CAPTURES] = 0
    for count in range(41, 71):
        checker.on_optimizer(optimizer, count)
    assert len(started) == 3
