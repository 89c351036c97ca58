"""Hugging Face's Trainer, and what is built on it: axolotl, LLaMA-Factory, TRL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    INDEXES,
    SINGLE,
    Candidate,
    check_all,
    check_some,
    check_weights,
    find_folders,
    highest,
    relative_names,
)
from guardrun.supervisor.checkpoints.formats.frameworks.deepspeed import check_states
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole, within

_PATTERN = re.compile(r"checkpoint-(\d+)")
_MARKS = frozenset(("trainer_state.json", "training_args.bin", "optimizer.pt", "checkpoint-is-incomplete.txt"))
_NOT_OURS = re.compile(r"random_states_\d+\.pkl|optimizer_?\d*\.bin|\.metadata")
_RNG = re.compile(r"rng_state_(\d+)\.pth")
_STATES = re.compile(r"global_step\d+")
MAX_RANKS = 1_000_000
_FSDP = re.compile(r"pytorch_model_fsdp_\d+")


class HuggingFace:
    """`checkpoint-N/`, from which the Trainer resumes without a word where half of it is missing."""

    name = "huggingface"
    resume = "--resume_from_checkpoint PATH"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `checkpoint-N`, but those that accelerate's `save_state` or DCP wrote."""

        def marks(names: set[str]) -> bool:
            if names & _MARKS or any(_RNG.fullmatch(name) for name in names):
                return True
            if any(_NOT_OURS.fullmatch(name) for name in names):
                return False
            return bool(names & {*SINGLE, *INDEXES, "config.json", "rng_state.pth"})

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: step as named, weights with every shard, optimizer, scheduler and every rank's random state."""
        if not candidate.files:
            return Torn("the folder is empty")
        names = set(relative_names(candidate))
        if "checkpoint-is-incomplete.txt" in names:
            return Torn("says itself that it is incomplete (checkpoint-is-incomplete.txt)")
        step, verdict = inspector.step(os.path.join(candidate.path, "trainer_state.json"), "global_step")
        if "trainer_state.json" not in names:
            return Torn("lacks trainer_state.json")
        if not isinstance(verdict, Whole):
            return within("trainer_state.json", verdict)
        if step is None or step != candidate.step:
            return Torn(f"trainer_state.json says step {step}, its name says {candidate.step}")
        for verdict in (
            self._check_model(candidate, inspector, names, world_size),
            check_some(candidate, inspector, _other_states(names, world_size)),
            check_all(candidate, inspector),
        ):
            if not isinstance(verdict, Whole):
                return verdict
        return Whole(step)

    def _check_model(self, candidate: Candidate, inspector: Inspector, names: set[str], world_size: int) -> Verdict:
        top = {name.partition("/")[0] for name in names}
        states = sorted(name for name in top if _STATES.fullmatch(name))
        if states:  # DeepSpeed keeps model and optimizer in a folder of its own.
            return check_states(candidate, states[-1], inspector, world_size)
        folders = [name for name in sorted(top) if _FSDP.fullmatch(name) or name == "optimizer_0"]
        for name in folders:
            verdict = inspector.check_dcp(os.path.join(candidate.path, name), candidate.files)
            if not isinstance(verdict, Whole):
                return within(name, verdict)
        if not any(_FSDP.fullmatch(name) for name in folders):
            verdict = check_weights(candidate, inspector)
            if not isinstance(verdict, Whole):
                return verdict
        if not top & {"optimizer.pt", "optimizer.bin", "optimizer_0"}:
            return Torn("lacks optimizer.pt: the Trainer would go on with a fresh optimizer")
        return Whole()

    def takes(self, place: Place) -> str | None:
        """`resume_from_checkpoint=True` takes the highest number (trainer_utils.get_last_checkpoint)."""
        return highest(place, _PATTERN, place.folders)


def _other_states(names: set[str], world_size: int) -> list[str]:
    wanted = [] if any(_STATES.match(name) for name in names) else ["scheduler.pt"]
    if world_size <= 1 and "rng_state.pth" in names:
        return [*wanted, "rng_state.pth"]
    ranks = [int(match.group(1)) for name in names if (match := _RNG.fullmatch(name))]
    if world_size <= 1 and not ranks:
        return [*wanted, "rng_state.pth"]
    return wanted + [
        f"rng_state_{rank}.pth" for rank in range(min(max(world_size, *(rank + 1 for rank in ranks)), MAX_RANKS))
    ]
