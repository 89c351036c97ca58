"""Changes learning rates on a person's request (`guardctl set lr`, `scale lr`), on all ranks after the same step.

The supervisor names a step that no rank has reached. Each rank takes it up at once, and says no at once where it can't.
At that step's end, on the thread that trains, all ranks meet at torch's store (hooks/guards/agreement.py): rates are
changed only where all of them have come, and none says no. Who has waited for ten seconds goes on, and nobody changes
anything: the store takes one verdict, the same for all.

A scheduler computes the next rate from the last one, or from what it was made with. So what it was made with is scaled
alike: `base_lrs`, `max_lrs`, and in groups `initial_lr`, `max_lr`, `min_lr`, `swa_lr`. The schedule goes on from there.
A script that sets its rates itself, each step, undoes the change: that is seen at the end of the next step, and told.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from math import isfinite, log
from time import monotonic_ns

from guardrun.hooks.examine import found_objects
from guardrun.hooks.examine.optimizer_settings import Settings, describe_changes
from guardrun.hooks.examine.step_ends import Turn, why_not_here
from guardrun.hooks.guards.agreement import MAX_RANKS, WAIT_S, Agreement, connect
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.examinations import MAX_FACTOR, MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

SET, SCALE = "set", "scale"
KEY = "rate"
CONNECT_S = 3.0
SCALED = ("initial_lr", "max_lr", "min_lr", "swa_lr")
"""Of a group: what its schedulers go by (torch/optim/lr_scheduler.py)."""
SCALED_LISTS = ("base_lrs", "max_lrs")
"""Of a scheduler, one for each group."""
NAMED = 8


class LearningRate:
    """One request. Arguments: `mode`, `value`, `at_step`, `id`, `seconds`, `most`; `optimizer`, `group` or None."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        self._rank = rank
        self._mode, self._value = check(arguments.get("mode"), arguments.get("value"))
        at_step, seconds = arguments.get("at_step"), arguments.get("seconds")
        self._chosen = arguments.get("optimizer"), arguments.get("group")
        if not isinstance(at_step, int) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
            raise ValueError(f"a step is waited for up to {MAX_SECONDS:g} seconds")
        self._at_step, self._seconds = at_step, seconds
        self.ends_ns = monotonic_ns() + int(seconds * 1e9)
        self._turn = Turn()
        """Whoever takes it meets the others, or says no."""
        most = arguments.get("most")
        self._agreement = self._meet(str(arguments.get("id", ""))[:40], most if isinstance(most, int) else MAX_RANKS)
        self._targets: list[tuple[Any, int, dict[str, Any]]] = []
        self._schedulers: list[Any] = []
        self._told: dict[str, Any] = {"notes": []}
        self._after: list[tuple[dict[str, Any], float, float]] = []
        """Groups, what their rates were, and what they have been set to."""
        self._changed_at = 0
        self._why = ""
        self._is_elsewhere = False
        """The last step was another thread's."""
        self._is_over = False
        try:
            self._arm()
        except BaseException:
            self._refuse()
            raise

    # On the hooks' thread --------------------------------------------------------------------------------------------

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Wait for the step, then for one more; the answer."""
        rank = self._rank
        if self._why:
            raise ValueError(self._why)
        if now_ns >= self.ends_ns and not self._changed_at and self._turn.is_taken_now():
            self._refuse()
            if self._is_elsewhere:
                raise ValueError("its optimizer steps on another thread than the one that trains (its first)")
            at_step, seconds = self._at_step, f"{self._seconds:.0f} s"
            raise ValueError(f"step {at_step} did not end within {seconds}: it is at {rank.step_now()}")
        if "lasting" in self._told or (now_ns >= self.ends_ns and self._changed_at):
            return self._told
        if rank.steps is not None:
            rank.steps.watch(self._on_step)
        rank.pace.quiet_until = 0
        return None

    def end(self) -> None:
        """Who has not met the others by now will not."""
        if self._is_over:
            return
        self._is_over = True
        if self._rank.steps is not None:
            self._rank.steps.watch(None)
        if self._turn.is_taken_now() and self._rank.pid == os.getpid():
            self._refuse()
        self._targets, self._schedulers, self._after = [], [], []

    def _meet(self, name: str, most: int) -> Agreement | None:
        """How the ranks agree, so many at most; None: there is one. Raises ValueError where they can't."""
        rank = self._rank
        if rank.world_size == 1:
            return None
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or not c10d.is_initialized():
            raise ValueError("there are several ranks, and no process group of torch.distributed by which they agree")
        if (world := c10d.get_world_size()) != rank.world_size:
            raise ValueError(f"its process group has {world} ranks, and the run {rank.world_size}")
        prefix = f"guardrun/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{rank.attempt}/rate/{name}"
        try:
            return Agreement(connect(c10d, prefix, CONNECT_S, most), world)
        except Exception as error:
            raise ValueError(f"ranks can't agree: {error}") from None

    def _refuse(self) -> None:
        try:
            if self._agreement is not None:
                self._agreement.refuse(KEY)
        except Exception as error:  # then the others wait, and find the same
            self._rank.fail("rate", error)

    def _arm(self) -> None:
        """See what is to be changed. Raises ValueError where it can't be."""
        rank, torch = self._rank, sys.modules.get("torch")
        optimizers = rank.steps.optimizers() if rank.steps is not None else []
        self._targets = list(choose(optimizers, *self._chosen))
        if not self._targets:
            raise ValueError("no optimizer of it has stepped that has such groups")
        for _, place, group in self._targets:
            if not isinstance(group.get("lr"), int | float) and not hasattr(group.get("lr"), "fill_"):
                raise ValueError(f"group {place} of its optimizer has no learning rate")
        if rank.step_now() >= self._at_step:
            raise ValueError(f"it was past step {self._at_step} before it had been told: ask again")
        kind: Any = getattr(sys.modules.get("torch.optim.lr_scheduler"), "LRScheduler", None)
        if kind is not None and torch is not None:
            if sys.getallocatedblocks() > found_objects.MAX_BLOCKS:
                self._told["notes"].append("its schedulers were not looked for: there are too many objects")
            else:
                mine = {id(group) for _, _, group in self._targets}
                found = found_objects.find_instances((kind,))
                self._schedulers = [one for one in found if not mine.isdisjoint(map(id, groups_of(one)))]

    # On the thread that trains ---------------------------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        rank = self._rank
        self._is_elsewhere = get_ident() != rank.owner_ident
        if self._is_elsewhere or self._is_over:
            return
        rank.pace.quiet_until = 0
        step = rank.step_now()
        if self._changed_at:
            if step > self._changed_at and "lasting" not in self._told:
                self._look_again(step)
            return
        if step < self._at_step or not self._turn.is_taken_now():
            return
        try:
            self._why = self._change(step)
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"[:300]

    def _change(self, step: int) -> str:
        """Empty: it is done. Why it is not, else."""
        why, rates = self._why_not(step)
        if self._agreement is not None:
            verdict = self._agreement.ask(KEY, wants=bool(why))
            if verdict is None:
                return (
                    why or f"not all ranks came to the end of step {self._at_step} within {WAIT_S:g} s, or one said no"
                )
            if verdict:
                return why or "another rank said no"
        elif why:
            return why
        settings = Settings({id(optimizer): optimizer for optimizer, _, _ in self._targets}.values())
        names = apply(self._targets, self._schedulers, rates)
        self._after = [(group, was, now) for (_, _, group), (was, now) in zip(self._targets, rates, strict=True)]
        changes = [one for one in settings.changes() if one[3] == "lr"]
        self._told |= {"step": step, "changes": describe_changes(changes), "schedulers": names[:NAMED]}
        self._changed_at = step
        return ""

    def _why_not(self, step: int) -> tuple[str, list[tuple[float, float]]]:
        """Empty, and each group's rate before and after; or why not."""
        if why := why_not_here(self._rank):
            return why, []
        if step > self._at_step and not self._rank.counts_itself:
            return f"it was past step {self._at_step}", []
        rates = [float(group["lr"]) for _, _, group in self._targets]
        if self._mode == SCALE:
            return "", [(was, was * self._value) for was in rates]
        if any(was == 0 for was in rates):
            return "a learning rate is 0, so that its schedule can't be scaled to another: ask later", []
        if max(rates) > min(rates) * (1 + 1e-9):
            shown = ", ".join(f"{was:.6g}" for was in dict.fromkeys(rates))
            return f"its groups have several learning rates ({shown}): scale keeps how they stand to each other", []
        return "", [(was, self._value) for was in rates]

    def _look_again(self, step: int) -> None:
        """Whether the rates that the next step has used are nearer to the new ones than to the old ones."""
        lasting = True
        for group, was, now in self._after:
            rate = float(group["lr"])
            lasting = lasting and not is_nearer(rate, was, now)
        self._told["lasting"] = lasting
        self._told["later"] = {"step": step, "lr": [float(group["lr"]) for group, _, _ in self._after[:NAMED]]}


