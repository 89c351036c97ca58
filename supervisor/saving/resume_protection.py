"""Before a choice is acted on: the checkpoint is kept from the attempt that is to resume from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.reading.folder_contents import step_family
from guardrun.supervisor.checkpoints.retention import Keeper, Kept, NotKept
from guardrun.supervisor.engine.model import events as ev


class ResumeProtection:
    """Runs on the chooser's thread."""

    def __init__(self, run_dir: Path, resumes: Callable[[], bool]) -> None:
        """resumes: whether the script is known by now to open the checkpoint that it is given."""
        self._resumes = resumes
        self._keeper = Keeper(run_dir)
        self._said: set[str] = set()

    def prepare(self, chosen: ev.CheckpointChosen, choice: Choice, avoid: Collection[str]) -> ev.CheckpointChosen:
        """Complete a choice: what else there is, how a script takes it up, and where it is kept."""
        checkpoint, known = chosen.checkpoint, choice.format
        kept = self._keeper.kept()
        whole = checkpoint if not choice.doubt else None
        if kept is not None and kept.is_own and kept.path not in avoid and _is_newer(kept, whole):
            # What it was made of is torn, or gone, or nobody can tell.
            taken = msgspec.structs.replace(kept.checkpoint, path=kept.path)
            return msgspec.structs.replace(
                chosen, checkpoint=taken, siblings=[kept.path, *choice.siblings], kept=kept.path
            )
        if checkpoint is None or known is None:
            return chosen
        family, step = step_family(checkpoint.path)
        family = family if step == checkpoint.step else ""
        is_known = self._resumes()
        try:
            if choice.doubt:
                raise NotKept("nobody can tell whether it is whole")
            is_link_enough = bool(family) and (is_known or known.resumes_itself)
            path, trouble = self._keeper.keep(checkpoint, choice.files, is_link_enough=is_link_enough).path, ""
        except NotKept as error:
            log.warning("checkpoint_not_kept", path=checkpoint.path, error=str(error))
            path, trouble = "", f"no copy of {checkpoint.path} is kept for the worst case: {error}"
        if trouble in self._said:
            trouble = ""
        self._said.add(trouble)
        return msgspec.structs.replace(
            chosen,
            family=family,
            siblings=choice.siblings,
            resumes_itself=known.resumes_itself,
            resume_way=known.resume,
            kept=path,
            keep_trouble=trouble,
        )

    def seen(self, choice: Choice) -> None:
        """What is newest now."""
        self._keeper.let_go_if_passed(choice.checkpoint)

    def let_go(self) -> None:
        """The run has come to its end."""
        self._keeper.let_go()


def elsewhere(chooser: Chooser, attempt: int, path: str) -> ev.CheckpointOpened | None:
    """A load before the first step of a checkpoint that is none of this run's; a copy, perhaps, that was fetched."""
    other = chooser.is_checkpoint_path(path)
    return ev.CheckpointOpened(attempt=attempt, path=other.path) if other is not None else None


def _is_newer(kept: Kept, chosen: ev.Checkpoint | None) -> bool:
    """Whether what is kept is further than the best that is left."""
    return chosen is None or kept.checkpoint.step > chosen.step
