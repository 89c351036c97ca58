"""transformers' Trainer, asked to save in time: `checkpoint-N`, as it writes it itself, by one rank for all.

Its own functions write weights, optimizer and scheduler, through a copy of it that takes itself for rank 0's. Left out
is what needs other ranks, and what is more than a checkpoint: barriers, sums over ranks, rotation, uploads, callbacks.
Every rank's random states are those after its last step (random_states.py), evaluation included.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.in_time_files import Buffers, NotSaved, check_room, written_beside
from guardrun.hooks.saves.random_states import RandomStates

OWN = (
    "save_model",
    "_save",
    "_save_optimizer_and_scheduler",
    "_save_rng_state",
    "_save_scaler",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_callback_state",
    "_maybe_log_save_evaluate",
    "_inner_training_loop",
    "_run_epoch",
    "_get_output_dir",
)
"""Methods that have to be the Trainer's own: who overrides one keeps, or does, something else."""
KNOWN = {
    "_save_checkpoint": {"args", "hub_model_id", "Path", "output_dir", "name", "split", "create_model_card", "super"},
    "training_step": {"maybe_activation_offload_context", "super"},
}
"""Names that an override of these may use, besides its own: TRL's, which writes a model card, or moves activations."""
WEIGHTS = {
    f"{name}{ending}"
    for name in ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
    for ending in ("", ".index.json")
}
STATES = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
"""Without these, or weights, the Trainer would resume from half of it."""
MAX_WHY_CHARS = 300
PLACES = ("training_step", "get_batch_samples")
"""Of the next step: what follows the one before is done."""
ASKS_RANK = "should_save_on_this_rank"
"""By which newer models ask torch whether they are on rank 0."""
AFTER = "_maybe_log_save_evaluate"


def find_trainer(kind: type) -> Any:
    """The Trainer in one of whose methods a callback was called; None where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, kind):
            return found
        frame = frame.f_back
    return None


class TrainerSave:
    """One Trainer's, while it trains."""

    has_closures = False

    def __init__(self, rank: Rank, module: Any, trainer: Any) -> None:
        """module: transformers.trainer."""
        self._rank, self._module = rank, module
        self._trainer = weakref.ref(trainer)
        self.step = 0
        self._pulses = self._tokens = 0
        """Of the last step that is finished: the board's count, and the tokens seen; …"""
        self._flops = (0.0, 0.0)
        """… and what was computed: by all ranks when this was last summed up, and by this one since."""
        kind = module.Trainer
        self._places = {getattr(kind, name).__code__ for name in PLACES if hasattr(kind, name)}
        self._after = getattr(kind, AFTER).__code__
        self._never = _why_never(module, trainer)
        self._buffers = Buffers(trainer.model)
        self._random = None if self._never else RandomStates(rank)

    # On the thread that trains -----------------------------------------------------------------------------------

    def on_step_end(self, state: Any) -> None:
        """A step is finished, and counted."""
        if self._random is None:
            return
        self.step, self._pulses = state.global_step, self._rank.pace.pulses
        self._tokens = state.num_input_tokens_seen
        trainer = self._trainer()
        self._flops = (state.total_flos, trainer.current_flos if trainer is not None else 0.0)
        self._buffers.note()
        self._random.write(self.step)

    def on_evaluate(self, state: Any) -> None:
        """An evaluation is over: it may have drawn random numbers."""
        if self._random is not None and self.step and state.global_step == self.step:
            self._random.write(self.step)

    # On the thread that saves ------------------------------------------------------------------------------------

    def why_not(self, places: set[Any], *, has_backward: bool) -> str:
        """As save_gate.Saver has it."""
        trainer = self._trainer()
        if self._never or trainer is None:
            return self._never or "its Trainer is gone"
        if not self.step or self._pulses != self._rank.pace.pulses or trainer.state.global_step != self.step:
            return "its Trainer has not ended its last step"
        if self._after in places or not (has_backward or self._places & places):
            return "its Trainer may log, evaluate or save after its last step"
        control = trainer.control
        if control.should_training_stop or control.should_epoch_stop:
            return "its Trainer is about to end"
        return self._buffers.why_not()

    def save(self, why_no_more: Callable[[], str]) -> str:
        """As save_gate.Saver has it."""
        trainer, module = self._trainer(), self._module
        if trainer is None:
            raise NotSaved("its Trainer is gone")
        others = [self._random.read(number, self.step) if self._random else None for number in range(self._world())]
        if None in others:
            raise NotSaved(f"the random states of rank {others.index(None)} after step {self.step} are not known")
        callbacks = _callback_states(module, trainer, is_first=self._rank.global_rank == 0)
        folder = os.path.abspath(trainer.args.output_dir)
        path = os.path.join(folder, f"{module.PREFIX_CHECKPOINT_DIR}-{self.step}")
        check_room(folder, trainer.model, [trainer.optimizer])
        with written_beside(path, why_no_more) as beside:
            os.mkdir(beside)
            first = _as_first(trainer)
            first._save(beside)
            first._save_optimizer_and_scheduler(beside)
            if hasattr(first, "_save_scaler"):
                first._save_scaler(beside)
            for number, states in enumerate(others):
                sys.modules["torch"].save(states, os.path.join(beside, f"rng_state_{number}.pth"))
            state = dataclasses.replace(
                trainer.state,
                is_local_process_zero=True,
                is_world_process_zero=True,
                num_input_tokens_seen=self._tokens,
                total_flos=self._total_flops(trainer.state.total_flos),
                stateful_callbacks=callbacks,
            )
            state.save_to_json(os.path.join(beside, module.TRAINER_STATE_NAME))
            names = set(os.listdir(beside))
            if not names & WEIGHTS or not names.issuperset(STATES):
                raise NotSaved(f"it has written nothing but {', '.join(sorted(names))}"[:MAX_WHY_CHARS])
        return path

    def _total_flops(self, now: float) -> float:
        """As after the last step. The sum over ranks would need them; where inputs are alike, it is this."""
        summed, since = self._flops
        return now if now != summed else summed + since * self._world()

    def _world(self) -> int:
        return self._rank.world_size


