"""Batches are named around a step, and left out of what torch's data loaders hand out when they are met again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import guardrun.hooks
from guardrun.hooks.data import batch_trail
from guardrun.hooks.data.batch_skips import Skips
from guardrun.hooks.guards import agreement
from guardrun.hooks.guards.agreement import Agreement
from guardrun.hooks.patches import dataloaders
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire import messages
from guardrun.hooks.wire.board import Field
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import OwnBatches, SkipOrder
from guardrun.supervisor.engine.model.verdicts import BadStep, Poisoned
from guardrun.supervisor.engine.recovery.voluntary.batch_skips import plan

SAMPLES = 40
FILE = "skips-0.json"
Made = Callable[[], Any]


def make_store() -> Any:
    """No fixture: it is closed when nobody has it any more, as the test's function returns."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module", autouse=True)
def _libuv_is_loaded() -> None:
    """It opens a pipe for signals, once a process."""
    make_store()


class Numbers:
    """A dataset of the numbers below SAMPLES."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Attempts:
    """Attempts of one rank, one after the other, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        from torch.utils.data import dataloader

        self._monkeypatch, self._module, self.folder = monkeypatch, dataloader, folder
        self._kind = dataloader._BaseDataLoaderIter
        self._plain = {name: getattr(self._kind, name) for name in ("__init__", "__next__", "_next_index")}
        for name, function in self._plain.items():
            monkeypatch.setattr(self._kind, name, function)

    def begin(self, orders: list[SkipOrder] | None = None) -> Rank:
        """The next one."""
        for name, function in self._plain.items():
            setattr(self._kind, name, function)
        settings: dict[str, object] = {"sockets": str(self.folder)}
        if orders is not None:
            (self.folder / FILE).write_bytes(msgspec.json.encode(orders))
            settings["skips"] = FILE
        rank = Rank(settings, 0)
        dataloaders.install(self._module, rank)
        self._monkeypatch.setattr(ranks, "active", rank)
        return rank


class Blob:
    """A sample that a sampler hands out itself."""


class BlobSampler:
    """Remembers its batches weakly."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Blob]] = []

    def __iter__(self) -> Iterator[list[Any]]:
        for _ in range(20):
            blob = Blob()
            self.made.append(weakref.ref(blob))
            yield [blob]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Attempts:
    monkeypatch.setenv("RANK", "0")
    return Attempts(monkeypatch, tmp_path)


def make_loader(batch_size: int | None = 4, **more: Any) -> Any:
    from torch.utils.data import DataLoader

    workers = {"multiprocessing_context": "fork"} if more.get("num_workers") else {}
    return DataLoader(Numbers(), batch_size, **workers, **more)  # type: ignore[arg-type]


def list_of(batch: Any) -> list[int]:
    found = batch.tolist() if hasattr(batch, "tolist") else batch
    return found if isinstance(found, list) else [found]


def train(rank: Rank, batches: Iterable[Any], accumulate: int = 1) -> list[list[int]]:
    """What it trains on: a backward() a batch."""
    trained = []
    for batch in batches:
        assert rank.trail is not None
        rank.trail.on_backward()
        trained.append(list_of(batch))
        if len(trained) % accumulate == 0:
            rank.words[Field.STEP] += 1
    return trained


def named(rank: Rank, step: int) -> ev.BatchesNamed:
    """What the rank says of the batches around a step."""
    assert isinstance(rank.trail, batch_trail.Trail)
    rank.trail.send_batches(step)
    kind, fields = rank.outbox.get(0) or ("", {})
    assert kind == "BatchesNamed"
    fields["batches"] = [ev.NamedBatch(*one) for one in fields["batches"]]  # type: ignore[attr-defined]
    return ev.BatchesNamed(attempt=0, global_rank=0, **fields)  # type: ignore[arg-type]


def order(rank: Rank, step: int, *, is_clear: bool = True) -> tuple[list[SkipOrder], str]:
    """What is to be left out where a step was not finite."""
    bad = BadStep(named={0: named(rank, step)}, is_clear=is_clear, is_step_known=True)
    verdict = Poisoned(key="", step=step, since_s=0.0, from_step=step - 1, bad_step=bad)
    return plan(verdict, [0], "001")


def sent(rank: Rank) -> list[list[list[int]]]:
    """What the rank says that it has left out."""
    items = []
    while (item := rank.outbox.get(0)) is not None:
        items.append(item)
    assert not [fields for kind, fields in items if kind == "HookFailed"]
    return [fields["batches"] for kind, fields in items if kind == "BatchesLeftOut"]  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(("workers", "is_persistent"), [(0, False), (1, False), (4, True)])
def test_a_batch_is_left_out_once_and_of_no_other_loader(attempts: Attempts, workers: int, is_persistent: bool) -> None:
    orders: list[SkipOrder] | None = None
    whole = [list(range(at, at + 4)) for at in range(0, SAMPLES, 4)]
    for _ in range(2):
        rank = attempts.begin(orders)
        loader = make_loader(num_workers=workers, persistent_workers=is_persistent)
        held_out = make_loader()
        checked = [list_of(batch) for batch in held_out]
        first, second = (train(rank, loader) for _ in range(2))
        assert (checked, second, len(loader)) == (whole, whole, 10)
        if orders is None:
            orders, why = order(rank, 6)
            assert not why and first == whole
            assert [one.batches for one in orders[0].ranks.values()] == [[whole[5]]]
    assert first == whole[:5] + whole[6:]
    assert sent(rank) == [[whole[5]]]


class ByThrees:
    """A batch sampler of the script's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(at, min(at + 3, SAMPLES))) for at in range(0, SAMPLES, 3)])

    def __len__(self) -> int:
        return SAMPLES // 3 + 1


