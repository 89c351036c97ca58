"""What a rank asks of the hooks that are installed in it later.

They know their rank (hooks/patches), and it knows only this much of them. For type checkers: no rank imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class BatchRecord(Protocol):
    """Which batches the training thread took last; empty where there was none."""

    def describe(self) -> dict[str, Any]:
        """The last batch and the one before, as data; for the thread that trains."""

    def describe_still(self) -> dict[str, Any]:
        """The batch at which the training thread stands, as data; for any other thread."""


class BatchTrail(Protocol):
    """Which batches the last steps were computed from. Never raises; for the thread that trains."""

    def note(self, state: dict[str, Any], indices: object) -> None:
        """A batch has been taken. state: the iterator's attributes; indices: what the sampler handed out for it."""

    def note_save(self, own_steps: int, step: int, began_ns: int, size: int, mtime_ns: int) -> None:
        """A save is done, of the steps of this attempt and of that file."""

    def end(self, state: dict[str, Any]) -> None:
        """A pass over a loader has come to its end. state: the iterator's attributes."""

    def on_backward(self) -> None:
        """Gradients are computed, of what was taken last."""

    def send_batches(self, step: int) -> None:
        """Name the batches around a step, as Field.STEP counts, that is not finite."""


class BatchSkipper(Protocol):
    """Leaves batches out of what samplers hand out."""

    def next_index(self, iterator: Any, original: Any) -> Any:
        """The next batch's indices that are not to be left out. Raises what the sampler does."""


class ReplayObserver(Protocol):
    """Holds the first passes of an attempt against what was trained on before its checkpoint; may skip that."""

    def next_index(self, iterator: Any, pull: Callable[[Any], Any]) -> Any:
        """The next batch's indices that are to be handed out. Raises what the sampler does."""

    def hand_again(self, iterator: Any) -> Any:
        """A batch that is to be given once more, or data_replay.NOTHING. Never raises."""

    def on_batch(self, iterator: Any, indices: object, batch: Any) -> Any:
        """A batch was fetched: what the script is given. Never raises."""

    def on_end(self, iterator: Any) -> None:
        """A pass over a loader has come to its end. Never raises."""


class NonfiniteOrigin(Protocol):
    """Knows where numbers of the last steps stopped to be finite. Never raises."""

    def describe(self, step: int) -> str:
        """The first output or gradient of a module that was not, in words; empty unknown. Waits for the device."""

    def on_gradients(self) -> None:
        """All gradients of a step are there. For the thread that trains."""


class CollectionPolicy(Protocol):
    """When garbage is collected, in place of the collector's own rule."""

    def on_step(self, now_ns: int) -> None:
        """A training step is done (CLOCK_MONOTONIC). Never raises."""

    def on_beat(self, now_ns: int) -> None:
        """About once a second, from the hooks' thread."""

    def give_back(self) -> None:
        """Leave the collector as if there had been no policy: at the script's end, or in a forked child."""


class StepCounter(Protocol):
    """Counts optimizers' steps, and may be asked to say when the next ones are done."""

    def watch(self, call: Callable[[Any], None] | None) -> None:
        """Have each step call it with its optimizer, once it is counted, from the next one that is not quiet on.

        None: no more. call: must not raise. Whoever wants to hear of each step sets pace.quiet_until to 0 within it.
        """

    def optimizers(self) -> list[Any]:
        """Those that have stepped, and are still there."""


class StepObserver(Protocol):
    """Hears of each training step, to tell what it went to."""

    limit_ns: int
    """A step that takes longer is an odd one."""

    @property
    def next_ns(self) -> int:
        """CLOCK_MONOTONIC: there is nothing to do before, but for odd steps."""

    def on_step(self, now_ns: int) -> None:
        """A training step is done (CLOCK_MONOTONIC). Never raises."""

    def add_quiet(self, steps: int, last_ns: int) -> None:
        """So many were done before it, none of them odd or after next_ns; the last one at this time."""

    def add_replica(self, model: Any) -> None:
        """This rank has made a model whose gradients are reduced among the ranks (DistributedDataParallel)."""

    def models(self) -> list[Any]:
        """Those of them that are still there. Any thread may ask."""


class DeviceObserver(Protocol):
    """Hears on which device the rank trains."""

    model: str
    """What torch calls a device of this kind; empty: it has none, or does not tell it."""

    def after_set_device(self, cuda: Any) -> None:
        """The thread that asks has another current device. cuda: torch's module."""

    def on_step(self, optimizer: Any) -> None:
        """An optimizer has stepped. Never raises."""


class DeviceTimer(Protocol):
    """Times this rank's steps, and what they wait for others, on the device."""

    def wrap(self, original: Any) -> Any:
        """The same function, which makes the device wait for other ranks, with that timed."""

    def on_step(self) -> bool:
        """A training step is done; False where the device is not timed. Never raises."""

    def pop_sums(self) -> list[int]:
        """Sums since the last time: steps, and nanoseconds that they took, waited, waited for data, collected."""

    @property
    def is_off(self) -> bool:
        """Whether it has been turned off, for good."""

    @property
    def has_seen_waits(self) -> bool:
        """Whether anything was seen to wait for other ranks."""

    def stop(self) -> None:
        """Time nothing more, as in a forked child."""


