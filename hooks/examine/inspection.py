"""What a rank trains with, on a person's request (`guardctl inspect`): read, and nothing changed.

Most of it is known without a look at a device: shapes, settings, names; the hooks' thread reads that. What has to be
computed there is computed by the thread that trains, at the end of an optimizer's step: norms of gradients, as this
step has used them (clipped where the script clips, without a scaler's factor), and the factors of scalers. They are
copied in the stream's order, and read at the end of a later step, once they are there: nobody waits for a device.

Where no step ends in time, these are left out: on a rank that hangs no device is asked for anything.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident
from math import hypot, isfinite
from time import monotonic_ns

from guardrun.hooks.examine import descriptions
from guardrun.hooks.examine.found_objects import Found
from guardrun.hooks.guards.device_vectors import Vector
from guardrun.hooks.guards.gradients import UnreadableError, read_values
from guardrun.hooks.guards.module_names import group_of
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_GROUPS = 48
MAX_GRADIENTS = 20_000
SCALERS = 8
_CAPTURES = int(Field.CAPTURES)


class Inspection:
    """One request. Arguments: `seconds`, for which the end of a step is waited for."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        seconds = float(arguments.get("seconds") or 0.0)
        if not 0 < seconds <= MAX_SECONDS:
            raise ValueError(f"the end of a step is waited for up to {MAX_SECONDS:g} seconds, not {seconds:g}")
        self._rank = rank
        self.ends_ns = monotonic_ns() + int(seconds * 1e9)
        self._seconds = seconds
        self._lock = allocate_lock()
        self._found: Found | None = None
        self._names: dict[int, str] = {}
        """Of parameters, by their id()."""
        self._sent: tuple[list[str], Vector] | None = None
        """Groups of gradients, and their norms on their way; after them the scalers' factors."""
        self._told: dict[str, Any] = {}
        """What the thread that trains has found out."""
        self._why = ""
        self._is_over = False

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Look for what there is; wait for a step or two; describe all of it."""
        rank, torch = self._rank, sys.modules.get("torch")
        if self._found is None and torch is not None and hasattr(torch, "optim"):
            with rank.import_lock:
                self._found = Found(rank, torch)
                self._names = descriptions.name_parameters(self._found)
            if rank.steps is not None:
                rank.steps.watch(self._on_step)
        if self._found is not None and rank.steps is not None and not self._is_over and now_ns < self.ends_ns:
            rank.pace.quiet_until = 0
            return None
        self.end()
        if not self._told and not self._why:
            self._why = f"no optimizer's step ended on the thread that trains within {self._seconds:g} s"
        with rank.import_lock:
            return descriptions.describe(rank, self._found, self._names, self._told, self._why)

    def end(self) -> None:
        """Hear of no more steps."""
        held = self._lock.acquire(timeout=1.0)  # a forked child may have it from a thread that it does not have
        self._is_over = True
        self._sent = None
        if self._rank.steps is not None:
            self._rank.steps.watch(None)
        if held:
            self._lock.release()

    # On the thread that trains -------------------------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        rank = self._rank
        if get_ident() != rank.owner_ident or self._is_over:
            return
        if not self._lock.acquire(False):  # it never waits: whoever has it is about to end all this
            return
        try:
            torch: Any = sys.modules["torch"]
            if self._is_over or rank.words[_CAPTURES]:
                return
            if self._sent is None:
                self._launch(optimizer, torch)
            if self._sent is not None and self._sent[1].is_here():
                self._read()
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"[:200]
            self._is_over = True
        finally:
            self._lock.release()

    def _launch(self, optimizer: Any, torch: Any) -> None:
        assert self._found is not None
        by_type: dict[tuple[Any, Any], tuple[list[str], list[Any]]] = {}
        left = MAX_GRADIENTS
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for place, group in enumerate(optimizer.param_groups):
                for parameter in group["params"][:left]:
                    left -= 1
                    if parameter.grad is None:
                        continue
                    try:
                        values = read_values(parameter.grad, torch)
                    except UnreadableError:
                        continue
                    if values is not None:
                        name = self._names.get(id(parameter))
                        names, tensors = by_type.setdefault((values.device, values.dtype), ([], []))
                        names.append(group_of(name) if name is not None else f"group {place}")
                        tensors.append(values)
            names = [name for names, _ in by_type.values() for name in names]
            norms = [norm for _, tensors in by_type.values() for norm in torch._foreach_norm(tensors)]
            scales = [vars(scaler).get("_scale") for scaler in self._found.scalers[:SCALERS]]
            factors = [scale for scale in scales if isinstance(scale, torch.Tensor) and scale.numel() == 1]
            self._told = {
                "step": self._rank.step_now(),
                "optimizer": type(optimizer).__name__,
                "autocast": torch.is_autocast_enabled(),
                "grad": torch.is_grad_enabled(),
            }
            if norms or factors:
                self._sent = names, Vector(torch, [*norms, *factors])
            else:
                self._is_over = True

    def _read(self) -> None:
        assert self._sent is not None
        (names, vector), self._sent = self._sent, None
        self._is_over = True
        values = vector.read()
        self._told["scales"] = [repr(value) for value in values[len(names) :]]
        norms = values[: len(names)]
        sums: dict[str, list[float]] = {}
        for name, norm in zip(names, norms, strict=True):
            one = sums.setdefault(name, [0.0, 0, 0])
            one[1] += 1
            if isfinite(norm):
                one[0] = hypot(one[0], norm)
            else:
                one[2] += 1
        ordered = sorted(sums.items(), key=lambda each: (-each[1][2], -each[1][0]))
        self._told["gradients"] = [
            {"group": name[:100], "norm": norm, "count": int(count), "nonfinite": int(bad)}
            for name, (norm, count, bad) in ordered[:MAX_GROUPS]
        ]
        self._told["gradient_groups"] = len(sums)
        self._told["gradient_norm"] = hypot(*(norm for norm in norms if isfinite(norm))) if norms else 0.0
        self._told["gradient_nonfinite"] = sum(not isfinite(norm) for norm in norms)