def seeded(seed: int) -> Any:
    import torch
    from torch.utils.data import RandomSampler

    return RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(seed))


def in_epoch(epoch: int) -> Any:
    from torch.utils.data import DistributedSampler

    sampler: Any = DistributedSampler(Numbers(), num_replicas=1, rank=0, shuffle=False)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return sampler


def beginning_at(first: int) -> Any:
    return list(range(SAMPLES))[first:]


@pytest.mark.parametrize(
    ("before", "after", "left_out"),
    [
        pytest.param(lambda: make_loader(None), lambda: make_loader(None), [[5]], id="no batches"),
        pytest.param(
            lambda: make_loader(1, batch_sampler=ByThrees()),
            lambda: make_loader(1, batch_sampler=ByThrees()),
            [[15, 16, 17]],
            id="a batch sampler of its own",
        ),
        pytest.param(
            lambda: make_loader(sampler=seeded(1)), lambda: make_loader(sampler=seeded(1)), None, id="shuffled alike"
        ),
        pytest.param(
            lambda: make_loader(sampler=beginning_at(0)),
            lambda: make_loader(sampler=beginning_at(12)),
            [[20, 21, 22, 23]],
            id="resumed at a batch before",
        ),
        pytest.param(
            lambda: make_loader(sampler=beginning_at(0)),
            lambda: make_loader(sampler=beginning_at(20)),
            [[20, 21, 22, 23]],
            id="resumed at that batch",
        ),
        pytest.param(lambda: make_loader(sampler=seeded(1)), lambda: make_loader(sampler=seeded(2)), [], id="shuffled"),
        pytest.param(
            lambda: make_loader(None, sampler=seeded(1)),
            lambda: make_loader(None, sampler=seeded(2)),
            [],
            id="the same sample in another order",
        ),
        pytest.param(
            lambda: make_loader(sampler=in_epoch(1)), lambda: make_loader(sampler=in_epoch(2)), [], id="another epoch"
        ),
        pytest.param(
            lambda: make_loader(sampler=beginning_at(20)),
            lambda: make_loader(sampler=beginning_at(0)),
            [[36, 37, 38, 39]],
            id="resumed from before where it had begun",
        ),
        pytest.param(
            lambda: make_loader(num_workers=2),
            lambda: make_loader(num_workers=2, in_order=False),
            [],
            id="in any order",
        ),
    ],
)
def test_a_batch_is_known_by_its_place_in_the_order(
    attempts: Attempts, before: Made, after: Made, left_out: list[list[int]] | None
) -> None:
    orders: list[SkipOrder] | None = None
    batches: list[list[int]] = []
    for number, make in enumerate((before, after)):
        rank = attempts.begin(orders)
        loader = make()
        expected = [index if isinstance(index, list) else [index] for index in loader._index_sampler]
        loader = make()
        trained = train(rank, loader)
        if not number:
            assert trained == expected
            orders, why = order(rank, min(6, len(trained)))
            assert not why
            batches = trained
    left_out = [batches[5]] if left_out is None else left_out
    left_out = [batches[5]] if left_out is None else left_out
    assert sorted(trained) == sorted(batch for batch in expected if batch not in left_out)
    assert [batch for batches in sent(rank) for batch in batches] == left_out


