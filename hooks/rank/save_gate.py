"""The function that a script has given to save_with(), and whether what it would save is the state after a whole step.

    … optimizer.step()  │ what scripts do after a step │ backward()  …  │ optimizer.step() …
                        │ scheduler, counts, averages  │   whole        │
                          unknown                        saved here       shut meanwhile

Between the first backward pass of a step and its optimizer's step nothing of the last step is still to be done, and
nothing of the next one has changed what is saved. (Where the script says so, from its own step() on.) The way into
optimizer.step() is shut before that is looked at, and stays so until the function is done: nothing that the thread that
trains does meanwhile changes it, either.

On a device the host is ahead: kernels of steps that it has long passed may still wait there, behind a collective that
never ends. So the host has to stand before the step (a loop that reads a loss, or a scaler that looks for infinities,
waits there), and the device has to have got to the backward pass: all that came before is done then.

One rank saves for all: so it must hold all, and nothing that the others don't (docs/just-in-time.md). Or, where FSDP2
shards what is trained, one for each part, if the supervisor has asked for that part. A state that is in doubt is not
saved.

Where ranks train on, parts would be of several steps. So each rank that is asked is told a step to which none has come
yet, and halts before the first optimizer's step after that, wherever it is when it hears of it.

A trainer that saves by itself (transformers, Lightning) says more: where its loop stands tells that what follows a step
is done. Some compute the gradients within optimizer.step(closure): then the way on from there is shut as well.

One class, as each of its questions is asked between two instructions of the thread that trains, and holds only there.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any, Protocol

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.rank.sharded_state import KIND, ShardedModules, find_part, version_of
from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.examinations import LAST_STEP

OPTIMIZERS = "torch.optim.optimizer"
PEER_WAIT_S = 10.0
"""A rank that ends because its peer is gone may be asked within this, unless it is to be stopped: a node whose
connections were closed is lost after five seconds (supervisor/engine/membership/node_silence.py), or with others."""
POLL_S = 0.01
HANDED_S = 1.0
"""After a save: until its answer has been written."""
LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""What is said by collectives that have failed."""
DIST_ERROR = "DistError"
"""A base class of theirs."""
SHARDED = (KIND, "FlatParameter", "ZeroRedundancyOptimizer")
"""Of which each rank holds a part."""
STANDS_NS = 500_000_000
"""A rank that is to save a part has to have stood in one collective for so long."""
MAX_PARAMETERS = 200_000
CATCHES_UP_NS = 1_000_000_000
"""A device that is only behind is waited for that long, and its host with it."""
ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
CLEAN_UP_ONLY = "2"
"""A collective that fails is over for the device then, and the rank lives on (torch's ErrorHandlingMode)."""
WARY_STEPS = 16
"""A step without a second pass by which gradients are averaged says little: a scaler leaves steps out now and then."""
MAX_LOOKED_AT = 4096
"""Numbers of each parameter that lies on a device."""
MAX_FRAMES = 1000
GATHERED = "it is within a forward or backward pass, for which its modules gather parameters"
OTHERS = "its modules hold other parameters than what its optimizers train, and shards"
BEHIND = "its device has not got to the backward pass of the step under way"


class Saver(Protocol):
    """A trainer's own way to save: hooks/saves/in_time."""

    has_closures: bool
    """It computes gradients within optimizer.step(), and calls pass_closure() once they are there."""
    step: int
    """By its own count, after the last one that is finished."""

    def why_not(self, places: set[Any], *, has_backward: bool) -> str:
        """Why the state is not that after its last step; empty: it is.

        places: code objects, of the functions in which the thread that trains stands, or has failed. has_backward: a
        backward pass has begun since the last step.
        """

    def save(self, why_no_more: Callable[[], str]) -> str:
        """Write a checkpoint of that step, in the place of all ranks; answer its path. Raises what goes wrong.

        why_no_more: asked right before it is put in place; where it says something, nothing is.
        """


def register(rank: Rank, function: object, *, between_steps: bool = False) -> None:
    """Take the script's function; None: it has none any more. between_steps: as save_with() has it. Never raises."""
    try:
        if function is not None and not callable(function):
            raise TypeError(f"save_with() takes a function, not {type(function).__name__}")
        if not rank.settings.get("jit", True):
            return  # nobody would ever call it
        gate = rank.in_time
        if function is None and gate is None:
            return
        gate = _gate(rank)
        gate.function, gate.is_between = function, bool(between_steps)
        gate.show()
    except Exception as error:
        rank.fail("save_with", error)


