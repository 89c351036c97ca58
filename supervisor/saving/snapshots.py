"""Copies of ranks' states in memory, for the supervisor: kept while ranks train, written out before a restart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.checkpoints.chooser import Choice
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import SnapshotWritten
from guardrun.supervisor.node.run_context import CheckpointContext
from guardrun.supervisor.saving.snapshot_files import write_newest
from guardrun.supervisor.saving.snapshot_memory import GB, SnapshotMemory, SnapshotNode


class Snapshots:
    """Of one run on one node."""

    def __init__(self, node: SnapshotNode, context: CheckpointContext) -> None:
        self._node, self._context = node, context
        most_gb = node.run_file.config.get("checkpoint", {}).get("snapshot_gb", 0.0)
        self._memory = SnapshotMemory(node, int(most_gb * GB)) if node.run_file.fleet is None else None

    def sample(self) -> None:
        """Once a second, on the loop's thread."""
        if self._memory is not None:
            self._memory.sample()

    @property
    def has_any(self) -> bool:
        """Whether the last attempt has kept something."""
        return self._memory is not None and bool(self._memory.held(self._node.ingest.attempt))

    def write_newer(self, choice: Choice, spoiled: Sequence[Spoiled], why_not: str = "") -> SnapshotWritten | None:
        """Write out what the last attempt has left, if it is newer than what would be resumed from.

        why_not: why it may not be. Nothing of the attempt is alive. On the chooser's thread; may block as disks do. The
        chooser knows of it then.
        """
        attempt, boards = self._node.ingest.attempt, self._node.sampler.boards
        held = self._memory.held(attempt) if self._memory is not None else {}
        if not held or why_not:
            return SnapshotWritten(why=why_not) if held else None
        chooser, clock = self._context.chooser, self._node.clock
        words = {number: board.read() for number, board in boards.items()}
        written = write_newest(
            held,
            sorted(boards),
            {number: its[Field.STEP] for number, its in words.items() if its is not None},
            attempt=attempt,
            past_step=chooser.steps_done(choice.checkpoint) if choice.checkpoint is not None else 0,
            spoiled=spoiled,
            wall_s=lambda at_ns: clock.wall_s(clock.at_ns(at_ns)),
        )
        for path, inode in zip(written.paths, written.inodes, strict=True):
            wall_s = clock.wall_s(clock.now())
            chooser.saw_saved(path, written.step, wall_s, inode, attempt)
        if not written.paths and not written.why:
            return None
        return SnapshotWritten(
            step=written.step,
            path=written.paths[0] if written.paths else "",
            files=len(written.paths),
            size_bytes=written.size_bytes,
            took_s=round(written.took_s, 3),
            why=written.why,
        )

    def let_go(self, attempt: int) -> None:
        """The ranks of this attempt are about to be started: what earlier ones have left is not needed any more."""
        for held in self._memory.take_before(attempt) if self._memory is not None else ():
            with suppress(RuntimeError):  # closing: it ends with this process
                self._context.checkpoint_pool.submit(held.close)