def test_all_batches_of_a_step_are_left_out(attempts: Attempts) -> None:
    orders: list[SkipOrder] | None = None
    for _ in range(2):
        rank = attempts.begin(orders)
        trained = train(rank, make_loader(2), accumulate=4)
        if orders is None:
            orders, _ = order(rank, 3)
            whole = trained
    assert trained == whole[:8] + whole[12:] and sent(rank) == [whole[8:12]]


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Fetch a batch while the one before is trained on, as accelerate does."""
    iterator = iter(batches)
    current = next(iterator)
    for following in iterator:
        yield current
        current = following
    yield current


@pytest.mark.parametrize("step", [2, 6, 10])
def test_of_a_loader_that_fetches_ahead_the_batch_before_is_left_out_too(attempts: Attempts, step: int) -> None:
    orders: list[SkipOrder] | None = None
    for _ in range(2):
        rank = attempts.begin(orders)
        trained = train(rank, one_ahead(make_loader()))
        if orders is None:
            orders, why = order(rank, step)
            assert not why
            whole = trained
    assert whole[step - 1] not in trained
    assert trained == whole[: step - 1] + whole[step + 1 :]


@pytest.mark.real("accelerate")
def test_accelerate_s_loaders_resumed_in_the_middle_of_an_epoch(attempts: Attempts) -> None:
    """They fetch ahead, and resume with a sampler of another kind."""
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    orders: list[SkipOrder] | None = None
    for begin in (0, 3):
        rank = attempts.begin(orders)
        loader = prepare_data_loader(make_loader(sampler=seeded(1)), num_processes=1, process_index=0)
        trained = train(rank, skip_first_batches(loader, begin) if begin else loader)
        if orders is None:
            orders, why = order(rank, 6)
            assert not why
            whole = trained
    assert trained == whole[3:5] + whole[7:] and sent(rank) == [whole[5:7]]


def test_where_the_step_before_may_have_done_it_both_are_left_out(attempts: Attempts) -> None:
    orders: list[SkipOrder] | None = None
    for _ in range(2):
        rank = attempts.begin(orders)
        trained = train(rank, make_loader())
        if orders is None:
            orders, _ = order(rank, 7, is_clear=False)
            whole = trained
    assert trained == whole[:5] + whole[7:]


def test_at_another_place_of_the_script_nothing_is_left_out(attempts: Attempts) -> None:
    rank = attempts.begin()
    whole = train(rank, make_loader())
    orders, why = order(rank, 7)
    rank = attempts.begin(orders)
    assert train(rank, make_loader()) == whole and not why and not sent(rank)


class Reused:
    """It hands out one list, which it fills anew each time."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for at in range(0, SAMPLES, 4):
            batch[:] = range(at, at + 4)
            yield batch


class Tensors:
    def __iter__(self) -> Iterator[list[Any]]:
        import torch

        return iter(torch.arange(SAMPLES).reshape(-1, 4).unbind())