def attach(rank: Rank, saver: Saver | None) -> None:
    """Take a trainer, which saves by itself where the script has given no function; None: it trains no more."""
    if saver is None and rank.in_time is None:
        return
    gate = _gate(rank)
    gate.saver = saver
    gate.show()


def _gate(rank: Rank) -> SaveGate:
    gate = rank.in_time
    if not isinstance(gate, SaveGate):
        rank.in_time = gate = SaveGate(rank)
        if (optimizers := sys.modules.get(OPTIMIZERS)) is not None:
            gate.open(optimizers)
    return gate


class SaveGate:
    """One rank's. Hears of each optimizer's step, on the thread that takes it."""

    is_halted = False
    """The thread that trains waits before an optimizer's step, as it was told by halt_after()."""
    is_ending = False
    """The thread that trains has come to its end, and waits for the answer."""
    _halt_step = 0
    """Once so many are finished it waits; 0: it doesn't."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.function: Callable[[], object] | None = None
        """The script's."""
        self.is_between = False
        """The script's own step() says that all of a step is done."""
        self.saver: Saver | None = None
        """The trainer's, where there is one."""
        self.is_shut = False
        """Nobody gets into optimizer.step()."""
        self.until_ns = 0
        """It opens again then."""
        self.is_asked = False
        """A save has been asked for."""
        self.is_answered = False
        """And answered, whatever came of it."""
        self.asked_part: tuple[int, int] | None = None
        """Which part of how many is to be saved; None: all."""
        self.asked_token = ""
        """Of what is asked for, the same for all parts."""
        self._is_frozen = False
        """The thread that trains stays in its collective until it is ended: what its step needs may be gone."""
        self._depth = 0
        """How many optimizers' steps the thread that trains is within."""
        self._is_past = True
        """… and its gradients are there already, where a trainer computes them within."""
        self._failed_in: set[Any] = set()
        """Code objects: in which functions the thread that trains has failed."""
        self._held: BaseException | None = None
        """Because of which its end has been put off."""
        self._is_open = False
        self._odd = ""
        """Why nothing is known of the state any more."""
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._versions: list[tuple[Any, int]] = []
        """Of some parameters, after the last step: how often they have been written to."""
        self._calls = rank.words[Field.API_CALLS]
        """Of the script's own step(), before the first step that is seen."""
        self._device: Any = None
        """Where its parameters lie, if not in the host's memory; known after the first step."""
        self._begun: Any = None
        """An event that is done once the device has got to the backward pass of the step under way, or to step()."""
        self._said_at = -1
        """The board's count of pulses at the script's last step()."""
        self._stream: Any = None
        """In which it is read; None: not yet."""
        self._averaged = 0
        """Backward passes since the last step by which replicas' gradients were to be averaged."""
        self._wary = 0
        """So many steps more are like one with several such passes, as far as is known."""

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

    def show(self) -> None:
        """Say on the board whether it may be asked."""
        self._rank.mark(Milestone.SAVES_IN_TIME, is_set=self.function is not None or self.saver is not None)

    def asked_saver(self) -> Saver | None:
        """The trainer, if it is the one that is to save."""
        return self.saver if self.function is None else None

    # On the thread that trains -----------------------------------------------------------------------------------

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # In this order, each time: whoever shuts the gate looks at the depth after it, so that one of the two sees the
        # other. After its time a save counts for nothing.
        if (saver := self.saver) is not None and saver.has_closures and not self._depth:
            self._is_past = False
        is_outermost = not self._depth
        self._depth += 1
        while self.is_shut or (is_outermost and self._is_to_halt()):
            if monotonic_ns() >= self.until_ns and not self._is_frozen:
                break
            self._depth -= 1
            self.is_halted = is_outermost and self._is_to_halt()
            time.sleep(POLL_S)
            self._depth += 1
        self.is_halted = False

    def _is_to_halt(self) -> bool:
        """Whether it has come to where it is to wait, with all of its optimizers."""
        step = self._halt_step
        return bool(step) and self._rank.step_now() >= step and len(set(self._counts.values())) == 1

    def stay(self) -> None:
        """A collective is done: nothing is computed any more, here or by others with what this rank would send them."""
        while self._is_frozen:
            time.sleep(POLL_S)

    def wait(self) -> None:
        """A graph is about to be captured: whoever reads the device meanwhile would break that, and training with it.

        Called once the board says so: whoever shuts the gate looks there after it, so that one of the two sees the
        other.
        """
        while self.is_shut and monotonic_ns() < self.until_ns:
            time.sleep(POLL_S)

    def pass_closure(self) -> None:
        """The gradients are there, within optimizer.step(): what comes next changes the parameters."""
        if self._is_past:
            return
        self._is_past = True  # in the same order as above
        while self.is_shut and monotonic_ns() < self.until_ns:
            self._is_past = False
            time.sleep(POLL_S)
            self._is_past = True

    def on_backward(self) -> None:
        """A backward pass begins. Never raises."""
        try:
            rank, after = self._rank, self._rank.words[Field.PULSES] + 1
            if self._device is not None and rank.words[Field.BACKWARD_AFTER] != after:
                self._mark_begun()
            rank.words[Field.BACKWARD_AFTER] = after
            models = rank.spent.models() if rank.spent is not None else ()
            is_any = bool(rank.words[Field.PARTS]) or any(model.require_backward_grad_sync for model in models)
            self._averaged += is_any  # of what FSDP2 shards it is not known which passes are left out
        except Exception as error:
            self._odd = "its backward passes can't be counted"
            self._rank.fail("save_with", error)

    def on_said_step(self) -> None:
        """The script's own step(). Never raises."""
        if not self.is_between or get_ident() != self._rank.owner_ident:
            return
        try:
            if self._device is not None:
                self._mark_begun()
            self._said_at = self._rank.words[Field.PULSES]
        except Exception as error:
            self._odd = "its device can't be asked how far it is"
            self._rank.fail("save_with", error)

    def _is_said(self) -> bool:
        """The script has said that its last step is done, and has begun no other optimizer's since."""
        return self.is_between and self._said_at == self._rank.words[Field.PULSES]

    def _mark_begun(self) -> None:
        """Have the device say when it gets here: in the stream that computes, of the thread that trains."""
        if self._rank.words[Field.CAPTURES]:
            self._begun = None
            return
        torch = sys.modules["torch"]
        if self._begun is None:
            self._begun = torch.Event(self._device.type)
        self._begun.record(torch.accelerator.current_stream(self._device))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self._wary = WARY_STEPS if self._averaged > 1 else max(0, self._wary - 1)
            self._averaged = 0
            self._depth -= 1
            self._is_past = True
            if self._depth < 0 or get_ident() != self._rank.owner_ident:
                self._odd = "an optimizer steps where that is not seen"
            elif self._rank.words[Field.CAPTURES]:
                self._odd = "an optimizer's step was captured in a graph, of which no replay is seen"
            if self._depth == 0:
                if not self._counts and self._rank.words[Field.API_CALLS] != self._calls:
                    self._odd = "its script has counted a step before its optimizer has done one"
                is_first = optimizer not in self._counts
                self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
                firsts = [group["params"][0] for group in optimizer.param_groups if group["params"]]
                self._versions = [(weakref.ref(parameter), version_of(parameter)) for parameter in firsts]
                if is_first:
                    if self._rank.sharded is not None:
                        self._show_part()
                    if self.function is not None:
                        devices = (one.device for one in firsts)
                        self._device = next((one for one in devices if one.type not in ("cpu", "meta")), None)
        except Exception as error:
            self._odd = "its optimizers can't be looked at"
            self._rank.fail("save_with", error)

    def _show_part(self) -> None:
        """Say on the board which part of what is trained this rank holds."""
        rank, parameters = self._rank, _parameters_of(self._counts)
        if any(type(one).__name__ != KIND for one in parameters):
            return
        found = find_part(parameters, rank.global_rank, rank.world_size)
        part, count = (found[0] + 1, found[1]) if isinstance(found, tuple) else (0, 0)
        rank.words[Field.PART], rank.words[Field.PARTS] = part, count

    def hold(self, error: BaseException) -> None:
        """It ends by this: where its peer is gone, it may be asked to save first. Never raises."""
        try:
            if (self.function is None and self.saver is None) or not self._rank.is_owner() or self._held is error:
                return
            self._held = error
            self._failed_in = _codes_of(error)
            if isinstance(error, KeyboardInterrupt):
                self.is_answered = True  # somebody wants the end now
                return
            asked_by = monotonic_ns() + int(PEER_WAIT_S * 1e9) if has_lost_peer(error) else 0
            words = self._rank.words
            while not self.is_asked and monotonic_ns() < asked_by and not words[Field.STOPPING]:
                time.sleep(POLL_S)
        except BaseException as failure:  # Ctrl-C, too: it ends anyway, and by the error that is about to be shown.
            self._interrupted(failure)
        self.finish()

    def finish(self) -> None:
        """A save that is under way is waited for; what it does would end with the interpreter. Never raises."""
        self.is_ending = True
        try:
            until_ns = self.until_ns + int(HANDED_S * 1e9)
            while self.is_asked and not self.is_answered and monotonic_ns() < until_ns:
                time.sleep(POLL_S)
        except BaseException as failure:  # likewise
            self._interrupted(failure)
        self.is_ending = False

    def _interrupted(self, failure: BaseException) -> None:
        """Somebody wants the end now: it is not waited for once more as the interpreter ends."""
        self.is_answered = True
        self._rank.fail("save_with", failure)

    # On the thread that saves ------------------------------------------------------------------------------------

    def halt_after(self, step: int) -> str:
        """Have the thread that trains wait before its next optimizer's step once so many are finished.

        Until reopen(), or its time is over. Answers why it won't; empty: it will, if it comes there.
        """
        self._halt_step = step
        # It looks there before each step: what it has not finished by now, it won't pass unseen.
        if (done := self._rank.step_now()) < step:
            return ""
        self._halt_step = 0
        return f"it had finished {done} steps by the time that it was to save after {step}"

    def shut(self, step: int) -> str:
        """Shut the way into optimizer.step(), if the state is the one after this step; else why it is not.

        step: LAST_STEP: after whichever it has finished.
        """
        self.is_shut = True
        try:
            why = self._why_not(step)
        except BaseException:
            self.is_shut = self._is_frozen
            raise
        if why:
            self.is_shut = self._is_frozen
        return why

    def _use_own_stream(self) -> None:
        """What this thread reads of the device waits for nothing that training has launched, or is stuck behind."""
        torch = sys.modules["torch"]
        if self._stream is None:  # one: torch hands out those of a pool in turn, NCCL's and the script's among them
            self._stream = torch.Stream(self._device)
        torch.accelerator.set_stream(self._stream)  # of this thread alone; the current device, too

    def why_no_more(self) -> str:
        """Why what was written meanwhile is nothing to resume from; empty: the state stood still, and there is time."""
        if monotonic_ns() >= self.until_ns:
            return "its time was over"
        if self._depth > (self.asked_saver() is not None and not self._is_past) or self._has_changed():
            return "its parameters have changed meanwhile"
        return ""

    def why_moved(self) -> str:
        """Why what a script's function has read may be of no step; empty: nothing has changed it meanwhile.

        The thread that trains may have gone on until the next optimizer.step(), as far as can be seen here.
        """
        if self._averaged > 1 and not self.is_halted:
            return "gradients were averaged once more meanwhile"
        return "its parameters have changed meanwhile" if self._has_changed() else ""

    def _has_changed(self) -> bool:
        """Whether something has changed some parameters since the last step."""
        known = [(reference(), version) for reference, version in self._versions]
        return any(parameter is None or version_of(parameter) != version for parameter, version in known)

    def reopen(self) -> None:
        """Training may go on."""
        self.is_shut, self._halt_step = self._is_frozen, 0

    def _why_not(self, step: int) -> str:
        rank, pace, saver = self._rank, self._rank.pace, self.asked_saver()
        if self._odd:
            return self._odd
        if self._depth > (saver is not None and not self._is_past):
            return "an optimizer's step has begun and not ended"
        counts = set(self._counts.values())
        if not counts or not rank.words[Field.PULSES]:
            return "it has not been seen to finish a step"
        if len(counts) > 1:
            return "its optimizers have taken different numbers of steps"
        has_backward = pace.began == pace.pulses
        if saver is not None:
            if why := saver.why_not(self._places(), has_backward=has_backward):
                return why
        elif not has_backward and not self.is_halted and not self._is_said():
            return "no backward pass has begun since its last step: what follows a step may not be done"
        if step not in (LAST_STEP, rank.step_now()):
            return f"it has finished {rank.step_now()} steps, and others {step}"
        # Between them some scripts shift parameters for a while (adversarial training), and by `.data` unseen. They are
        # back before the optimizer's step.
        if self._averaged > 1 and not self.is_halted:
            return "gradients have been averaged more than once since its last step"
        if step == LAST_STEP and self._wary and not self.is_halted:
            # It does not stand in the first of them: it goes on to the next one.
            return "it averages gradients more than once a step, and trains on"
        if self._has_changed():
            return "something has changed its parameters since its last step"
        if self.asked_part is not None or rank.words[Field.PARTS]:
            return self._why_no_part()
        if self._device is not None and (why := self._why_not_there()):
            return why
        return why_not_whole(rank, list(self._counts), self._device)

    def _why_not_there(self) -> str:
        """Why the device may still have to do what came before that moment; empty: it has done all of it.

        The host is shut out of the next step meanwhile: a device that is only behind catches up.
        """
        if self._rank.words[Field.CAPTURES]:
            return "its device captures a graph"
        if any(os.environ.get(name) == CLEAN_UP_ONLY for name in ERROR_HANDLING):
            return "its communicators may be aborted while it goes on: gradients would be of no step"
        until_ns, words = min(monotonic_ns() + CATCHES_UP_NS, self.until_ns), self._rank.words
        try:
            if self._begun is not None:
                self._use_own_stream()  # first: a thread begins with device 0, where any question makes a context
            while self._begun is not None:
                # Written once it is recorded: before that it is the step before's, and done.
                is_recorded = words[Field.BACKWARD_AFTER] == words[Field.PULSES] + 1 or self._is_said()
                if is_recorded and self._begun.query():
                    return ""
                if monotonic_ns() >= until_ns:
                    break
                time.sleep(POLL_S)
        except RuntimeError as error:
            return f"its device does not answer: {error}"
        return BEHIND

    def _why_no_part(self) -> str:
        """Why the modules do not hold the part that is asked for; empty: they do, and nothing that is gathered."""
        rank, sharded, parameters = self._rank, self._rank.sharded, _parameters_of(self._counts)
        if self.asked_part is None:
            return "what it trains is sharded"
        if sharded is None:
            return "it holds no part: nothing that it trains is sharded"
        if any(type(one).__name__ != KIND for one in parameters):
            return "it trains parameters beside those that are sharded"
        look = self._freeze if self._device is None else self._freeze_on_device
        if self.is_halted:
            look = self._look_halted
        if why := look(parameters, sharded):
            return why
        # Once more, with those that no optimizer trains.
        part = find_part(sharded.parameters(), rank.global_rank, rank.world_size)
        if part != self.asked_part:
            return part if isinstance(part, str) else f"it holds part {part[0]} of {part[1]}, and was asked for another"
        return ""

    def _freeze(self, parameters: list[Any], sharded: ShardedModules) -> str:
        """Have the thread that trains stay in its collective, and modules hold their shards; or why that can't be."""
        rank = self._rank
        since_ns = rank.words[Field.COLLECTIVE_SINCE_NS]
        if self._held is None and not 0 < since_ns < monotonic_ns() - STANDS_NS:
            return "it is not waiting for other ranks"
        if why := _why_not_plain(parameters, sharded.all()):
            return why
        # In this order: either the thread that trains sees that it is to stay, or it is seen here that it has gone on.
        # What is gathered is let go then, which nobody may be computing with.
        self._is_frozen, rank.frozen = True, self
        if self._held is None and rank.words[Field.COLLECTIVE_SINCE_NS] != since_ns:
            self._is_frozen, rank.frozen = False, None
            return "it is not waiting for other ranks"
        sharded.put_back()
        return "" if self._has_all(parameters) else OTHERS

    def _look_halted(self, parameters: list[Any], sharded: ShardedModules) -> str:
        """Before an optimizer's step: why its modules don't hold their shards, which its passes have put back."""
        if not self._has_all(parameters):
            return OTHERS
        why = self._why_not_there() if self._device is not None else ""
        return why or _why_not_plain(parameters, sharded.all(), self._device)

    def _freeze_on_device(self, parameters: list[Any], sharded: ShardedModules) -> str:
        """Likewise, where the host goes on from its collectives: it has to be past its passes, which put shards back.

        It is not to gather any for another one: it stays in the next collective that it launches. (Within a backward
        pass the next ones may have been launched already.)
        """
        self._is_frozen, self._rank.frozen = True, self
        backward = sys.modules["torch.autograd"].backward.__code__
        is_within = self._held is None and backward in self._places()
        why = GATHERED if is_within or not self._has_all(parameters) else self._why_not_there()
        if why := why or _why_not_plain(parameters, sharded.all(), self._device):
            self._is_frozen, self._rank.frozen = False, None
        return why

    def _has_all(self, parameters: list[Any]) -> bool:
        """Whether its modules hold all of these, and nothing that is gathered."""
        held = self._rank.sharded.parameters() if self._rank.sharded is not None else []
        return {id(one) for one in held}.issuperset(map(id, parameters)) and all(
            type(one).__name__ == KIND for one in held
        )

    def _places(self) -> set[Any]:
        """Where the thread that trains stands, or has failed."""
        codes = set(self._failed_in)
        frame = sys._current_frames().get(self._rank.owner_ident)
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            codes.add(frame.f_code)
            frame = frame.f_back
        return codes


