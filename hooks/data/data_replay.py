"""After a resume: are samples trained on twice, or not at all? And where the user wants it, they are skipped.

The supervisor leaves an account of the checkpoint beside the boards (supervisor/saving/sample_ledgers.py): how far
each loader that was trained on had got, with checksums. It is held against the first pass over the same loader. With
`[checkpoint] exact_data = true`, and where the sampler hands out the very same indices, all ranks leave out those
before the checkpoint together (docs/data-replay.md has every condition).

A script may skip by itself, by a loop that passes over batches. That shows when it takes the next batch without a
backward() in between. So the first batch after a skip is handed out again for as long as that is so, and such a loop
has counted to its end when it trains on the right one.

Only the training thread calls what is here; nothing is raised into it but what its own sampler raises.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from _thread import get_ident
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from guardrun.hooks.data.batch_skips import Pass, find_agreement
from guardrun.hooks.data.batch_trail import STREAM, Stream, find_epoch
from guardrun.hooks.data.sample_ledger import add_to, number_of
from guardrun.hooks.data.samplers import describe_sampler
from guardrun.hooks.guards.agreement import WAIT_S
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.ledger_page import Flag

MOST_HELD = 20_000_000
"""Indices that are looked at before they are skipped: they are held, to be handed out if they are others."""
MOST_BATCHES = 64
"""That are trained on before it is said that the loaders of the account were not met."""
MAX_DEPTH = 4
"""Of a batch's own lists and dicts."""
SKIPPED, CONTINUED, REPEATED, LEFT_OUT = "skipped", "continued", "repeated", "left_out"
REORDERED, UNKNOWN = "reordered", "unknown"
NOT_MET = "training takes its batches from other data loaders than before"
OTHER_ORDER = "samples come in another order than before the checkpoint"
ELSEWHERE = "the data begin elsewhere in their order, or in another one"
UNTOLD_END = "the pass was complete, and nothing tells whether the next one is another epoch"
NOT_LOADED = "no rank was seen to load that checkpoint"
NOT_AGREED = "the other ranks did not meet theirs within {wait_s:.0f} s"
OTHERS_DIFFER = "on another rank samples come in another order"
_PASS, _WATCH = "_guardrun_replayed", "_guardrun_watched"  # attributes of torch's iterators, …
_TOLD = "_guardrun_told_epoch"  # … and of its samplers
NOTHING = object()
_BATCHES, _PROGRESS_NS = int(Field.BATCHES), int(Field.PROGRESS_NS)

Pull = Callable[[Any], Any]


class Account:
    """Of one loader: as sample_ledgers.LoaderAccount has it for this rank."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.key: str = fields["key"]
        self.epoch: int = fields["epoch"]
        self.batches: int = fields["batches"]
        self.samples: int = fields["samples"]
        self.digest: int = fields["digest"]
        self.first: int = fields["first"]
        self.is_ended: bool = fields["is_ended"]
        self.is_apart: bool = fields["is_apart"]
        self.is_plain: bool = fields["is_plain"]
        """A backward() followed on each batch before the next one was taken."""
        self.why: str = fields["why"]
        """Why it is not skipped, on no rank; empty: nothing speaks against it so far."""
        self.near: dict[int, int] = {int(batches): digest for batches, digest in fields["near"].items()}
        """How many batches → checksums of these, around the checkpoint's."""


class Watch:
    """What is seen of the first pass over a loader."""

    def __init__(self, account: Account, why: str) -> None:
        self.account = account
        self.why = why
        """Why nothing was skipped."""
        self.taken = self.samples = self.digest = 0
        self.before = 0
        """Samples without those of the last batch."""
        self.backwards = 0
        self.start: int | None = None
        """Batches of the recorded pass before the first one, as checksums tell; None: they do not."""
        self.is_earlier = False
        """The sampler's epoch is one before the account's."""
        self.is_skipped = self.is_over = False
        self.batch: object = NOTHING
        """The first after a skip, until it is trained on."""
        self.passed_over = 0