def stream() -> Any:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):  # type: ignore[misc]  # torch is not followed by mypy
        def __iter__(self) -> Iterator[int]:
            return iter(range(SAMPLES))

    return DataLoader(Stream(), 4)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (stream, batch_trail.HAS_NO_INDICES),
        (lambda: make_loader(num_workers=2, in_order=False), batch_trail.ANY_ORDER),
        (lambda: make_loader(1, batch_sampler=Tensors()), batch_trail.NOT_PLAIN),
        (lambda: make_loader(1, batch_sampler=Reused()), batch_trail.SAME_LIST),
        (lambda: zip(make_loader(), make_loader(sampler=seeded(1)), strict=True), batch_trail.SEVERAL),
        (lambda: make_loader(1, batch_sampler=[[0] * (batch_trail.MAX_BATCH + 1)] * 8), batch_trail.TOO_LARGE),
        (lambda: [[0]] * 10, batch_trail.NO_LOADER),
    ],
)
def test_it_is_said_why_nothing_is_left_out(attempts: Attempts, make: Made, why: str) -> None:
    rank = attempts.begin()
    train(rank, (batch[0] if isinstance(batch, tuple) else batch for batch in make()))
    orders, said = order(rank, 6)
    assert said == f"rank 0: {why}"
    assert [(one.step, one.ranks) for one in orders] == [(6, {})]


def test_an_evaluation_between_two_steps_is_no_part_of_them(attempts: Attempts) -> None:
    rank = attempts.begin()
    trained = []
    for number, batch in enumerate(make_loader(), start=1):
        trained += train(rank, [batch])
        if number == 5:
            list(make_loader(2))
    [found], why = order(rank, 6)
    assert not why and found.ranks[0].batches == [trained[5]]


def test_what_a_sampler_raises_comes_where_it_came(attempts: Attempts) -> None:
    class Failing:
        def __iter__(self) -> Iterator[int]:
            for index in range(SAMPLES):
                if index == 18 and is_failing:
                    raise ValueError("no more")
                yield index

    orders: list[SkipOrder] | None = None
    is_failing = False
    seen: list[list[int]] = []
    for _ in range(2):
        rank = attempts.begin(orders)
        loader = make_loader(2, sampler=Failing())
        seen = []
        try:
            train(rank, (seen.append(list_of(batch)) or batch for batch in loader), accumulate=4)  # type: ignore[func-returns-value]
        except ValueError as error:
            assert str(error) == "no more"
        else:
            assert not is_failing
        if orders is None:
            orders, _ = order(rank, 3)
        is_failing = True
    assert seen == [[at, at + 1] for at in range(0, 18, 2)] and not sent(rank)


