"""Every so many steps, the sums of what replicas share, on a page for the supervisor; nothing waits for a device.

A check comes after FIRST steps and then every `check_every`, each with a second one ECHO steps later, so that a
difference is seen twice within a short time. All ranks check after the same steps without a word between them; and what
resumes from a checkpoint counts from its step, so that what is trained again is checked again (for the engine's
divergence_rerun.py). Where a check costs the host more than SHARE of the time since the last one, this rank checks half
as often: what it still does, the others do as well.

Only the training thread calls what is here; nothing raises, and what fails three times is turned off.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from guardrun.hooks.api import resume_step
from guardrun.hooks.checksums.page import ChecksumsPage, pack_names
from guardrun.hooks.checksums.replicas import (
    DdpReplicas,
    MeshReplicas,
    ReplicaSet,
    readable,
    replicated_dimension,
)
from guardrun.hooks.checksums.tensor_sums import Sums, has_room
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.checksums_page import Kind

FIRST = 50
ECHO = 10
CHECK_EVERY = 500
"""Where the supervisor doesn't say."""
SHARE = 0.001
NEVER = 1 << 62
MAX_SETS = 16
MAX_FAILURES = 3
_CAPTURES, _STEP = int(Field.CAPTURES), int(Field.STEP)


class Check:
    """Of one set, under way: what is still to be read of a device."""

    __slots__ = ("count", "is_echo", "lengths", "names", "parts", "step", "writes")

    def __init__(self, count: int, is_echo: bool, step: int, writes: int) -> None:
        self.count, self.is_echo, self.step, self.writes = count, is_echo, step, writes
        self.parts: list[Sums] = []
        self.lengths: dict[Kind, tuple[int, int, int]] = {}
        """Per kind: the place of its first sum, how many there are, and their layout."""
        self.names = b""
        """To be said with it; empty: they were."""


class Watched:
    """A set, and where its checks stand."""

    def __init__(self, replicas: ReplicaSet, every: int, base: int = 0) -> None:
        """base: of the checkpoint that all ranks were told to resume from."""
        self.replicas, self.every, self._base = replicas, every, base
        self.ends: dict[tuple[int, ...], Any] = {}
        self.pending: Check | None = None
        self.seen: dict[int, int] = {}
        """By id() of an optimizer: which step of it, counted from 1, was the last that was looked at."""
        self.writes: dict[int, int] = {}
        """torch's count of in-place operations on each parameter, by id(), as it was at the check before."""
        self.written = 0
        """In-place operations on all of them since the first check."""
        self.named = -1
        """The layout of which names were said."""
        self._checked_ns = 0
        """When the last check but for its echo began."""
        self._is_costly = False

    def is_due(self, count: int) -> bool:
        """Whether it is to be checked after so many steps.

        All ranks answer alike, but for those that have doubled `every`.
        """
        before = count - ECHO
        return self.is_main(count) or before == FIRST or (before >= 0 and self._is_regular(before))

    def steps_to(self, key: int) -> int:
        """In how many steps of an optimizer, by its id(), the next check is due, or there may be something to see."""
        if not self.replicas.is_alone(key):
            return 1
        count, every = self.replicas.count, self.every
        last = count - (self._base + count) % every
        return min(at for at in (FIRST, FIRST + ECHO, last + ECHO, last + every) if at > count) - count

    def is_main(self, count: int) -> bool:
        """Whether it is a check of its own, and no echo."""
        return count == FIRST or (count >= ECHO and self._is_regular(count))

    def _is_regular(self, count: int) -> bool:
        """Whether so many steps are a multiple of `every`, with those of attempts before."""
        return self._base + count > 0 and (self._base + count) % self.every == 0

    def book(self, began_ns: int, ended_ns: int) -> None:
        """A check took so long: of one that costs too much, with its echo, every second one is left out from then."""
        if self._is_regular(self.replicas.count):
            elapsed_ns, self._checked_ns = began_ns - self._checked_ns, began_ns
            self._is_costly = 2 * (ended_ns - began_ns) > SHARE * elapsed_ns
        elif self._is_costly:
            self.every *= 2
            self._is_costly = False