def _codes_of(error: BaseException) -> set[Any]:
    """The code objects of the functions through which an exception has come."""
    codes: set[Any] = set()
    trace = error.__traceback__
    while trace is not None and len(codes) < MAX_FRAMES:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return codes


def why_not_whole(rank: Rank, optimizers: list[Any], device: Any = None) -> str:
    """Why one rank does not hold all that is trained, as others do; empty: it does. device: None: the host."""
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
        replicated.update(map(id, model.parameters()))
    parameters = _parameters_of(optimizers)
    if any(type(one).__name__ in SHARDED for one in (*parameters, *optimizers)):
        return "what it trains is sharded"
    if any(id(one) not in replicated for one in parameters):
        return "it trains parameters beside its DistributedDataParallel model"
    return _why_not_plain(parameters, models, device)


def _parameters_of(optimizers: Iterable[Any]) -> list[Any]:
    """All that they train."""
    return [one for each in list(optimizers) for group in each.param_groups for one in group["params"]]


def _why_not_plain(parameters: list[Any], models: list[Any], device: Any = None) -> str:
    """Why these are nothing to be saved in the middle of a step, sharded or not. device: as why_not_whole has it."""
    for model in models:
        for module in model.modules():
            if module.training and getattr(module, "num_batches_tracked", None) is not None:
                return f"its {type(module).__name__} has counted the batch of the step under way already"
    if len(parameters) > MAX_PARAMETERS:
        return "it has too many parameters to look at"
    if any(one.device != device if device is not None else one.device.type != "cpu" for one in parameters):
        return "its parameters lie on a device" if device is None else "its parameters lie on several devices"
    torch = sys.modules["torch"]
    with torch.no_grad():
        for one in parameters:
            local = getattr(one, "_local_tensor", one)
            # Of what lies on a device a part, and nothing is computed there: it may be stuck, or have no memory left.
            known = local if device is None else _beginning(local).cpu()
            if not bool(torch.isfinite(known).all()):
                return "its parameters are not finite"
    return ""


def _beginning(parameter: Any) -> Any:
    """A view of its first numbers, as they lie in memory."""
    flat = parameter.detach()
    return flat.as_strided((min(flat.numel(), MAX_LOOKED_AT),), (1,), flat.storage_offset())


def has_lost_peer(error: BaseException) -> bool:
    """Whether a collective has failed because another rank is gone."""
    if not isinstance(error, RuntimeError):
        return False
    is_theirs = any(kind.__name__ == DIST_ERROR for kind in type(error).__mro__)
    return is_theirs or any(word in str(error) for word in LOST)