class OptimizerGuard(Protocol):
    """Leaves out steps whose gradients are not finite."""

    is_scaled: bool
    """A GradScaler is about to step: it leaves steps out itself."""

    def step(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take an optimizer's step, or leave it out."""

    def on_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch's post hook of every optimizer."""

    def add_replica(self, model: Any) -> None:
        """This rank has made a model whose gradients are reduced among the ranks (DistributedDataParallel)."""

    def wrap_sharded(self, original: Any) -> Any:
        """The __init__ of FSDP's models, heard of."""


class MetricsObserver(Protocol):
    """Hears what the training thread computes."""

    is_inside: bool
    """A call that is seen is under way: what it calls is part of it."""

    def see_loss(self, tensor: Any) -> None:
        """backward() is called on it. Like the others here: never raises."""

    def see_scaled(self, before: Any, after: Any) -> None:
        """A GradScaler has multiplied a loss."""

    def see_norm(self, tensor: Any) -> None:
        """Gradients have this norm."""

    def note_said(self, loss: Any, grad_norm: Any) -> None:
        """The script says them; None: not said."""

    mask: int
    """Steps are read at whose end the board's count of pulses has none of these bits."""
    is_due: bool
    """Whatever the mask says, the step under way is written down."""

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped, which the board counts already, of a step that is read."""

    def on_plain(self, optimizer: Any, step: int) -> bool:
        """An optimizer has stepped, of this step, which is read; False: on_optimizer has to hear of it."""

    def flush(self) -> None:
        """Write down what was read so far."""

    def read_all(self) -> None:
        """There are several optimizers, or a GradScaler: from now on all steps are read."""

    def on_left_out(self, optimizer: Any) -> None:
        """A GradScaler has left out an optimizer's step."""

    clipped: list[Any]
    """What clip_grad_norm_ has returned since the last step, two at most."""

    def on_guarded(self, *, is_own: bool, is_far: bool) -> None:
        """A step is left out by us. is_own: gradients of this rank are not finite; is_far: their norm is far off."""

    def on_said_step(self) -> None:
        """The script has said that a step is done, which the board counts already."""


class SampleObserver(Protocol):
    """Hears which samples the training thread takes."""

    def on_batch(self, iterator: Any, indices: object) -> None:
        """It has its next batch, with what the sampler handed out for it (None: not known). Never raises."""

    def on_end(self, iterator: Any) -> None:
        """There are no more batches in this pass. Never raises."""

    def add_model(self, model: Any) -> None:
        """A DistributedDataParallel model was made. Never raises."""

    def add_group(self, members: list[int]) -> None:
        """Gradients of these global ranks are averaged."""


class MemoryObserver(Protocol):
    """Reads what the allocator of the rank's device says."""

    due_ns: int
    """CLOCK_MONOTONIC, of the next reading."""

    def on_step(self, optimizer: Any, now_ns: int) -> None:
        """An optimizer has stepped, and a reading is due. Never raises."""

    def read_allocated(self) -> int | None:
        """Bytes that the allocator has handed out now, for any thread; None unknown. Never raises."""


class ReplicaChecker(Protocol):
    """Sums what this rank holds and others are to hold as well, now and then."""

    def add_model(self, model: Any) -> None:
        """This rank has made a model whose gradients are reduced among the ranks. Like the other: never raises."""

    due: dict[int, int]
    """By id() of an optimizer: the step of it, counted from 1, at which it has to be shown here again."""

    def on_optimizer(self, optimizer: Any, count: int) -> None:
        """An optimizer has stepped, for the count-th time, which the board counts already."""


class ForkObserver(Protocol):
    """Hears of forks."""

    def before_fork(self) -> None:
        """The thread that asks is about to fork. Never raises."""

    def in_child(self) -> None:
        """This is a forked child. Never raises."""


class SaveGate(Protocol):
    """Knows whether the state is that after a finished step, and keeps it so while it is saved."""

    until_ns: int
    """CLOCK_MONOTONIC: nobody waits for the save any more that was asked for last."""
    is_answered: bool
    """Nor now, whatever came of it."""
    asked_part: tuple[int, int] | None
    """Which part (from 0), of how many; None: all."""
    asked_token: str
    """Known to all who save a part of it, and to nobody before."""

    def open(self, optimizers: Any) -> None:
        """Torch's optimizers can be heard of. optimizers: torch.optim.optimizer."""

    def on_backward(self) -> None:
        """A backward pass begins."""

    def on_said_step(self) -> None:
        """The script's own step(). Never raises."""

    def wait(self) -> None:
        """A graph is about to be captured, and the board says so."""

    def pass_closure(self) -> None:
        """Gradients are there, within optimizer.step()."""

    def stay(self) -> None:
        """A collective is done, of a rank that is to stay in it."""

    def hold(self, error: BaseException) -> None:
        """The thread that trains ends by this: wait a moment if its state may be wanted. Never raises."""

    def finish(self) -> None:
        """The script's code is over: wait for a save that is under way. Never raises."""


class Snapshots(Protocol):
    """Copies the script's state into memory that outlives this rank."""

    def keep_due(self, state: object, path: object) -> None:
        """The script has called snapshot(). Raises nothing of its own."""

    def in_child(self) -> None:
        """This is a forked child: let go of the memory. Never raises."""


class Examination(Protocol):
    """What a person has asked for, under way; on the hooks' thread. All that it changes in the process, it takes back.

    A class is made with its rank and the request's arguments; raises ValueError where these can't be met.
    """

    ends_ns: int
    """CLOCK_MONOTONIC: by then it has answered, whoever is still there to be answered."""

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Go on, once a second; the answer, when it is over. Raises ValueError: why there is none."""

    def end(self) -> None:
        """Leave nothing behind, at whatever point it is. Any thread, and a forked child, may call it; twice, too."""
