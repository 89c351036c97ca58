"""Steps whose gradients are not finite are left out, on all ranks or on none (`[guards] numeric = "skip"`).

Where the user wants it (`skip_sigmas`), so are those whose norm is far above the ones before (norm_window.py): the
norm that clip_grad_norm_ has returned, the same on all ranks; without one, that of gradients which all ranks have.

torch wraps each optimizer's step() for its hooks (Optimizer.profile_hook_step). What it wraps is wrapped here first:
the optimizer's own function is not called for such a step, so nothing of it changes, whatever it would have done;
hooks, schedulers and what counts steps see a step as always. Gradients are only read.

Whether others have to leave the step out, too, is told by whose parameters they are:

    one process                                       nobody else: decided here
    DDP of all ranks                                  gradients are the same on all: those that are not finite are so
                                                      on every rank, which agree on it then; else nothing is asked
    DTensors on a mesh of all ranks (FSDP2, tensor    each rank has a part: all agree on each step
    parallelism), FSDP of all ranks
    anything else                                     none is left out, which is said once

Agreeing is no collective, and ends by itself (hooks/guards/agreement.py): ranks that do not step together take their
steps as they would without it. Left alone: optimizers under a GradScaler, which leaves steps out itself; those that
step within the backward pass, in a captured graph, in another thread; LBFGS, and what calls a closure as it likes.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from _thread import get_ident
from typing import Any

from guardrun.hooks.guards.agreement import WAIT_S, Agreement, connect, find_store
from guardrun.hooks.guards.gradients import UnreadableError, find_gradients, find_norm
from guardrun.hooks.guards.norm_window import NormWindow
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import Function
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank.parts import OptimizerGuard

MAX_FAILURES = 3
MAX_NOTES = 8
LATE = f"not all ranks came to its step within {WAIT_S:.0f} s"
ALONE, WHEN_BAD, EACH_STEP = "alone", "when bad", "each step"
_CAPTURES = int(Field.CAPTURES)


class Standing:
    """What is known of an optimizer, until its parameters, those with gradients, or the process group are others."""

    def __init__(self, optimizer: Any, shape: tuple[int, ...], sigmas: float) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.norms = NormWindow(sigmas)
        self.shape = shape
        self.scope = ""
        """Empty: it is left alone."""
        self.why = ""
        # The same on each rank: local shapes are not.
        self.key = f"{type(optimizer).__qualname__}-{shape[0]}-{shape[1]}"


class StepGuard:
    """One rank's. Only the training thread calls what is here."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._sigmas = float(rank.settings.get("skip_sigmas") or 0.0)  # type: ignore[arg-type]
        self.is_scaled = False
        """A GradScaler is about to step."""
        self._is_inside = self._leaves_inner = False
        """A step is under way: those of other optimizers in it are part of it; and are to be left out."""
        self._seen: set[int] = set()
        """id() of optimizers whose step is under way."""
        self._known: dict[int, Standing] = {}
        self._replicas: list[tuple[weakref.ref[Any], frozenset[int]]] = []
        """DDP models, each with the id() of every parameter whose gradients it reduces."""
        self._sharded: list[weakref.ref[Any]] = []
        """FSDP 1's models."""
        self._made = 0
        """Models of both kinds so far."""
        self._agreement: Agreement | None = None
        self._group: weakref.ref[Any] | None = None
        """The default process group that it is of."""
        self._groups = 0
        self._let_go: dict[str, str] = {}
        """Key → why."""
        self._said: set[str] = set()
        self._failures = 0

    def add_replica(self, model: Any) -> None:
        """This rank has made a model whose gradients are reduced among the ranks (DistributedDataParallel)."""
        self._replicas = [one for one in self._replicas if one[0]() is not None]
        reduced = frozenset(id(each) for each in model._module_parameters if each.requires_grad)
        self._replicas.append((weakref.ref(model), reduced))
        self._made += 1

    def wrap_sharded(self, original: Function) -> Function:
        """Hear of FSDP's models as they are made."""

        @functools.wraps(original)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            original(model, *args, **kwargs)
            self._sharded = [one for one in self._sharded if one() is not None]
            self._sharded.append(weakref.ref(model))
            self._made += 1

        return __init__

    # Steps -------------------------------------------------------------------------------------------------------

    def step(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take an optimizer's step, or leave it out. Its closure is called once, as torch's optimizers do first."""
        optimizer = args[0]
        self._seen.add(id(optimizer))
        if self._is_inside:
            return None if self._leaves_inner else original(*args, **kwargs)
        if self.is_scaled or getattr(optimizer, "found_inf", None) is not None:
            return original(*args, **kwargs)
        closure, loss = kwargs.get("closure", args[1] if len(args) > 1 else None), None
        if closure is not None:
            if not _calls_closure_first(original, optimizer):
                self._note(optimizer, "it calls its closure itself, so gradients are not seen before it steps")
                return original(*args, **kwargs)
            with sys.modules["torch"].enable_grad():
                loss = closure()
            args, kwargs = (optimizer, lambda: loss), {}
        try:
            is_left_out = self._judge(optimizer)
        except Exception as error:
            is_left_out = False
            self._fail(error)
        if is_left_out and not _is_zero(optimizer):
            return loss
        self._is_inside, self._leaves_inner = True, is_left_out
        try:
            return original(*args, **kwargs)
        finally:
            self._is_inside = self._leaves_inner = False

    def on_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch's post hook of every optimizer: there are steps that do not come by here."""
        if get_ident() != self._rank.owner_ident:
            self._note(optimizer, "it steps in another thread")
        elif id(optimizer) not in self._seen:
            self._note(optimizer, "torch had wrapped its step before guardrun was there, or compiled it whole")
        self._seen.discard(id(optimizer))

    def _judge(self, optimizer: Any) -> bool:
        """Whether its step is to be left out."""
        torch = sys.modules["torch"]
        if self._rank.words[_CAPTURES]:
            return self._note(optimizer, "its step is captured in a graph")
        if torch._C._current_graph_task_id() != -1:
            return self._note(optimizer, "it steps within the backward pass")
        gradients = find_gradients(optimizer)
        standing = self._standing(optimizer, gradients)
        if not standing.scope:
            return self._note(optimizer, standing.why)
        try:
            norm = find_norm(gradients, torch)
        except UnreadableError as error:
            return self._note(optimizer, str(error))
        is_bad = norm is None
        is_far = norm is not None and self._sigmas > 0 and self._is_far(standing, norm)
        is_left_out: bool | None = is_bad or is_far
        if standing.scope == EACH_STEP or (standing.scope == WHEN_BAD and is_left_out):
            is_left_out = self._agree(standing.key, wants=is_bad or is_far)
            if is_left_out is None:
                standing.scope, standing.why = "", LATE
                self._let_go[standing.key] = LATE
                return self._note(optimizer, LATE)
        if is_left_out and self._rank.metrics is not None:
            self._rank.metrics.on_guarded(is_own=is_bad, is_far=is_far)
        return bool(is_left_out)

    def _is_far(self, standing: Standing, norm: float) -> bool:
        """Whether the step's norm is far above those before. norm: of this rank's gradients, as they are now."""
        metrics = self._rank.metrics
        clipped = [] if metrics is None else [*metrics.clipped]
        if metrics is not None:
            metrics.clipped.clear()  # another optimizer's step is not of this norm
        if len(clipped) > 1:  # of several models: which one's, isn't known
            return False
        if not clipped:
            return standing.scope != EACH_STEP and standing.norms.is_far(norm)
        if type(clipped[0]) is not sys.modules["torch"].Tensor:  # a DTensor is this rank's part
            return False
        return standing.norms.is_far(float(clipped[0]))

    def _agree(self, key: str, *, wants: bool) -> bool | None:
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        group = c10d.GroupMember.WORLD
        if self._agreement is None or self._group is None or self._group() is not group:
            self._groups += 1
            run = os.environ.get("TORCHELASTIC_RUN_ID", "")
            prefix = f"guardrun/{run}/{self._rank.attempt}/{self._groups}"
            self._agreement = Agreement(connect(c10d, prefix), group.size())
            self._group = weakref.ref(group)
        return self._agreement.ask(key, wants=wants)

    # Whose parameters they are -----------------------------------------------------------------------------------

    def _standing(self, optimizer: Any, gradients: list[Any]) -> Standing:
        groups = optimizer.param_groups
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        world = id(c10d.GroupMember.WORLD) if c10d is not None else 0
        shape = (len(groups), sum(len(group["params"]) for group in groups), len(gradients), self._made, world)
        standing = self._known.get(id(optimizer))
        if standing is None or standing.optimizer() is not optimizer or standing.shape != shape:
            if len(self._known) > MAX_NOTES:
                self._known = {key: one for key, one in self._known.items() if one.optimizer() is not None}
            standing = self._known[id(optimizer)] = Standing(optimizer, shape, self._sigmas)
            standing.why = self._let_go.get(standing.key, "")
            if not standing.why:
                standing.scope, standing.why = self._find_scope(optimizer)
        return standing

    def _find_scope(self, optimizer: Any) -> tuple[str, str]:
        """Who has to agree on its steps; or empty, and why it is left alone."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        has_group = c10d is not None and c10d.is_initialized()
        world = c10d.get_world_size() if has_group else 1
        if world == self._rank.world_size == 1:
            return ALONE, ""
        if not has_group:
            return "", "there are several ranks, and no process group of torch.distributed"
        if world != self._rank.world_size:
            return "", f"its process group has {world} ranks, and the run {self._rank.world_size}"
        if getattr(optimizer, "_overlap_with_ddp", False):
            return "", "it steps within the backward pass"
        store, why = find_store(c10d)
        if store is None:
            return "", why
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        sharded: set[int] = set()
        for model in self._sharded:
            if (found := model()) is not None and _ranks_of(found) == world:
                sharded.update(map(id, found.parameters()))
        if any(id(each) in sharded or _mesh_size(each) == world for each in parameters):
            return EACH_STEP, ""
        reduced: set[int] = set()
        for replica, ids in self._replicas:
            if (found := replica()) is not None and found.process_group.size() == world:
                reduced |= ids
        if all(id(each) in reduced for each in parameters if each.grad is not None):
            return WHEN_BAD, ""
        return "", "it has parameters of which it isn't known that all ranks train them together"

    # What is said ------------------------------------------------------------------------------------------------

    def _note(self, optimizer: Any, why: str) -> bool:
        """Say once that its steps are left alone. Answers False."""
        text = f'numeric = "skip" has no hold of {type(optimizer).__name__}: {why}'
        if text not in self._said and len(self._said) < MAX_NOTES:
            self._said.add(text)
            self._rank.note("guards", text)
        return False

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._rank.guard = None
            self._rank.fail("guards", error)


def _calls_closure_first(original: Function, optimizer: Any) -> bool:
    """Whether step() calls its closure once, before anything else: torch's own do, but for LBFGS."""
    return str(original.__module__).startswith("torch.optim.") and type(optimizer).__name__ != "LBFGS"


def _is_zero(optimizer: Any) -> bool:
    """Whether ranks exchange parameters in its step: that stays, and the step of the optimizer inside is left out."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def _mesh_size(parameter: Any) -> int:
    """On how many ranks a DTensor lies; 0: it is none."""
    mesh = getattr(parameter, "device_mesh", None)
    return 0 if mesh is None else int(mesh.size())


def _ranks_of(model: Any) -> int:
    """Of an FSDP model: ranks that train it, those that have copies of the same shards included."""
    between = getattr(model, "_inter_node_pg", None)
    return int(model.process_group.size()) * (1 if between is None else int(between.size()))


# Where it is asked -------------------------------------------------------------------------------------------------


def step_guard(rank: Rank) -> OptimizerGuard | None:
    """The rank's, made when it is first asked for; None unless the user wants it."""
    if rank.guard is None and rank.settings.get("numeric") == "skip":
        rank.guard = StepGuard(rank)
    return rank.guard


def install(module: Any, rank: Rank) -> None:
    """Wrap what torch wraps of each optimizer; torch.optim.optimizer."""
    heard = step_guard(rank)
    if heard is None:
        return
    module.register_optimizer_step_post_hook(heard.on_stepped)
    original = module.Optimizer.profile_hook_step

    def wrap(step: Function) -> Function:
        @functools.wraps(step)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            guard = rank.guard
            if guard is None or get_ident() != rank.owner_ident:
                return step(*args, **kwargs)
            return guard.step(step, args, kwargs)

        return guarded

    def profile_hook_step(func: Function) -> Function:
        return original(wrap(func))  # type: ignore[no-any-return]  # torch's

    module.Optimizer.profile_hook_step = staticmethod(functools.wraps(original)(profile_hook_step))
