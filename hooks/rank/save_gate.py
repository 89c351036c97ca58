"""The function that a script has given to save_with(), and whether what it would save is the state after a whole step.

    … optimizer.step()  │ what scripts do after a step │ backward()  …  │ optimizer.step() …
                        │ scheduler, counts, averages  │   whole        │
                          unknown                        saved here       shut meanwhile

Between the first backward pass of a step and its optimizer's step nothing of the last step is still to be done, and
nothing of the next one has changed what is saved. The way into optimizer.step() is shut before that is looked at, and
stays so until the function is done: nothing that the thread that trains does meanwhile changes it, either.

One rank saves for all: so it must hold all, and nothing that the others don't (docs/just-in-time.md). A state that is
in doubt is not saved.
"""

from __future__ import annotations

import sys
import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field, Milestone

OPTIMIZERS = "torch.optim.optimizer"
PEER_WAIT_S = 3.0
"""A rank that ends because its peer is gone may be asked within this."""
POLL_S = 0.01
HANDED_S = 1.0
"""After a save: until its answer has been written."""
LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""What is said by collectives that have failed."""
DIST_ERROR = "DistError"
"""A base class of theirs."""
SHARDED = ("DTensor", "FlatParameter", "ZeroRedundancyOptimizer")
"""Of which each rank holds a part."""
MAX_PARAMETERS = 200_000


def register(rank: Rank, function: object) -> None:
    """Take the script's function; None: it has none any more. Never raises."""
    try:
        if function is not None and not callable(function):
            raise TypeError(f"save_with() takes a function, not {type(function).__name__}")
        if not rank.settings.get("jit", True):
            return  # nobody would ever call it
        gate = rank.in_time
        if not isinstance(gate, SaveGate):
            if function is None:
                return
            rank.in_time = gate = SaveGate(rank)
            if (optimizers := sys.modules.get(OPTIMIZERS)) is not None:
                gate.open(optimizers)
        gate.function = function
        rank.mark(Milestone.SAVES_IN_TIME, is_set=function is not None)
    except Exception as error:
        rank.fail("save_with", error)


