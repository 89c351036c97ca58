"""After a resume each sample comes once, whatever the loader is, and whether or not the script skips by itself."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.data import batch_trail, data_replay
from guardrun.hooks.data.data_replay import Replay
from guardrun.hooks.guards.agreement import Agreement
from guardrun.hooks.patches import dataloaders
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.supervisor.collect.ranks.ledgers import LoaderAccount, find_accounts, find_places, read_rings
from guardrun.supervisor.saving.sample_ledgers import SaveAccount, _by_rank

SAMPLES = 42
BATCH = 4
EPOCHS = 3
Make = Callable[[], Any]
Skip = Callable[[Any, int], Iterable[Any]]


class Numbers:
    """A dataset of the numbers below SAMPLES; a sample is a dict, as language models' are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"id": index, "x": 2 * index}


class Saved:
    """A checkpoint: what a script keeps in it, and what the supervisor would have noted."""

    def __init__(self, epoch: int = 0, batches: int = 0, step: int = 0, state: Any = None) -> None:
        self.epoch, self.batches, self.step, self.state = epoch, batches, step, state
        self.loaders: list[LoaderAccount] = []
        self.attempt = self.done = 0
        self.began_ns = time.monotonic_ns()


class Killed(Exception):
    """The attempt ends here."""


class Run:
    """A script's attempts, one after the other, in this process: what it trained on is kept by step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        from torch.utils.data import dataloader, distributed

        self._distributed, self._set_epoch = distributed, distributed.DistributedSampler.set_epoch
        monkeypatch.setattr(distributed.DistributedSampler, "set_epoch", self._set_epoch)
        # A script iterates at the same lines in each attempt, and a test does not.
        monkeypatch.setattr(batch_trail, "find_key", lambda loader: f"{getattr(loader, 'place', 0):016x}")
        self._monkeypatch, self._module, self.folder = monkeypatch, dataloader, folder
        self._kind = dataloader._BaseDataLoaderIter
        self._plain = {name: getattr(self._kind, name) for name in ("__init__", "__next__", "_next_index")}
        for name, function in self._plain.items():
            monkeypatch.setattr(self._kind, name, function)
        self.attempt = -1
        self.acts = self.loads = True
        self.trained: dict[int, tuple[int, list[int]]] = {}
        """Step → epoch and samples, by the last attempt that did it."""
        self.saved = Saved()
        self.rank = Rank({"sockets": str(folder)}, 0)

    def begin(self, resumed: Saved | None = None) -> Rank:
        """The next attempt's rank."""
        if self.rank.trail is not None and self.rank.trail.ledger is not None:  # type: ignore[attr-defined]
            self.rank.trail.ledger.close()  # type: ignore[attr-defined]
        for name, function in self._plain.items():
            setattr(self._kind, name, function)
        self.attempt += 1
        settings: dict[str, object] = {"sockets": str(self.folder)}
        if resumed is not None and resumed.loaders:
            self._compose(resumed)  # with what was taken after the save
            about = SaveAccount(attempt=0, done=0, step=0, saver=0, began_ns=0, world_size=1, loaders=resumed.loaders)
            fields = {"acts": self.acts, "why": "", "step": 0, "ranks": _by_rank(about)}
            (self.folder / "consumed").write_text(json.dumps(fields))
            settings["consumed"] = "consumed"
        self.rank = Rank(settings, self.attempt)
        if self.loads:
            self.rank.note_resumed()
        dataloaders.install(self._module, self.rank)
        self._distributed.DistributedSampler.set_epoch = self._set_epoch
        data_replay.install_sampler(self._distributed, self.rank)
        self._monkeypatch.setattr(ranks, "active", self.rank)
        return self.rank

    def save(self, saved: Saved) -> None:
        """As a rank and its supervisor do at a save."""
        saved.attempt, saved.done, self.saved = self.attempt, int(self.rank.words[Field.STEP]), saved
        self._compose(saved)

    def _compose(self, saved: Saved) -> None:
        places = find_places(read_rings(self.folder, saved.attempt, 0), saved.done)
        saved.loaders = find_accounts({0: places}, saved.done, 0, saved.began_ns)

    def train(
        self,
        make: Make,
        *,
        last: int = 1 << 60,
        every: int = 3,
        accumulate: int = 1,
        skip: Skip | None = None,
    ) -> None:
        """An attempt of a script that resumes at the beginning of its epoch, or skips by itself.

        last: the batch, of this attempt, with which it is killed. every: steps from save to save.
        """
        resumed = self.saved
        rank = self.begin(resumed if resumed.step else None)
        loader, step = make(), resumed.step
        taken = 0
        for epoch in range(resumed.epoch, EPOCHS):
            set_epoch(loader, epoch)
            batches = skip(loader, resumed.batches) if skip and epoch == resumed.epoch else enumerate_all(loader)
            ids: list[int] = []
            for number, batch in batches:
                assert rank.trail is not None
                rank.pace.backwards += 1
                rank.trail.on_backward()
                ids += ids_of(batch)
                taken += 1
                if (number + 1) % accumulate == 0:
                    rank.words[Field.STEP] += 1
                    step += 1
                    self.trained[step] = (epoch, ids)
                    ids = []
                    if step % every == 0:
                        self.save(Saved(epoch, number + 1, step, getattr(loader, "state", None)))
                if taken == last:
                    raise Killed
            resumed = Saved(epoch + 1)

    def sent(self) -> list[dict[str, Any]]:
        """What the rank says of its data."""
        items = []
        while (item := self.rank.outbox.get(0)) is not None:
            items.append(item)
        assert not [fields for kind, fields in items if kind == "HookFailed"]
        return [dict(fields) for kind, fields in items if kind == "DataReplayed"]


