"""Whether the model is given the same number all over, or nothing, from the first step on (`[guards] detect = "deep"`).

Pictures that could not be decoded are zeros, or whatever a transform makes of zeros. At one step in EVERY it is
counted, on the device, how many numbers of each tensor that the model is called with differ from that tensor's first
one; the counts are read at a later step, without waiting. What differs once, in one tensor, ends it. LOOKS without any
are told.

A batch without samples is one of which all tensors begin with a dimension of 0, and for which the model gives out
nothing but tensors without numbers: then no data came by another way, as by name, beside an empty placeholder. Such are
daily now and then (the last of an epoch, of a rank that has no more, of samples that were all filtered out). So what is
told are LOOKS in a row from the first on at which each call in the step was one of these.

The model is the module with most parameters among those that are no part of another. Where anything but tensors and
plain values is handed to it by position, nothing is known; nor of what is handed to it by name.
"""

from __future__ import annotations

import weakref
from typing import Any

from guardrun.hooks.guards.device_vectors import Vector
from guardrun.hooks.guards.module_names import find_roots
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

EVERY = 10
LOOKS = 50
LEAST = 64
"""Numbers, of the largest tensor that holds other than whole ones."""
MAX_CALLS = 4096
_STEP = int(Field.STEP)
_PLAIN = (bool, int, float, str, type(None))


class BlankBatches:
    """One rank's. The training thread alone calls what is here."""

    def __init__(self, rank: Rank, torch: Any, every: int = EVERY) -> None:
        """every: one step in so many is looked at."""
        self._rank = rank
        self._torch = torch
        self._every = every
        self._step = 0
        """Under way."""
        self._is_looked_at = False
        self._called: list[Any] = []
        """Modules of the first step that is looked at, from which the model is found."""
        self._model: weakref.ref[Any] | None = None
        self._sent: tuple[int, Vector] | None = None
        """Counts on their way, and of which step."""
        self._looks = self._since = 0
        self._empty_calls = self._empty_looks = self._empty_since = 0
        """Calls without samples in this step; and looks so far, and the first one's step."""
        self._has_samples = False
        """There has been a call that is not known to be without any."""
        self.is_over = False
        """There is no more to say."""

    def add(self, step: int, module: Any, args: Any, output: Any) -> None:
        """A module has been called, and has given that out. May raise."""
        if step != self._step:
            self._turn(step)
        if not self._is_looked_at:
            return
        if self._model is None:
            if len(self._called) < MAX_CALLS:
                self._called.append(module)
        elif module is self._model():
            if not self._has_samples and self._is_empty(args, output):
                self._empty_calls += 1
                return
            self._has_samples = True
            counts = self._count(args) if self._sent is None else []
            if counts:
                self._sent = step, Vector(self._torch, counts)

    def _turn(self, step: int) -> None:
        if self._empty_calls and not self._has_samples:
            self._note_empty(self._step)
        self._step, self._empty_calls = step, 0
        if self._called:
            roots = find_roots(self._called)
            models = [module for module in self._called if id(module) in roots]
            self._called, self._model = [], weakref.ref(max(models, key=_size_of))
        if self._sent is not None and self._sent[1].is_here():
            (looked_at, vector), self._sent = self._sent, None
            self._note(looked_at, differs=any(vector.read()))
        self._is_looked_at = self._sent is None and not self.is_over and step % self._every == 0

    def _note_empty(self, step: int) -> None:
        self._empty_looks += 1
        self._empty_since = self._empty_since or step
        if self._empty_looks >= LOOKS:
            self.is_over = True
            self._send("empty", step, self._empty_since, self._empty_looks)

    def _note(self, step: int, *, differs: bool) -> None:
        self._looks += 1
        self._since = self._since or step
        self.is_over = differs or self._looks >= LOOKS
        if self.is_over and not differs:
            self._send("input", step, self._since, self._looks)

    def _send(self, what: str, step: int, since: int, looks: int) -> None:
        model = self._model() if self._model is not None else None
        if model is None:
            return
        rank = self._rank
        base = rank.step_now() - rank.words[_STEP]
        rank.send(
            "ModulesDied",
            step=base + step,
            since=base + since,
            what=what,
            modules=[type(getattr(model, "module", model)).__name__],  # DistributedDataParallel's has the script's
            count=1,
            looks=looks,
            every=self._every,
            alive=0,
        )

    def _is_empty(self, args: Any, output: Any) -> bool:
        """Whether there is no sample in a call, as far as can be seen by position and by what came out."""
        torch = self._torch
        given = [one for one in args if not isinstance(one, _PLAIN)] if isinstance(args, tuple) else []
        if not given or not all(type(one) is torch.Tensor and one.dim() and not one.shape[0] for one in given):
            return False
        outputs = list(output.values()) if isinstance(output, dict) else output
        outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        return bool(outputs) and all(type(one) is torch.Tensor and not one.numel() for one in outputs)

    def _count(self, args: Any) -> list[Any]:
        """Per tensor, how many numbers differ from its first one; empty: that would not be all that there is."""
        torch, counts, largest = self._torch, [], 0
        for one in args if isinstance(args, tuple) else ():
            if isinstance(one, _PLAIN):
                continue
            if type(one) is not torch.Tensor or one.layout is not torch.strided or one.is_meta or one.is_complex():
                return []
            if one.is_floating_point() and one.element_size() > 1:
                largest = max(largest, one.numel())
            if one.numel():
                values = one.detach()
                with torch.no_grad():
                    counts.append(torch.count_nonzero(values != values[(slice(0, 1),) * values.dim()]))
        return counts if largest >= LEAST else []


def _size_of(module: Any) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())