class Checker:
    """One rank's."""

    def __init__(self, rank: Rank, every: int, base: int = 0) -> None:
        self._rank = rank
        self._every, self._base = every, base
        self._sets: list[Watched] = []
        self._of: dict[int, list[Watched]] = {}
        """By id() of an optimizer: the sets that it trains."""
        self._known: dict[int, weakref.ref[Any]] = {}
        self.due: dict[int, int] = {}
        """By id() of an optimizer: its step, counted from 1, at which it has to be shown here again."""
        self._ordinals: dict[tuple[object, ...], int] = {}
        self._left_alone: set[str] = set()
        """Types of devices that cannot be read without waiting."""
        self._page: ChecksumsPage | None = None
        """None until there is something to write."""
        self._failures = 0
        self._has_pending = False

    # What is heard ---------------------------------------------------------------------------------------------

    def add_model(self, model: Any) -> None:
        """A DistributedDataParallel model was made."""
        try:
            members = sys.modules["torch"].distributed.get_process_group_ranks(model.process_group)
            if len(members) > 1 and self._rank.is_owner():
                ordinal = self._ordinal("ddp", *members)
                self.watch(DdpReplicas(model, ordinal, self._rank.global_rank))
        except Exception as error:
            self._fail(error)

    def on_optimizer(self, optimizer: Any, count: int) -> None:
        """An optimizer has stepped, for the count-th time. Need not be called before `due`."""
        if get_ident() != self._rank.owner_ident:
            return
        try:
            if self._has_pending:
                self._read()
            key = id(optimizer)
            sets = self._of.get(key)
            if sets is None:
                sets = self._adopt(optimizer)
            for watched in sets:
                replicas = watched.replicas
                replicas.count += count - watched.seen.get(key, count - 1) - 1
                watched.seen[key] = count
                if replicas.ends_step(key) and not replicas.is_left_alone() and watched.is_due(replicas.count):
                    self._check(watched)
            self.due[key] = count + (
                1 if self._has_pending else min((one.steps_to(key) for one in sets), default=NEVER)
            )
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        if self._page is not None:
            self._page.close()
            self._page = None

    # Sets ------------------------------------------------------------------------------------------------------

    def _ordinal(self, *key: object) -> int:
        self._ordinals[key] = number = self._ordinals.get(key, -1) + 1
        return number

    def watch(self, replicas: ReplicaSet) -> None:
        """Check a set from now on."""
        self._sets = [one for one in self._sets if one.replicas.find() is not None][-MAX_SETS + 1 :]
        self._sets.append(Watched(replicas, self._every, self._base))
        for known in (self._of, self._known, self.due):
            known.clear()
        self._rank.pace.quiet_until = 0  # on all ranks the next step is the set's first one

    def _adopt(self, optimizer: Any) -> list[Watched]:
        """Find out which sets an optimizer trains, that is seen for the first time since there was a new set."""
        key = id(optimizer)
        parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
        found = [one for one in self._sets if one.replicas.adopt(optimizer, parameters)]
        place = None if found or "torch.distributed.tensor" not in sys.modules else replicated_dimension(optimizer)
        if place is not None:
            mesh, dimension = place
            members = sys.modules["torch"].distributed.get_process_group_ranks(mesh.get_group(dimension))
            # Hybrid sharding's: on another one ranks may rightly share their samples.
            if self._rank.samples is not None and dimension == 0 and mesh.ndim > 1:
                self._rank.samples.add_group(members)
            ordinal = self._ordinal("mesh", *members)
            replicas = MeshReplicas(optimizer, mesh, dimension, ordinal, self._rank.global_rank)
            watched = Watched(replicas, self._every, self._base)
            self._sets = [*self._sets[-MAX_SETS + 1 :], watched]
            watched.replicas.adopt(optimizer, parameters)
            found = [watched]
        for one in found:
            for other in one.replicas.optimizers:  # which is not alone any more
                self.due.pop(other, None)

        def forget(_: object) -> None:
            for known in (self._of, self._known, self.due):
                known.pop(key, None)
            for one in self._sets:
                one.seen.pop(key, None)

        self._known[key] = weakref.ref(optimizer, forget)
        self._of[key] = found
        return found

    # Checks ----------------------------------------------------------------------------------------------------

    def _check(self, watched: Watched) -> None:
        if watched.pending is not None or self._rank.words[_CAPTURES]:
            return
        began_ns = monotonic_ns()
        self._start(watched)
        watched.book(began_ns, monotonic_ns())

    def _start(self, watched: Watched) -> None:
        torch: Any = sys.modules["torch"]
        replicas = watched.replicas
        parameters = replicas.parameters()
        if not parameters or not all(has_room(torch, device) for device in {one.device for _, one in parameters}):
            return
        step = self._rank.words[_STEP] + self._rank.counts_itself
        watched.written += count_writes(watched.writes, parameters)
        check = Check(replicas.count, not watched.is_main(replicas.count), step, watched.written)
        tensors: list[Any] = []
        for kind, named in ((Kind.MOMENTS, replicas.moments(parameters)), (Kind.PARAMETERS, parameters)):
            found, layout = readable(torch, named)
            check.lengths[kind] = (len(tensors), len(found), layout)
            tensors += [tensor for _, tensor in found]
            if kind is Kind.PARAMETERS and replicas.says_names and layout != watched.named:
                watched.named = layout
                check.names = pack_names([replicas.label, *(name for name, _ in found)])
        with torch.no_grad():
            check.parts = self._sum(torch, tensors, watched.ends)
        if check.parts:
            watched.pending = check
            self._has_pending = True
            self._read()

    def _sum(self, torch: Any, tensors: list[Any], ends: dict[tuple[int, ...], Any]) -> list[Sums]:
        devices: dict[Any, list[tuple[int, Any]]] = {}
        for place, tensor in enumerate(tensors):
            devices.setdefault(tensor.device, []).append((place, tensor))
        parts = []
        for device, placed in devices.items():
            if device.type in self._left_alone:
                return []
            sums = Sums(torch, device)
            try:
                sums.start(placed, ends)
            except RuntimeError as error:
                if "pin" not in str(error).lower():
                    raise
                self._left_alone.add(device.type)
                self._rank.note("checksums", f"replicas on {device.type} are not compared: {error}")
                return []
            parts.append(sums)
        return parts

    def _read(self) -> None:
        if self._rank.words[_CAPTURES]:
            return
        self._has_pending = False
        for watched in self._sets:
            check = watched.pending
            if check is None:
                continue
            if not all(part.are_here() for part in check.parts):
                self._has_pending = True
                continue
            watched.pending = None
            self._write(watched.replicas, check)

    def _write(self, replicas: ReplicaSet, check: Check) -> None:
        page = self._page = self._page or ChecksumsPage(self._rank)
        sums = dict(pair for part in check.parts for pair in part.read())
        head = (replicas.ident, replicas.replicas, check.count, check.step)
        more = (check.writes, check.is_echo)
        if check.names:
            page.put_names(head, more, check.names)
        for kind, (start, length, layout) in check.lengths.items():
            if length:
                page.put_sums(head, more, kind, layout, [sums[start + place] for place in range(length)])

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        for watched in self._sets:
            watched.pending = None
        if self._failures >= MAX_FAILURES:
            self._rank.checksums = None
            self._rank.fail("checksums", error)


def count_writes(known: dict[int, int], parameters: list[tuple[str, Any]]) -> int:
    """In-place operations on parameters since this was last asked; known is brought up to date."""
    writes, before = 0, dict(known)
    known.clear()
    for _, parameter in parameters:
        version = known[id(parameter)] = int(parameter._version)
        writes += version - before.get(id(parameter), version)
    return writes


def install(rank: Rank) -> None:
    """Begin, where there are other ranks and it is wanted."""
    every = rank.settings.get("check_every", CHECK_EVERY)
    if isinstance(every, int) and every > 0 and rank.world_size > 1:
        # The same on all ranks, unlike what each has loaded.
        rank.checksums = Checker(rank, max(every, 2 * ECHO), max(resume_step() or 0, 0))