def enumerate_all(loader: Any) -> Iterable[tuple[int, Any]]:
    """The script's loop; never the same place as a generator of its own would be."""
    return enumerate(loader)


def ids_of(batch: Any) -> list[int]:
    found = batch.pop("id")  # as a script may before it looks whether it is to be passed over
    return found.tolist() if hasattr(found, "tolist") else [int(found)]


def set_epoch(loader: Any, epoch: int) -> None:
    sampler = loader.sampler if hasattr(loader.sampler, "set_epoch") else getattr(loader, "batch_sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    elif getattr(loader.sampler, "generator", None) is not None:
        loader.sampler.generator.manual_seed(100 + epoch)


def make_loader(batch_size: int | None = BATCH, **more: Any) -> Any:
    from torch.utils.data import DataLoader

    workers = {"multiprocessing_context": "fork"} if more.get("num_workers") else {}
    return DataLoader(Numbers(), batch_size, **workers, **more)  # type: ignore[arg-type]


def distributed(**more: Any) -> Any:
    from torch.utils.data import DistributedSampler

    return DistributedSampler(Numbers(), num_replicas=2, rank=1, **more)  # type: ignore[arg-type]


def by_generator() -> Any:
    import torch
    from torch.utils.data import RandomSampler

    return RandomSampler(range(SAMPLES), generator=torch.Generator())


class ByThrees:
    """A batch sampler of the script's own: other batches in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)
        return iter([order[at : at + 3] for at in range(0, SAMPLES, 3)])

    def __len__(self) -> int:
        return SAMPLES // 3


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    monkeypatch.setenv("RANK", "0")
    made = Run(monkeypatch, tmp_path)
    yield made
    made.begin()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of a loader's workers: it closes its pipe, and nobody waits for it
            thread.join(20)


def undisturbed(run: Run, make: Make, **more: Any) -> dict[int, tuple[int, list[int]]]:
    run.train(make, **more)
    found, run.trained, run.saved = run.trained, {}, Saved()
    assert not run.sent()
    return found


def train_with_kills(run: Run, make: Make, kills: int, seed: int = 0, **more: Any) -> None:
    """To the end; each attempt gets some way further than the one before."""
    pick = random.Random(seed)
    for _ in range(kills):
        try:
            run.train(make, last=pick.randint(2, 9), **more)
        except Killed:
            continue
        return
    run.train(make, **more)


KINDS: dict[str, Make] = {
    "distributed": lambda: make_loader(sampler=distributed()),
    "distributed, one worker": lambda: make_loader(sampler=distributed(), num_workers=1, prefetch_factor=3),
    "distributed, persistent workers": lambda: make_loader(
        sampler=distributed(drop_last=True), num_workers=4, persistent_workers=True, drop_last=True
    ),
    "a seed for each epoch": lambda: make_loader(sampler=by_generator(), drop_last=True),
    "in order": make_loader,
    "a batch sampler of its own": lambda: make_loader(1, batch_sampler=ByThrees()),
    "no batches": lambda: make_loader(None, sampler=distributed()),
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_comes_once(run: Run, kind: str) -> None:
    whole = undisturbed(run, KINDS[kind])
    train_with_kills(run, KINDS[kind], 20)
    assert run.trained == whole


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_accumulated_without_a_step_comes_again(run: Run, seed: int) -> None:
    whole = undisturbed(run, KINDS["distributed"], accumulate=2)
    train_with_kills(run, KINDS["distributed"], 20, seed, accumulate=2)
    assert run.trained == whole


# Scripts that skip by themselves -------------------------------------------------------------------------------------


def by_continue(loader: Any, start: int) -> Iterable[Any]:
    for number, batch in enumerate(loader):
        if number < start:
            ids_of(batch)  # what a batch has lost when it is passed over, the next one has
            batch["x"] += 1000
            continue
        assert (batch["x"] == 2 * batch["id"]).all()
        yield number, batch


def by_islice(loader: Any, start: int) -> Iterable[Any]:
    return enumerate(islice(loader, start, None), start)


class Offset:
    """A batch sampler that begins elsewhere, as accelerate's SkipBatchSampler does."""

    def __init__(self, inner: Any, start: int) -> None:
        self.inner, self.start = inner, start

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.inner), self.start, None)


