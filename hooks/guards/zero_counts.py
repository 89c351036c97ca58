"""How much of what modules give out is zero, at one step in EVERY (`[guards] detect = "deep"`).

Counted on the device, in order, in the stream that computes it, and read at a later step without waiting for it. What
follows from the counts is module_lives.py's; the first that has died is told, once, and then nothing is counted any
more. Left out: modules whose zeros are meant (dropouts, embeddings with padding), those that are no part of another
one (losses, and models that give out their loss), outputs without gradients, and those of fewer than LEAST numbers.
"""

from __future__ import annotations

import weakref
from typing import Any

from guardrun.hooks.guards.device_vectors import Vector
from guardrun.hooks.guards.module_lives import MAX_NAMED, Lives, Seen, judge
from guardrun.hooks.guards.module_names import find_roots, name_module
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EVERY = 10
MAX_CALLS = 1024
"""Of a step."""
MAX_CALLS_OF_MODULE = 8
LEAST = 64
MEANT = ("Drop", "Embedding", "Stochastic", "Mask", "Loss")
"""In the names of classes: what they give out may be zero as it should be."""
MAX_NAME_CHARS = 200
_STEP = int(Field.STEP)

Count = tuple[Any, int]
"""A tensor with how many numbers are not zero, and how many there are."""


class Call:
    """One of a module, in a step that is looked at."""

    __slots__ = ("counts", "module")

    def __init__(self, module: Any, inputs: list[Count], outputs: list[Count]) -> None:
        self.module = module
        self.counts: tuple[list[Count], ...] = (inputs, outputs, [])
        """Of what came in, of what it gave out, and of the gradients of that."""


class Sent:
    """Counts of a step, on their way."""

    def __init__(self, torch: Any, step: int, calls: list[Call]) -> None:
        self.step = step
        self.calls = [(call.module, [list(counts) for counts in call.counts]) for call in calls]
        self.vector = Vector(torch, [one[0] for _, parts in self.calls for counts in parts for one in counts])

    def shares(self) -> Iterator[tuple[Any, list[float | None]]]:
        """Each call's module, and which share of its inputs, outputs and gradients is not zero."""
        numbers, at = self.vector.read(), 0
        for module, parts in self.calls:
            found: list[float | None] = []
            for counts, least in zip(parts, (1, LEAST, 1), strict=True):
                size = sum(count[1] for count in counts)
                nonzero = sum(numbers[at : at + len(counts)])
                at += len(counts)
                found.append(nonzero / size if size >= least else None)
            yield module, found


class ZeroCounts:
    """One rank's."""

    def __init__(self, rank: Rank, torch: Any, every: int = EVERY) -> None:
        """every: one step in so many is looked at."""
        self._rank = rank
        self._torch = torch
        self._every = every
        self._lives: weakref.WeakKeyDictionary[Any, list[Lives]] = weakref.WeakKeyDictionary()
        self._step = 0
        """Under way."""
        self._calls: list[Call] | None = None
        """Of that step; None: it is not looked at."""
        self._last: list[tuple[Any, int, Count]] = []
        """Of the last call: its outputs (weak references), their versions, and counts."""
        self._sent: Sent | None = None
        self.is_over = False
        """There is no more to say."""

    def add(self, step: int, module: Any, args: Any, outputs: Sequence[Any]) -> Call | None:
        """A module has been called. outputs: its tensors of numbers. None: it is not looked at. May raise."""
        if step != self._step:
            self._turn(step)
        calls = self._calls
        if calls is None or len(calls) >= MAX_CALLS:
            return None
        inputs = self._find_inputs(args, outputs)
        given = [each for each in outputs if each.requires_grad]
        counts = [self._known(each, each._version) or self._count(each) for each in given]
        self._last = [
            (weakref.ref(each), each._version, count)
            for each, count in zip(given, counts, strict=True)
            if count is not None
        ]
        call = Call(module, inputs, [count for count in counts if count is not None])
        calls.append(call)
        return call

    def add_gradient(self, call: Call, gradient: Any) -> None:
        """The gradient of an output of that call has come by, in any thread. May raise."""
        count = self._count(gradient)
        if count is not None:
            call.counts[2].append(count)

    def _find_inputs(self, args: Any, outputs: Sequence[Any]) -> list[Count]:
        """Counts of what came in. What the module has written over is what the call before gave out, or unknown."""
        torch, found = self._torch, []
        for tensor in args if isinstance(args, tuple) else ():
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            is_over = any(tensor is each for each in outputs)
            count = self._known(tensor, tensor._version - is_over) or (None if is_over else self._count(tensor))
            if count is not None:
                found.append(count)
        return found

    def _known(self, tensor: Any, version: int) -> Count | None:
        """What the last call's output was counted to be, where this is it."""
        return next((count for ref, at, count in self._last if at == version and ref() is tensor), None)

    def _count(self, tensor: Any) -> Count | None:
        """Of a plain tensor; of a distributed one, this rank's part."""
        torch = self._torch
        values = getattr(tensor, "_local_tensor", tensor).detach()
        is_plain = type(values) in (torch.Tensor, torch.nn.Parameter) and values.layout is torch.strided
        if not is_plain or values.is_meta or values.element_size() == 1 or not values.numel():
            return None
        with torch.no_grad():
            return torch.count_nonzero(values), values.numel()

    def _turn(self, step: int) -> None:
        """Another step is under way: read what is there, and see whether this one is looked at."""
        calls, looked_at = self._calls, self._step
        self._step, self._calls, self._last = step, None, []
        if calls:
            self._sent = Sent(self._torch, looked_at, calls)
        if self._sent is not None and self._sent.vector.is_here():
            sent, self._sent = self._sent, None
            self._judge(sent)
        if self._sent is None and not self.is_over and step % self._every == 0:
            self._calls = []

    def _judge(self, sent: Sent) -> None:
        modules, seen, turns = [], [], dict[int, int]()
        roots = find_roots([module for module, _ in sent.calls])
        for module, (inputs, outputs, gradients) in sent.shares():
            turn = turns[id(module)] = turns.get(id(module), -1) + 1
            if turn < MAX_CALLS_OF_MODULE:
                is_judged = id(module) not in roots and not any(word in type(module).__name__ for word in MEANT)
                modules.append(module)
                seen.append(Seen(self._lives_of(module, turn), inputs, outputs, gradients, is_judged))
        death = judge(sent.step, seen)
        if death is None:
            return
        self.is_over = True
        rank, places = self._rank, (death.place, *death.also)
        base = rank.step_now() - rank.words[_STEP]
        dead = list({id(modules[place]): modules[place] for place in places}.values())
        rank.send(
            "ModulesDied",
            step=base + sent.step,
            since=base + death.since,
            what=death.what,
            modules=[name_module(module, modules)[:MAX_NAME_CHARS] for module in dead[:MAX_NAMED]],
            count=len(dead),
            looks=death.looks,
            every=self._every,
            alive=death.alive,
        )

    def _lives_of(self, module: Any, turn: int) -> Lives:
        lives = self._lives.setdefault(module, [])
        while len(lives) <= turn:
            lives.append(Lives())
        return lives[turn]