def _why_never(module: Any, trainer: Any) -> str:
    """Why a save in time is not for this Trainer; empty: it is."""
    args, kind, base = trainer.args, type(trainer), module.Trainer
    name = next((one for one in OWN if getattr(kind, one, None) is not getattr(base, one, None)), None)
    if name is not None:
        return f"{kind.__name__} has a {name}() of its own"
    for one in kind.__mro__[: kind.__mro__.index(base)]:
        for method, names in KNOWN.items():
            override = vars(one).get(method)
            if override is not None and not _names_in(override) <= {method, "__class__", *names}:
                return f"{one.__name__} has a {method}() of its own"
    if getattr(args, "save_on_each_node", False) and int(os.environ.get("LOCAL_WORLD_SIZE", "0")) < args.world_size:
        return "it saves on each node for itself (save_on_each_node)"
    if args.save_only_model:
        return "its Trainer saves nothing but the model (save_only_model)"
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        return "what it trains is sharded (FSDP or DeepSpeed)"
    if getattr(trainer, "is_distributed_loading_by_transformers", False) or getattr(trainer, "is_fsdp_xla_enabled", 0):
        return "what it trains is sharded"
    if getattr(trainer, "hp_search_backend", None) is not None:
        return "it searches for hyperparameters"
    if args.ignore_data_skip and str(getattr(args.save_strategy, "value", args.save_strategy)) == "epoch":
        return "it resumes at the beginning of an epoch only (ignore_data_skip, and it saves once an epoch)"
    if "://" in str(args.output_dir):
        return "its output_dir is no folder of this machine"
    return ""


def _names_in(function: Any) -> set[str]:
    """What it uses: globals, attributes, what it was made with; one that nobody knows where it is no plain function."""
    code = getattr(function, "__code__", None)
    return {*code.co_names, *code.co_freevars} if code is not None else {"?"}


def _callback_states(module: Any, trainer: Any, *, is_first: bool) -> dict[str, Any]:
    """What the callbacks keep, as trainer_state.json has it."""
    found: dict[str, Any] = {}
    exportable = sys.modules[f"{module.__package__}.trainer_callback"].ExportableState
    for one in (*trainer.callback_handler.callbacks, trainer.control):
        if not isinstance(one, exportable):
            continue
        name = type(one).__name__
        if not is_first and not type(one).__module__.startswith("transformers."):
            raise NotSaved(f"{name} keeps a state of which only rank 0's counts")
        state = one.state()
        if name not in found:
            found[name] = state
        else:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), state]
    return found


def _as_first(trainer: Any) -> Any:
    """The Trainer, but that it takes itself for the rank that saves; what it trains is the same object."""
    args = trainer.args

    def reduce(self: Any, protocol: Any) -> Any:
        return args.__reduce_ex__(1)  # as which it is saved; later protocols want its class to be this one

    kind = type(args)
    first_kind = type(kind.__name__, (kind,), {"should_save": True, "__reduce_ex__": reduce})
    first_args: Any = object.__new__(first_kind)
    vars(first_args).update(vars(args))
    first = copy.copy(trainer)
    first.args = first_args
    if hasattr(trainer.model, ASKS_RANK):
        first.model = copy.copy(trainer.model)  # of the same parameters
        first.model.__dict__[ASKS_RANK] = lambda is_main_process: is_main_process
    return first