def by_sampler(loader: Any, start: int) -> Iterable[Any]:
    rest = make_loader(1, batch_sampler=Offset(loader.batch_sampler, start))
    return enumerate(rest, start)


def by_framework(loader: Any, start: int) -> Iterable[Any]:
    """What an installed package does is its own business, even if it passes over batches as a script may."""
    source = "def each(loader, start):\n    for number, batch in enumerate(loader):\n        if number >= start:\n"
    code = compile(f"{source}            yield number, batch\n", "/x/lib/site-packages/trainer/loop.py", "exec")
    module = types.ModuleType("trainer.loop")
    exec(code, module.__dict__)
    each: Callable[[Any, int], Iterable[Any]] = module.each
    return each(loader, start)


@pytest.mark.parametrize("skip", [by_continue, by_islice, by_sampler, by_framework])
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_skipped_twice(run: Run, skip: Skip, workers: int) -> None:
    def make() -> Any:
        return make_loader(sampler=distributed(), num_workers=workers)

    whole = undisturbed(run, make)
    run.trained = {}
    train_with_kills(run, make, 20 if not workers else 4, skip=skip)
    assert run.trained == whole


def test_a_loader_with_a_state_of_its_own_is_left_to_itself(run: Run) -> None:
    """As torchdata's StatefulDataLoader: its iterator goes on where the state says."""
    from torch.utils.data import DataLoader

    class Stateful(DataLoader[Any]):
        start = taken = 0

        def load_state_dict(self, state: int) -> None:
            self.start = state

        def __iter__(self) -> Any:
            self.taken, self.start = self.start, 0
            for number, batch in enumerate(super().__iter__()):
                if number >= self.taken:
                    yield batch

    def make() -> Any:
        loader = Stateful(Numbers(), BATCH, sampler=distributed())  # type: ignore[arg-type]
        return loader

    def restored(loader: Any, start: int) -> Iterable[Any]:
        loader.load_state_dict(start)
        return enumerate(loader, start)

    whole = undisturbed(run, make)
    train_with_kills(run, make, 20, skip=restored)
    assert run.trained == whole


@pytest.mark.real("accelerate")
def test_accelerate_skips_by_itself(run: Run) -> None:
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    def make() -> Any:
        return prepare_data_loader(make_loader(sampler=by_generator()), num_processes=1, process_index=0)

    def skip(loader: Any, start: int) -> Iterable[Any]:
        return enumerate(skip_first_batches(loader, start), start)

    for acts in (True, False):
        run.acts, run.saved = acts, Saved()
        with pytest.raises(Killed):
            run.train(make, last=8)
        with pytest.raises(Killed):
            run.train(make, last=4, skip=skip)
        [told] = run.sent()
        assert told["status"] == "continued"


# What is told --------------------------------------------------------------------------------------------------------


def resumed(run: Run, make: Make, *, before: int = 8, after: int = 4, **more: Any) -> dict[str, Any]:
    """What is said of an attempt that resumes from the one save of the attempt before."""
    with pytest.raises(Killed):
        run.train(make, last=before, every=6)
    first = dict(run.trained)
    with pytest.raises(Killed):
        run.train(make, last=after, every=100, **more)
    assert first
    [told] = run.sent()
    return told


