"""The public calls, as `from guardrun.hooks import step, phase, …`.

They look the rank up at each call, so that a name imported before the hooks were active works, and so that a forked
child, which is no rank, is left alone.
"""

from __future__ import annotations

import os
from _thread import get_ident
from time import monotonic_ns

from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.wire.variables import RESUME_FROM, RESUME_STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


def step(n: int | None = None) -> None:
    """Say that a training step is done; n is the script's own number of steps done so far.

    The first call makes the script the one that counts: optimizer steps are a pulse of progress only from then on.
    Without n each call counts one step of this attempt.
    """
    rank = _rank.active
    if rank is not None:
        rank.count_step(n, monotonic_ns())


def phase(name: str) -> Phase:
    """Say what the script does from now on: `train`, `eval`, `data`, `save`, `load`, `init`, `compile`, or any name.

    As a plain call it holds until the next; as a context manager until the block's end, when the one before returns.
    """
    rank = _rank.active
    if rank is None:
        return NO_PHASE
    before = rank.phase
    rank.enter_phase(name, monotonic_ns())
    return Phase(before)


class Phase:
    """What `phase()` returns: the way back to the phase before."""

    __slots__ = ("_before",)

    def __init__(self, before: str | None) -> None:
        self._before = before

    def __enter__(self) -> Phase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        rank = _rank.active
        if rank is not None and self._before is not None:
            rank.enter_phase(self._before, monotonic_ns())


NO_PHASE = Phase(None)


def metrics(*, loss: object = None, grad_norm: object = None) -> None:
    """Say what a step has computed, instead of what is seen at backward() and clip_grad_norm_.

    Numbers or tensors with one element; a tensor on a device is not waited for. They are those of the step under way,
    or of the last one where nothing was computed since its end.
    """
    rank = _rank.active
    if rank is not None and rank.metrics is not None and rank.is_owner():
        rank.metrics.note_said(loss, grad_norm)


def should_checkpoint() -> bool:
    """Say whether guardrun asks for a checkpoint now, because the job's time, or its memory, runs out.

    Every rank has to call it equally often, once a step for instance: it says yes at the same call on all of them.
    """
    rank = _rank.active
    return rank is not None and rank.checkpoint_is_due()


def save_with(function: Callable[[], object] | None, *, between_steps: bool = False) -> None:
    """Have guardrun call this where ranks must be ended, on one that is well, to save what it holds.

    function: takes nothing, writes a checkpoint of the state after the last finished step, and returns its path, or
    None if it did not save. It runs on a thread of its own, and must not wait for other ranks. The last one counts;
    None takes it back. between_steps: also from the script's own `step()` on, which it calls once all that a step does
    to what is saved is done. docs/just-in-time.md says what it may rely on.
    """
    rank = _rank.active
    if rank is not None:
        from guardrun.hooks.rank.save_gate import register

        register(rank, function, between_steps=between_steps)


def dcp_save(state_dict: Mapping[str, object], path: str | os.PathLike[str]) -> str:
    """Save by torch.distributed.checkpoint, and return the folder: in a function given to save_with(), too.

    There it is written without a collective, which torch's own save would need: by the one rank that saves, or, where
    parameters are sharded, by one for each part. state_dict: as `torch.distributed.checkpoint.save` takes it, with all
    that this rank holds. path: a folder that is not there yet, the same on all ranks that save. Anywhere else this is
    that function. Raises what it raises, and OSError.
    """
    rank, name = _rank.active, os.fspath(path)
    if rank is None or rank.in_time is None or rank.saving_ident != get_ident():
        from torch.distributed import checkpoint

        checkpoint.save(state_dict, checkpoint_id=name)
    else:
        from guardrun.hooks.saves.dcp_parts import write

        write(state_dict, name, rank.in_time)
    return name


def snapshot(state: object, path: object = None) -> None:
    """Have the state kept in memory that outlives this rank, now and then: call it each step, on every rank.

    state: what torch.save takes; or a function that returns it, called only when a copy is made; None: this rank holds
    nothing. path: where the script would have saved it; `{step}` and `{rank}` are filled in. With `{rank}` each rank's
    state is a part of the whole, without it the ranks hold the same. docs/snapshots.md says what becomes of it.
    """
    rank = _rank.active
    if rank is not None and rank.settings.get("snapshots"):
        if rank.snapshots is None:
            from guardrun.hooks.rank.memory_snapshot import MemorySnapshots

            rank.snapshots = MemorySnapshots(rank)
        rank.snapshots.keep_due(state, path)


def resume_from() -> str | None:
    """Answer the absolute path of the checkpoint to resume from; None where training starts afresh."""
    path = os.environ.get(RESUME_FROM) or None
    rank = _rank.active
    if path is not None and rank is not None:
        rank.note_resumed()
        rank.tell_loaded(path, "resume_from")
    return path


def resume_step() -> int | None:
    """Answer the step of the checkpoint to resume from; None where training starts afresh, or nothing tells."""
    try:
        return int(os.environ[RESUME_STEP])
    except (KeyError, ValueError):
        return None


def skip_batches() -> list[tuple[int, list[list[int]]]]:
    """Answer what this rank is to leave out after a rollback; empty in the ordinary case, and outside guardrun.

    Each entry is a step (as guardrun counts, from 1, those before the checkpoint included) and the batches that it was
    computed from: lists of the sampler's indices, none where these are not known. All ranks get the same steps, and
    equally many batches of each. Whoever asks leaves them out by itself, on all ranks: guardrun does so no longer. Ask
    before the first batch is loaded.
    """
    rank = _rank.active
    if rank is None or not rank.settings.get("skips"):
        return []
    from guardrun.hooks.rank.batch_orders import hand_over

    return hand_over(rank)