class Replay:
    """One rank's, of one attempt."""

    def __init__(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._rank = rank
        self._acts: bool = fields["acts"]
        own = fields["ranks"].get(str(rank.global_rank)) or []
        self._accounts = {int(account.key, 16): account for account in map(Account, own)}
        self._begun: list[tuple[Pass, Watch]] = []
        self._taken = 0
        self._backwards = 0
        if fields["why"] and not self._accounts:
            self._send(UNKNOWN, why=fields["why"])

    # What samplers hand out ---------------------------------------------------------------------------------------

    def next_index(self, iterator: Any, pull: Pull) -> Any:
        """The next batch's indices. Raises what the sampler does."""
        state = iterator.__dict__
        source, one = state.get("_sampler_iter"), state.get(_PASS)
        if one is None or one.source is not source:
            one = state[_PASS] = Pass(source)
            state.pop(_WATCH, None)
            if get_ident() == self._rank.owner_ident:
                try:
                    self._begin(iterator, state, one, pull)
                except Exception as error:
                    self._accounts.clear()
                    self._rank.fail("data replay", error)
        return one.next(iterator, pull)

    def _begin(self, iterator: Any, state: dict[str, Any], one: Pass, pull: Pull) -> None:
        stream: Stream | None = state.get(STREAM)
        account = None if stream is None else self._accounts.pop(number_of(stream.key), None)
        if stream is None or account is None:
            return
        why = account.why
        watch = state[_WATCH] = Watch(account, why)
        self._begun.append((one, watch))
        watch.backwards = self._rank.pace.backwards
        if self._acts and not why:
            watch.why = why = self._why_not(
                iterator, stream, account, lambda count: one.look_ahead(count, iterator, pull)
            )
            refused = self._ask_others(account, wants=not why)
            watch.why = why = why or refused
            if not why:
                for _ in range(account.batches):
                    one.pulled.popleft()
                watch.is_skipped = True
                stream.resumed = one.source, account
                self._send(SKIPPED, account)
        if not watch.is_skipped:
            self._compare_epochs(state, watch)

    def _why_not(self, iterator: Any, stream: Stream, account: Account, look: Callable[[int], list[object]]) -> str:
        """Why this rank does not skip; empty: the next batches are those of the account.

        look: answers so many of the next batches' indices, or all that there are; they are still to come.
        """
        why = why_left_alone(stream.flags) or stream.why
        if why:
            return why
        epoch = find_epoch(iterator.__dict__.get("_index_sampler"))
        if epoch is not None and account.epoch >= 0 and epoch != account.epoch:
            return f"epoch {epoch} begins, and the checkpoint is of epoch {account.epoch}"
        first = look(1)
        added = add_to(0, first[0]) if first else None
        if added is None or added[0] != account.first:
            return OTHER_ORDER
        if account.samples > MOST_HELD:
            return f"more than {MOST_HELD:,} indices would have to be held"
        found = look(account.batches + 1)
        digest = 0
        for indices in found[: account.batches]:
            added = add_to(digest, indices)
            if added is None:
                return OTHER_ORDER
            digest = added[0]
        if len(found) < account.batches or digest != account.digest:
            return OTHER_ORDER
        is_apart = account.is_apart or was_told_epoch(iterator.__dict__.get("_index_sampler"))
        return UNTOLD_END if len(found) == account.batches and not is_apart else ""

    def _ask_others(self, account: Account, *, wants: bool) -> str:
        """Why they do not all skip; empty: they do, and some rank has loaded the checkpoint."""
        agreement, why = find_agreement(self._rank)
        has_loaded: bool | None = self._rank.has_reached(Milestone.RESUMED)
        if agreement is not None:
            refused = agreement.ask(f"replay-{account.key}", wants=not wants)
            if refused:
                return OTHERS_DIFFER
            has_loaded = None if refused is None else agreement.ask(f"loaded-{account.key}", wants=bool(has_loaded))
        if has_loaded is None:
            return NOT_AGREED.format(wait_s=WAIT_S)
        return why or ("" if has_loaded else NOT_LOADED)

    # What the script takes ----------------------------------------------------------------------------------------

    def hand_again(self, iterator: Any) -> Any:
        """The batch before once more; NOTHING: the next one is due."""
        watch: Watch | None = iterator.__dict__.get(_WATCH)
        if watch is None or watch.batch is NOTHING:
            return NOTHING
        if self._rank.pace.backwards == watch.backwards and watch.passed_over < watch.account.batches:
            watch.passed_over += 1
            self._rank.words[_BATCHES] += 1
            self._rank.words[_PROGRESS_NS] = monotonic_ns()
            return copy_of(watch.batch)
        watch.batch, watch.is_over = NOTHING, True
        if watch.passed_over:
            self._send(SKIPPED, watch.account, passed_over=watch.passed_over)
        self._retire()
        return NOTHING

    def _retire(self) -> None:
        """There is nothing more to watch, and nothing to hand out that has been looked at: batches cost less."""
        if not self._accounts and all(one.is_empty() and watch.is_over for one, watch in self._begun):
            self._rank.replay = None

    def on_batch(self, iterator: Any, indices: object, batch: Any) -> Any:
        """The training thread gets a batch, of these indices: what it is to be given."""
        try:
            watch: Watch | None = iterator.__dict__.get(_WATCH)
            if watch is None:
                self._count_others()
            elif not watch.is_over:
                return self._watch(watch, indices, batch)
            else:
                self._retire()
        except Exception as error:
            self._rank.fail("data replay", error)
        return batch

    def on_end(self, iterator: Any) -> None:
        """A pass has come to its end."""
        watch: Watch | None = iterator.__dict__.get(_WATCH)
        if watch is not None:
            watch.batch = NOTHING
            if not watch.is_over and not watch.is_skipped:
                if self._rank.pace.backwards != watch.backwards:
                    self._judge(watch, watch.taken)
                else:  # the script has passed over all of it: the next pass may be the one
                    self._accounts[int(watch.account.key, 16)] = watch.account
            watch.is_over = True

    def _count_others(self) -> None:
        backwards = self._rank.pace.backwards
        if not self._accounts or backwards == self._backwards:
            return
        self._backwards = backwards
        self._taken += 1
        if self._taken > MOST_BATCHES:
            self._accounts.clear()
            self._send(UNKNOWN, why=NOT_MET)

    def _watch(self, watch: Watch, indices: object, batch: Any) -> Any:
        backwards = self._rank.pace.backwards
        if watch.is_skipped:
            watch.batch, watch.backwards = batch, backwards
            return copy_of(batch)
        if watch.taken and backwards != watch.backwards:
            self._judge(watch, watch.taken)
            return batch
        watch.backwards = backwards
        watch.before = watch.samples
        added = add_to(watch.digest, indices)
        if added is not None:
            watch.digest, watch.samples = added[0], watch.samples + added[1]
        if not watch.taken:
            watch.start = find_start(watch.account, indices)
        watch.taken += 1
        return batch

    # What is said -------------------------------------------------------------------------------------------------

    def _compare_epochs(self, state: dict[str, Any], watch: Watch) -> None:
        """Say what a sampler's epoch tells: it is another one."""
        account, sampler = watch.account, state.get("_index_sampler")
        epoch = find_epoch(sampler)
        if epoch is None or account.epoch < 0 or epoch == account.epoch:
            return
        if epoch < account.epoch:
            watch.is_earlier, watch.why = True, f"epoch {epoch} begins again"
            return
        watch.is_over = True
        length = describe_sampler(sampler)[0]
        if account.is_ended or account.batches == length:
            self._send(CONTINUED, account)
        else:
            rest = max(0, length - account.batches) * (account.samples // max(1, account.batches))
            self._send(LEFT_OUT, account, left_out=rest, why=f"epoch {epoch} begins")

    def _judge(self, watch: Watch, front: int) -> None:
        """The script trains on the batch that it took as number `front`."""
        watch.is_over = True
        account, why = watch.account, watch.why
        begins, samples = front - 1, watch.before
        if not account.is_plain:
            begins, samples = (0, 0) if front <= 2 else (-1, 0)  # it may take some before it trains on them
        if watch.is_earlier:
            self._send(REPEATED, account, repeated=account.samples, why=why)
        elif account.is_ended:
            if watch.start == 0 and account.is_apart:
                self._send(REPEATED, account, repeated=account.samples, why=why)
            else:
                self._send(CONTINUED, account)
        elif watch.start is None or begins < 0:
            is_seen = begins >= 0 and account.batches + 1 in account.near
            self._send(REORDERED if is_seen else UNKNOWN, account, why=why or ("" if is_seen else ELSEWHERE))
        elif watch.start == 0:
            self._compare(account, begins, samples, why)
        else:
            a_batch = account.samples // max(1, account.batches)
            begins += watch.start
            slack = 0 if account.is_plain else 1
            if account.batches - slack <= begins <= account.batches:
                self._send(CONTINUED, account)
            else:
                self._compare(account, begins, begins * a_batch, why)

    def _compare(self, account: Account, begins: int, samples: int, why: str) -> None:
        """begins: batches of the recorded pass that are not trained on now, with so many samples."""
        if begins == account.batches:
            self._send(CONTINUED, account)
        elif begins < account.batches:
            self._send(REPEATED, account, repeated=max(0, account.samples - samples), why=why)
        else:
            self._send(LEFT_OUT, account, left_out=max(0, samples - account.samples), why=why)

    def _send(self, status: str, account: Account | None = None, **fields: Any) -> None:
        about = {"key": "", "epoch": -1, "batches": 0, "samples": 0}
        if account is not None:
            about = {name: getattr(account, name) for name in about}
        loader = about.pop("key")
        told = {"repeated": 0, "left_out": 0, "passed_over": 0, "why": "", **about, **fields}
        self._rank.send("DataReplayed", status=status, loader=loader, **told)


def why_left_alone(flags: int) -> str:
    """Why nothing is skipped of a loader; empty: nothing speaks against it. flags: Flag's."""
    if flags & Flag.STATEFUL:
        return "the loader, or its sampler, has a state of its own (load_state_dict)"
    if flags & Flag.FRAMEWORK:
        return "a framework iterates over the loader, and may skip by itself"
    if flags & Flag.UNNAMED:
        return "what its sampler hands out does not tell batches apart"
    return ""


def find_start(account: Account, indices: object) -> int | None:
    """How many batches of the recorded pass lie before this one; None: it is none of those that are known."""
    if (added := add_to(0, indices)) is not None and added[0] == account.first:
        return 0
    for batches, digest in account.near.items():
        before = account.near.get(batches - 1)
        if before is not None and (added := add_to(before, indices)) is not None and added[0] == digest:
            return batches - 1
    return None


def copy_of(batch: Any) -> Any:
    """The same with lists, dicts and tensors of its own: a loop may change a batch before it passes over it."""
    try:
        return _copy(batch, MAX_DEPTH)
    except Exception:  # what a script's own kinds make of it
        return batch


def _copy(batch: Any, depth: int) -> Any:
    kind, torch = type(batch), sys.modules.get("torch")
    if depth <= 0:
        return batch
    if torch is not None and kind is torch.Tensor:
        is_plain = batch.device.type == "cpu" and batch.layout is torch.strided and not batch.requires_grad
        return batch.clone() if is_plain else batch
    if kind.__module__ == "numpy":
        return copy.copy(batch)
    if kind is dict:
        return {key: _copy(value, depth - 1) for key, value in batch.items()}
    if kind is list or kind is tuple:
        return kind(_copy(one, depth - 1) for one in batch)
    return copy.copy(batch) if hasattr(kind, "keys") and hasattr(kind, "pop") else batch


def was_told_epoch(sampler: Any) -> bool:
    """Whether the script has called set_epoch() of a DistributedSampler in this attempt."""
    for _ in range(4):
        if getattr(sampler, "__dict__", {}).get(_TOLD):
            return True
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False


def install_sampler(module: Any, rank: Rank) -> None:
    """Know of calls of set_epoch(), where there is an account; torch.utils.data.distributed."""
    if rank.replay is None:
        return
    kind = module.DistributedSampler
    original = kind.set_epoch

    @functools.wraps(original)
    def set_epoch(self: Any, epoch: int) -> None:
        self.__dict__[_TOLD] = True
        original(self, epoch)

    kind.set_epoch = set_epoch


def install(rank: Rank) -> None:
    """Watch the first passes, where the supervisor has left an account. Never raises."""
    name = rank.settings.get("consumed")
    if not name:
        return
    try:
        with open(os.path.join(rank.sockets, str(name)), encoding="utf-8") as file:
            fields = json.load(file)
        rank.replay = Replay(rank, fields)
    except Exception as error:
        rank.fail("data replay", error)