def test_an_epoch_that_is_begun_again(run: Run) -> None:
    run.acts = False
    told = resumed(run, KINDS["no batches"])
    assert (told["status"], told["epoch"], told["batches"], told["repeated"]) == ("repeated", 0, 6, 6)


@pytest.mark.parametrize(("start", "status", "count"), [(6, "continued", 0), (4, "repeated", 8), (8, "left_out", 8)])
def test_a_script_that_passes_over_too_few_or_too_many(run: Run, start: int, status: str, count: int) -> None:
    run.acts = False
    told = resumed(run, KINDS["in order"], skip=lambda loader, _: by_islice(loader, start), after=1 + 1)
    assert (told["status"], told["repeated"] + told["left_out"]) == (status, count)


def test_a_sampler_that_begins_at_an_offset(run: Run) -> None:
    for start, status in ((6, "continued"), (5, "repeated"), (7, "left_out")):
        run.saved = Saved()
        told = resumed(run, KINDS["in order"], skip=lambda loader, _, at=start: by_sampler(loader, at), after=2)
        assert told["status"] == status and told["repeated"] + told["left_out"] == (0 if start == 6 else BATCH)


def test_another_order_is_told_and_handed_out_as_it_is(run: Run) -> None:
    from torch.utils.data import RandomSampler

    told = resumed(run, lambda: make_loader(sampler=RandomSampler(range(SAMPLES))), after=10)
    assert told["status"] == "reordered"
    again = [one for step in range(7, 17) for one in run.trained[step][1]]
    assert len(set(again)) == 10 * BATCH


def test_an_epoch_that_is_over_is_not_skipped(run: Run) -> None:
    """Saved after the last batch, but before the loop has ended: the next pass may be of the next epoch."""
    told = resumed(run, lambda: make_loader(7), before=6, after=3)
    assert told["status"] == "repeated" and told["why"] == data_replay.UNTOLD_END
    run.saved = Saved()
    run.trained = {}
    make = lambda: make_loader(7, sampler=ByEpoch())  # noqa: E731
    whole = undisturbed(run, make, every=6)
    with pytest.raises(Killed):
        run.train(make, last=13, every=6)
    run.train(make, every=6)
    assert run.trained == whole