def check(mode: object, value: object) -> tuple[str, float]:
    """The same. Raises ValueError where rates can't be changed so."""
    if mode not in (SET, SCALE) or not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("it is not said how rates are to be changed")
    if not isfinite(value) or not 0 < value <= MAX_FACTOR:
        raise ValueError(f"a learning rate, and a factor, is more than 0, up to {MAX_FACTOR:g}: no factor leads from 0")
    return str(mode), float(value)


def choose(
    optimizers: list[Any], optimizer: int | None, group: int | None
) -> Iterator[tuple[Any, int, dict[str, Any]]]:
    """Groups that are meant, each once: (optimizer, number of the group, group). None: all of them."""
    seen: set[int] = set()
    for number, one in enumerate(optimizers):
        for place, each in enumerate(one.param_groups):
            if id(each) not in seen and optimizer in (None, number) and group in (None, place):
                seen.add(id(each))
                yield one, place, each


def apply(
    targets: list[tuple[Any, int, dict[str, Any]]], schedulers: list[Any], rates: list[tuple[float, float]]
) -> list[str]:
    """Set rates, and scale what schedulers go by. Answers the schedulers' types. rates: before and after."""
    factors: dict[int, float] = {}
    for (_, _, group), (was, now) in zip(targets, rates, strict=True):
        rate = group["lr"]
        factors[id(group)] = factor = now / was if was else 1.0
        for name in SCALED:
            if group.get(name) is not None and group[name] is not rate:
                group[name] = group[name] * factor
        if hasattr(rate, "fill_"):
            rate.detach().fill_(now)  # the same tensor: graphs and compiled steps read it
        else:
            group["lr"] = now
    names: list[str] = []
    for scheduler in schedulers:
        groups = groups_of(scheduler)
        for name in SCALED_LISTS:
            bases = getattr(scheduler, name, None)
            if isinstance(bases, list) and len(bases) == len(groups):
                scaled = [base * factors.get(id(group), 1.0) for base, group in zip(bases, groups, strict=True)]
                setattr(scheduler, name, scaled)
        if type(scheduler).__name__ not in names:
            names.append(type(scheduler).__name__)
    return names


def groups_of(scheduler: Any) -> list[dict[str, Any]]:
    """Those of its optimizer."""
    return list(getattr(getattr(scheduler, "optimizer", None), "param_groups", ()))


def is_nearer(rate: float, was: float, now: float) -> bool:
    """Whether a rate is nearer to what it was than to what it was set to; by their ratios."""
    if min(rate, was, now) <= 0:
        return abs(rate - was) < abs(rate - now)
    return abs(log(rate / was)) < abs(log(rate / now))
