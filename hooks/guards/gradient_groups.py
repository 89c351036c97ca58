"""Whose gradients have grown: norms by group of modules, at one step in EVERY (`[guards] detect = "deep"`).

A group is what lies below one numbered block (`layers.3`), or below one module where none is numbered. Norms are taken
of the gradients as they are before they are clipped, or else before the optimizer steps; on the device, in order, and
read at a later step, once they are there. Each group is compared with the median of its own last looks: where one has
grown to GREW times that, the supervisor is told, for the evidence of a loss that leaps up. Of sharded parameters it is
this rank's part.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections import deque
from inspect import isfunction
from math import hypot, inf
from time import monotonic_ns
from typing import Any

from guardrun.hooks.guards.device_vectors import Vector
from guardrun.hooks.guards.gradients import UnreadableError, read_values
from guardrun.hooks.guards.module_names import find_roots, group_of
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guardrun.hooks.saves.checkpoint_files import Function

EVERY = 10
WINDOW = 32
LEAST = 8
"""Looks."""
GREW = 2.0
SETTLES = 16
"""Looks in a row at which a norm is so high: it is the usual one from then on."""
MAX_GROUPS = 256
THE_REST = "the rest"
MAX_NAME_CHARS = 200
MAX_SENT = 16
"""Groups of a message."""
MAX_MESSAGES = 200
"""Of an attempt."""
HIGHER, LOWER = 1.5, 0.99
"""The next one has to be so much higher, until that has worn off look by look: noise is as high again and again."""
AGAIN_NS = 5_000_000_000
_STEP, _CAPTURES = int(Field.STEP), int(Field.CAPTURES)


class NormHistory:
    """What is usual for a group."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._high = 0
        self.now = 0.0
        self.usual = 0.0
        """Before the last look; 0: too few were taken."""

    def add(self, norm: float) -> None:
        """Take a finite norm in."""
        norms = self._norms
        self.now, self.usual = norm, sorted(norms)[len(norms) // 2] if len(norms) >= LEAST else 0.0
        self._high = self._high + 1 if self.times >= GREW else 0
        if not self._high or self._high >= SETTLES:
            norms.append(norm)

    @property
    def times(self) -> float:
        """So many times the usual is it now; 0: that cannot be said."""
        return self.now / self.usual if self.usual > 0 else 0.0


class GradientGroups:
    """One rank's. The training thread alone calls what is here."""

    def __init__(self, rank: Rank, torch: Any, every: int = EVERY) -> None:
        """every: one step in so many is looked at."""
        self._rank = rank
        self._torch = torch
        self._every = every
        self._looked_at = 0
        """The last step that was."""
        self._groups: dict[str, NormHistory] = {}
        self._sent: tuple[int, list[str], Vector] | None = None
        """Norms on their way: of which step, and whose."""
        self._bar = GREW
        """So many times the usual is worth a message now."""
        self._messages = 0
        self._due_ns = 0

    def on_gradients(self, called: Callable[[], Sequence[Any]]) -> None:
        """All gradients of a step are there. called: gives the modules that were called in it. May raise."""
        if self._sent is not None and self._sent[2].is_here():
            (step, names, vector), self._sent = self._sent, None
            self._note(step, names, vector.read())
        step = self._rank.words[_STEP] + 1
        if step % self._every or step == self._looked_at or self._sent is not None:
            return
        self._looked_at = step
        self._look(step, called())

    def _look(self, step: int, called: Sequence[Any]) -> None:
        torch = self._torch
        roots = find_roots(called)
        by_type: dict[tuple[Any, Any], tuple[list[str], list[Any]]] = {}
        seen = set[int]()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for root in called:
                if id(root) not in roots:
                    continue
                for name, parameter in root.named_parameters():
                    gradient = parameter.grad
                    if gradient is None or id(parameter) in seen:
                        continue
                    seen.add(id(parameter))
                    try:
                        values = read_values(gradient, torch)
                    except UnreadableError:
                        continue
                    if values is not None:
                        names, tensors = by_type.setdefault((values.device, values.dtype), ([], []))
                        names.append(group_of(name))
                        tensors.append(values)
            names = [name for names, _ in by_type.values() for name in names]
            norms = [norm for _, tensors in by_type.values() for norm in torch._foreach_norm(tensors)]
        if norms:
            self._sent = step, names, Vector(torch, norms)

    def _note(self, step: int, names: Sequence[str], norms: Sequence[float]) -> None:
        sums: dict[str, float] = {}
        for given, norm in zip(names, norms, strict=True):
            name = given if given in self._groups or len(self._groups) < MAX_GROUPS else THE_REST
            self._groups.setdefault(name, NormHistory())
            sums[name] = hypot(sums.get(name, 0.0), norm)
        known = {name: self._groups[name] for name, norm in sums.items() if norm < inf}
        for name, one in known.items():
            one.add(sums[name])
        self._bar = max(GREW, LOWER * self._bar)
        highest = max((one.times for one in known.values()), default=0.0)
        if highest >= self._bar and self._send(step, known):
            self._bar = HIGHER * highest

    def _send(self, step: int, known: Mapping[str, NormHistory]) -> bool:
        """False: too much has been said."""
        now_ns = monotonic_ns()
        if self._messages >= MAX_MESSAGES or now_ns < self._due_ns:
            return False
        self._messages, self._due_ns = self._messages + 1, now_ns + AGAIN_NS
        first = sorted(known.items(), key=lambda one: -one[1].times)[:MAX_SENT]
        rank = self._rank
        rank.send(
            "GradientsGrew",
            step=step + rank.step_now() - rank.words[_STEP],
            groups=[(name[:MAX_NAME_CHARS], one.usual, one.now) for name, one in first if one.usual > 0],
            count=len(known),
        )
        return True


# Where gradients are all there -------------------------------------------------------------------------------------


def install(module: Any, rank: Rank) -> None:
    """Look before an optimizer steps, where the user wants it; torch.optim.optimizer."""
    if rank.settings.get("detect") != "deep":
        return

    def on_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        # A fused optimizer is given gradients that a GradScaler has multiplied, by another factor now and then.
        if getattr(optimizer, "grad_scale", None) is None:
            look(rank)

    module.register_optimizer_step_pre_hook(on_step)


def look(rank: Rank) -> None:
    """All gradients of a step are there."""
    origin = rank.origin
    if origin is not None and get_ident() == rank.owner_ident and not rank.words[_CAPTURES]:
        origin.on_gradients()


def wrap_clip(rank: Rank, original: Function) -> Function:
    """Look before gradients are clipped."""

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        look(rank)
        return original(*args, **kwargs)

    if isfunction(original):
        inlined = vars(original).get("_torchdynamo_inline", original)
        clip_grad_norm_._torchdynamo_inline = inlined  # type: ignore[attr-defined]  # dynamo's own convention
    return clip_grad_norm_