class ByEpoch(ByThrees):
    """A sampler of single samples."""

    def __iter__(self) -> Iterator[Any]:
        return iter(random.Random(self.epoch).sample(range(SAMPLES), SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


def test_batches_that_are_fetched_ahead_are_not_skipped(run: Run) -> None:
    def ahead(loader: Any, _: int) -> Iterable[Any]:
        def each() -> Iterator[Any]:
            iterator = iter(loader)
            current = next(iterator)
            for following in iterator:
                yield current
                current = following

        return enumerate(each())

    make = KINDS["in order"]
    with pytest.raises(Killed):
        run.train(make, last=8, every=6, skip=ahead)
    with pytest.raises(Killed):
        run.train(make, last=3, every=100, skip=ahead)
    [told] = run.sent()
    assert told["status"] == "repeated" and "before the one before it is trained on" in told["why"]
    assert [run.trained[step][1][0] for step in (7, 8, 9)] == [0, 4, 8]


def test_random_numbers_are_drawn_as_without_skipping(run: Run) -> None:
    import torch

    states = []
    for acts in (False, True):
        run.acts, run.saved = acts, Saved()
        torch.manual_seed(3)
        with pytest.raises(Killed):
            run.train(lambda: make_loader(shuffle=True), last=8, every=6)
        torch.manual_seed(3)
        with pytest.raises(Killed):
            run.train(lambda: make_loader(shuffle=True), last=1, every=100)
        states.append(torch.get_rng_state())
        assert [told["status"] for told in run.sent()] == ["skipped"] * acts
    assert torch.equal(*states)


# Several loaders, several ranks --------------------------------------------------------------------------------------


def test_loaders_of_one_step_go_on_together_and_evaluations_are_no_part_of_it(run: Run) -> None:
    def attempt(saved: Saved | None, steps: int) -> list[list[int]]:
        rank = run.begin(saved)
        check, first, second = make_loader(), make_loader(sampler=distributed()), make_loader(sampler=by_seed(7))
        check.place, second.place = 1, 2
        assert [ids_of(batch)[0] for batch in check] == list(range(0, SAMPLES, BATCH))
        found = []
        for one, other in zip(first, second, strict=False):
            found.append(ids_of(one) + ids_of(other))
            rank.pace.backwards += 1
            rank.words[Field.STEP] += 1
            if len(found) == steps:
                break
        return found

    whole = attempt(None, 5)
    begun, saved = attempt(None, 2), Saved()
    run.save(saved)
    assert [len(one.ranks) for one in saved.loaders] == [1, 1] and not any(one.why for one in saved.loaders)
    assert begun + attempt(saved, 3) == whole
    assert [told["status"] for told in run.sent()] == ["skipped", "skipped"]


def by_seed(seed: int) -> Any:
    import torch
    from torch.utils.data import RandomSampler

    return RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("differs", [False, True])
def test_ranks_skip_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch, differs: bool) -> None:
    from torch.distributed import HashStore

    monkeypatch.setenv("RANK", "0")
    store = HashStore()
    monkeypatch.setattr(data_replay, "find_agreement", lambda rank: (Agreement(store, 2), ""))
    near: dict[str, int] = {}
    fields = {
        "key": "a", "epoch": -1, "batches": 1, "samples": 1, "digest": 1, "first": 1, "is_ended": False,
        "is_apart": True, "is_plain": True, "why": "", "near": near,
    }  # fmt: skip
    rank = Rank({"sockets": "/nowhere"}, 0)
    rank.note_resumed()
    replay = Replay(rank, {"acts": True, "why": "", "ranks": {"0": [fields]}})
    account = data_replay.Account(fields)
    answers: list[str] = []
    asks = [
        threading.Thread(target=lambda wants=wants: answers.append(replay._ask_others(account, wants=wants)))
        for wants in (True, not differs)
    ]
    for ask in asks:
        ask.start()
    for ask in asks:
        ask.join()
    assert answers == [data_replay.OTHERS_DIFFER if differs else ""] * 2


# What goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"acts": true, "why": "", "ranks": {"0": [{"key": "q"}]}}'])
def test_an_account_that_is_none_changes_nothing(run: Run, content: str) -> None:
    (run.folder / "consumed").write_text(content)
    run.begin()
    run.rank.settings["consumed"] = "consumed"
    data_replay.install(run.rank)
    assert run.rank.replay is None
    kinds = [(run.rank.outbox.get(0) or ("",))[0] for _ in range(1)]
    assert kinds == ["HookFailed"]
    assert [ids_of(batch)[0] for batch in make_loader()][:3] == [0, 4, 8]


def test_a_script_that_has_not_loaded_the_checkpoint_gets_all_of_its_data(run: Run) -> None:
    run.loads = False
    told = resumed(run, KINDS["in order"])
    assert (told["status"], told["why"], told["repeated"]) == ("repeated", data_replay.NOT_LOADED, 6 * BATCH)
    assert run.trained[7] == (0, [0, 1, 2, 3])


def test_a_script_that_passes_over_whole_epochs(run: Run) -> None:
    """By one count of batches, from the first epoch on."""

    def by_count(loader: Any) -> Iterator[tuple[int, list[int]]]:
        for epoch in range(EPOCHS):
            loader.sampler.set_epoch(epoch)
            for number, batch in enumerate(loader):
                yield 6 * epoch + number, ids_of(batch)

    whole = undisturbed(run, KINDS["distributed"])
    with pytest.raises(Killed):
        run.train(KINDS["distributed"], last=11, every=10)
    rank = run.begin(run.saved)
    trained = []
    for number, ids in by_count(KINDS["distributed"]()):
        if number >= 10:
            trained.append(ids)
            rank.pace.backwards += 1
    assert trained == [whole[step][1] for step in range(11, 19)]
    assert [told["status"] for told in run.sent()] == ["skipped", "skipped"]


def test_an_iterable_dataset_is_told_as_unknown(run: Run) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([{"id": number} for number in range(SAMPLES)])

    told = resumed(run, lambda: DataLoader(Stream(), BATCH))
    assert told["status"] == "unknown" and run.trained[7] == (0, [0, 1, 2, 3])


def test_loaders_that_are_not_met_are_told(run: Run) -> None:
    with pytest.raises(Killed):
        run.train(KINDS["in order"], last=8, every=6)
    rank = run.begin(run.saved)
    for _ in range(10):
        other = make_loader()
        other.place = 1
        for batch in other:
            assert ids_of(batch)
            rank.pace.backwards += 1
    assert [(one["status"], one["why"]) for one in run.sent()] == [("unknown", data_replay.NOT_MET)]