class SaveGate:
    """One rank's. Hears of each optimizer's step, on the thread that takes it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.function: Callable[[], object] | None = None
        self.is_shut = False
        """Nobody gets into optimizer.step()."""
        self.until_ns = 0
        """It opens again then."""
        self.is_asked = False
        """A save has been asked for."""
        self.is_answered = False
        """And answered, whatever came of it."""
        self._depth = 0
        """How many optimizers' steps the thread that trains is within."""
        self._is_open = False
        self._odd = ""
        """Why nothing is known of the state any more."""
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._versions: list[tuple[Any, int]] = []
        """Of some parameters, after the last step: how often they have been written to."""
        self._calls = rank.words[Field.API_CALLS]
        """Of the script's own step(), before the first step that is seen."""
        self._averaged = 0
        """Backward passes since the last step by which replicas' gradients were to be averaged."""

    def open(self, optimizers: Any) -> None:
        """Torch's optimizers can be heard of."""
        if self._is_open:
            return
        self._is_open = True
        try:
            optimizers.register_optimizer_step_pre_hook(self._before)
            optimizers.register_optimizer_step_post_hook(self._after)
        except Exception as error:
            self._odd = "steps of its optimizers can't be heard of"
            self._rank.fail("save_with", error)

    # On the thread that trains -----------------------------------------------------------------------------------

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # In this order, each time: whoever shuts the gate looks at the depth after it, so that one of the two sees the
        # other. After its time a save counts for nothing.
        self._depth += 1
        while self.is_shut and monotonic_ns() < self.until_ns:
            self._depth -= 1
            time.sleep(POLL_S)
            self._depth += 1

    def on_backward(self) -> None:
        """A backward pass begins. Never raises."""
        try:
            models = self._rank.spent.models() if self._rank.spent is not None else ()
            self._averaged += any(model.require_backward_grad_sync for model in models)
        except Exception as error:
            self._odd = "its backward passes can't be counted"
            self._rank.fail("save_with", error)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self._averaged = 0
            self._depth -= 1
            if self._depth < 0 or get_ident() != self._rank.owner_ident:
                self._odd = "an optimizer steps where that is not seen"
            if self._depth == 0:
                if not self._counts and self._rank.words[Field.API_CALLS] != self._calls:
                    self._odd = "its script has counted a step before its optimizer has done one"
                self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
                firsts = [group["params"][0] for group in optimizer.param_groups if group["params"]]
                self._versions = [(weakref.ref(parameter), parameter._version) for parameter in firsts]
        except Exception as error:
            self._odd = "its optimizers can't be looked at"
            self._rank.fail("save_with", error)

    def hold(self, error: BaseException) -> None:
        """It ends by this: where its peer is gone, it may be asked to save first. Never raises."""
        try:
            if self.function is None or not self._rank.is_owner():
                return
            if isinstance(error, KeyboardInterrupt):
                self.is_answered = True  # somebody wants the end now
                return
            asked_by = monotonic_ns() + int(PEER_WAIT_S * 1e9) if has_lost_peer(error) else 0
            while not self.is_asked and monotonic_ns() < asked_by:
                time.sleep(POLL_S)
        except BaseException as failure:  # Ctrl-C, too: it ends anyway, and by the error that is about to be shown.
            self._interrupted(failure)
        self.finish()

    def finish(self) -> None:
        """A save that is under way is waited for; what it does would end with the interpreter. Never raises."""
        try:
            until_ns = self.until_ns + int(HANDED_S * 1e9)
            while self.is_asked and not self.is_answered and monotonic_ns() < until_ns:
                time.sleep(POLL_S)
        except BaseException as failure:  # likewise
            self._interrupted(failure)

    def _interrupted(self, failure: BaseException) -> None:
        """Somebody wants the end now: it is not waited for once more as the interpreter ends."""
        self.is_answered = True
        self._rank.fail("save_with", failure)

    # On the thread that saves ------------------------------------------------------------------------------------

    def shut(self, step: int) -> str:
        """Shut the way into optimizer.step(), if the state is the one after this step; else why it is not."""
        self.is_shut = True
        try:
            why = self._why_not(step)
        except BaseException:
            self.is_shut = False
            raise
        if why:
            self.is_shut = False
        return why

    def reopen(self) -> None:
        """Training may go on."""
        self.is_shut = False

    def _why_not(self, step: int) -> str:
        rank, pace = self._rank, self._rank.pace
        if self._odd:
            return self._odd
        if self._depth:
            return "an optimizer's step has begun and not ended"
        counts = set(self._counts.values())
        if not counts or not rank.words[Field.PULSES]:
            return "it has not been seen to finish a step"
        if len(counts) > 1:
            return "its optimizers have taken different numbers of steps"
        if pace.began != pace.pulses:
            return "no backward pass has begun since its last step: what follows a step may not be done"
        if rank.step_now() != step:
            return f"it has finished {rank.step_now()} steps, and others {step}"
        if self._averaged > 1:
            # Between them some scripts shift parameters for a while (adversarial training), and by `.data` unseen.
            return "gradients have been averaged more than once since its last step"
        known = [(reference(), version) for reference, version in self._versions]
        if any(parameter is None or parameter._version != version for parameter, version in known):
            return "something has changed its parameters since its last step"
        return why_not_whole(rank, list(self._counts))


def why_not_whole(rank: Rank, optimizers: list[Any]) -> str:
    """Why one rank does not hold all that is trained, as others do; empty: it does."""
    models = rank.spent.models() if rank.spent is not None else []
    if not models:
        return "it trains no DistributedDataParallel model"
    replicated: set[int] = set()
    for model in models:
        if model.process_group.size() != rank.world_size:
            return "its model is replicated on a part of the ranks only"
        if getattr(model, "parameters_to_ignore", None):
            return "some of its model's parameters are not replicated"
        if any("localSGD" in getattr(hook, "__name__", "") for hook, _ in getattr(model, "_comm_hooks", ())):
            return "replicas differ between their averages (local SGD)"
        for module in model.modules():
            if module.training and getattr(module, "num_batches_tracked", None) is not None:
                return f"its {type(module).__name__} has counted the batch of the step under way already"
        replicated.update(map(id, model.parameters()))
    parameters = [one for each in optimizers for group in each.param_groups for one in group["params"]]
    if len(parameters) > MAX_PARAMETERS:
        return "it has too many parameters to look at"
    if any(type(one).__name__ in SHARDED for one in (*parameters, *optimizers)):
        return "what it trains is sharded"
    if any(id(one) not in replicated for one in parameters):
        return "it trains parameters beside its DistributedDataParallel model"
    if any(one.device.type != "cpu" for one in parameters):
        return "its parameters lie on a device"
    torch = sys.modules["torch"]
    with torch.no_grad():
        if not all(bool(torch.isfinite(one).all()) for one in parameters):
            return "its parameters are not finite"
    return ""


def has_lost_peer(error: BaseException) -> bool:
    """Whether a collective has failed because another rank is gone."""
    if not isinstance(error, RuntimeError):
        return False
    is_theirs = any(kind.__name__ == DIST_ERROR for kind in type(error).__mro__)
    return is_theirs or any(word in str(error) for word in LOST)