def test_what_is_kept_is_bounded(attempts: Attempts) -> None:
    """One iterator a step, as some scripts have it, and large batches: nothing of a pass is held on to."""
    import gc
    import weakref

    rank = attempts.begin()
    batches = [list(range(at, at + 1000)) for at in range(100)]
    train(rank, make_loader(1, batch_sampler=batches, collate_fn=len))
    assert isinstance(rank.trail, batch_trail.Trail)
    [kept] = rank.trail._kept.values()
    assert [one.indices for one in kept.batches] == batches[-batch_trail.MAX_KEPT_INDICES // 1000 :]
    passes = []
    for _ in range(3):
        iterator = iter(make_loader())
        next(iterator)
        passes.append(weakref.ref(iterator._sampler_iter))
        del iterator
    gc.collect()
    assert [each() for each in passes] == [None] * 3


def test_the_largest_message_is_small_enough(attempts: Attempts) -> None:
    rank = attempts.begin()
    batches = [[1 << 40] * batch_trail.MAX_BATCH for _ in range(8)]
    train(rank, make_loader(1, batch_sampler=batches, collate_fn=len))
    assert rank.trail is not None
    rank.trail.send_batches(6)
    _, fields = rank.outbox.get(0) or ("", {})
    assert len(fields["batches"]) == 5  # type: ignore[arg-type]
    assert len(msgspec.msgpack.encode(fields)) < 0.9 * messages.MAX_MESSAGE_BYTES


# Several ranks ------------------------------------------------------------------------------------------------------


def iterate(rank: Rank, indices: list[list[int]], store: Any) -> list[object]:
    """One of two ranks hands out what its sampler does; by the key "a"."""
    assert isinstance(rank.skips, Skips)
    rank.skips.agreement = Agreement(store, 2)

    class Loader:
        _sampler_iter = iter(())

    iterator, source = Loader(), iter(indices)
    iterator.__dict__[batch_trail.STREAM] = known = batch_trail.Stream.__new__(batch_trail.Stream)
    known.key, known.why = "a", ""
    found = []
    while True:
        try:
            found.append(rank.skips.next_index(iterator, lambda _: next(source)))
        except StopIteration:
            return found


@pytest.mark.parametrize("is_same_order", [True, False])
def test_all_ranks_leave_out_theirs_or_none(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, is_same_order: bool
) -> None:
    """A rank that resumes in another order has nothing to leave out: with one batch fewer the other would hang."""
    if not is_same_order:
        monkeypatch.setattr(agreement, "WAIT_S", 0.2)
    own = {0: [[0, 1], [2, 3], [4, 5]], 1: [[6, 7], [8, 9], [10, 11]]}
    shares = {number: OwnBatches(batches=[one[1]], before=one[0], loader="a") for number, one in own.items()}
    orders = [SkipOrder(id="001-0", incident="001", step=2, ranks=shares)]
    both: list[Rank] = []
    for number in own:
        monkeypatch.setenv("RANK", str(number))
        both.append(attempts.begin(orders))
    if not is_same_order:
        own[1].reverse()
    store = make_store()
    found: dict[int, list[object]] = {}

    def run(number: int) -> None:
        found[number] = iterate(both[number], own[number], store.clone())

    threads = [threading.Thread(target=run, args=(number,)) for number in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if is_same_order:
        assert found == {number: [one[0], one[2]] for number, one in own.items()}
        assert [sent(rank) for rank in both] == [[[own[number][1]]] for number in own]
    else:
        assert found == own and not any(sent(rank) for rank in both)


def test_several_ranks_without_a_process_group_leave_out_nothing(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[SkipOrder] | None = None
    for _ in range(2):
        rank = attempts.begin(orders)
        trained = train(rank, make_loader())
        if orders is None:
            orders, _ = order(rank, 6)
            whole = trained
            monkeypatch.setenv("WORLD_SIZE", "2")
    assert trained == whole
    kind, fields = rank.outbox.get(0) or ("", {})
    assert kind == "Noted" and "no process group" in str(fields["text"])


# The script's own loaders -------------------------------------------------------------------------------------------


def test_a_script_that_asks_leaves_them_out_itself(attempts: Attempts) -> None:
    orders: list[SkipOrder] | None = None
    for _ in range(2):
        rank = attempts.begin(orders)
        asked = guardrun.hooks.skip_batches()
        trained = train(rank, make_loader())
        if orders is None:
            assert asked == []
            orders, _ = order(rank, 6)
            whole = trained
    assert asked == [(6, [whole[5]])]
    assert trained == whole and not sent(rank) and guardrun.hooks.skip_batches() == []


def test_where_batches_are_unknown_it_is_told_the_step(attempts: Attempts) -> None:
    rank = attempts.begin()
    train(rank, [[0]] * 10)
    orders, _ = order(rank, 6, is_clear=False)
    attempts.begin(orders)
    assert guardrun.hooks.skip_batches() == [(5, []), (6, [])]


def test_a_file_that_is_gone_leaves_nothing_out(attempts: Attempts) -> None:
    rank = attempts.begin()
    train(rank, make_loader())
    orders, _ = order(rank, 6)
    rank = attempts.begin(orders)
    rank.orders = None
    (attempts.folder / FILE).unlink()
    assert guardrun.hooks.skip_batches() == []
    assert (rank.outbox.get(0) or ("",))[0] == "HookFailed"


def test_samples_that_a_sampler_hands_out_itself_are_let_go_of(attempts: Attempts) -> None:
    """They may be gigabytes."""
    from torch.utils.data import DataLoader

    class Given:
        def __getitem__(self, blob: Blob) -> int:
            return 1

    sampler, rank = BlobSampler(), attempts.begin()
    for _ in DataLoader(Given(), batch_sampler=sampler):  # type: ignore[arg-type]
        rank.words[Field.STEP] += 1
    assert len(sampler.made) == 20 and sum(one() is not None for one in sampler.made) <= 3
    assert named(rank, 20).why == batch_trail.NOT_PLAIN
