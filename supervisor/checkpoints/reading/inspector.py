"""Verdicts on files, remembered for as long as the file stays the same."""

from __future__ import annotations

import os
from collections.abc import Mapping

from guardrun.supervisor.checkpoints.reading.confined_reader import Answer, Judge, Patience
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA, check_ends
from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat, read_stat
from guardrun.supervisor.checkpoints.reading.torch_file import CRC_LIMIT_BYTES, Contents
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole, explain, within

TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_MAX_REMEMBERED = 20_000


class Inspector:
    """Has files checked by what they hold. Safe to use from several threads: what races is only done twice."""

    def __init__(self, judge: Judge, patience: Patience | None = None, *, deep: bool = False) -> None:
        self._judge = judge
        self._deep = deep
        self._patience = patience or Patience()
        self._answers: dict[tuple[str, str, FileStat | None], Answer] = {}
        self._unjudged: dict[tuple[str, FileStat | None], Unjudged] = {}
        """Whatever else would be asked about them."""

    def begin_round(self) -> None:
        """What could not be judged for want of time is tried again."""
        self._patience.begin_round()
        self._unjudged = {key: verdict for key, verdict in list(self._unjudged.items()) if verdict.is_final}

    def check(self, path: str, stat: FileStat) -> Verdict:
        """Say whether a file is whole, by what it holds; one of no known kind (a log, a raw array) is."""
        name = path.lower()
        if name.endswith(".safetensors"):
            return self._ask("safetensors", path, stat).verdict
        if name.endswith(".json"):
            return self._ask("json", path, stat).verdict
        if name.endswith((".pkl", ".pickle", *TORCH_ENDINGS)):
            return self._ask("companion", path, stat).verdict
        return Whole()

    def check_torch(self, path: str, stat: FileStat) -> Verdict:
        """Say whether a file of torch.save's is whole, whatever its name."""
        if path.lower().endswith(".safetensors"):
            return self.check(path, stat)
        return self._ask("torch", path, stat).verdict

    def describe(self, path: str, stat: FileStat) -> Contents | None:
        """Say what a torch.save file holds."""
        return self._ask("contents", path, stat).contents

    def check_dcp(self, folder: str, files: Mapping[str, FileStat]) -> Verdict:
        """Check a folder of torch.distributed.checkpoint's (files: all that lie in it).

        Every file that `.metadata` names must be there with its length. Up to CRC_LIMIT_BYTES in all, or with deep, the
        items' checksums are compared too.
        """
        prefix = os.path.join(folder, "")
        sizes = {path: stat.size for path, stat in files.items() if path.startswith(prefix)}
        path = os.path.join(folder, METADATA)
        stat = read_stat(path)  # It may be a link, which is no file of the folder's.
        if stat is None and not os.path.lexists(path):
            return Torn("lacks .metadata, which is written last: the save did not finish")
        # Never remembered: what is asked next needs that it was asked just before.
        answer = self._ask_anew("metadata", path, stat)
        verdict = answer.verdict
        if isinstance(verdict, Torn):
            return verdict if verdict.reason.startswith("has ") else Torn(f"{METADATA} {verdict.reason}")
        if not isinstance(verdict, Whole):
            return within(METADATA, verdict)
        verdict = check_ends(folder, answer.ends, sizes)
        if not isinstance(verdict, Whole) or not answer.has_items:
            return verdict
        return self._check_items(folder, answer, files) if self._deep or _is_small(sizes) else verdict

    def _check_items(self, folder: str, answer: Answer, files: Mapping[str, FileStat]) -> Verdict:
        for name in sorted(answer.ends):
            path = os.path.join(folder, name)
            verdict = self._ask_anew("items", path, files.get(path), name).verdict
            if isinstance(verdict, Torn):
                return Torn(f"{name} {verdict.reason}")
            if not isinstance(verdict, Whole):
                return within(name, verdict)
        return Whole()

    def step(self, path: str, name: str) -> tuple[int | None, Verdict]:
        """The number of that name in a JSON object."""
        answer = self._ask("step", path, read_stat(path), name)
        return (answer.numbers[0] if answer.numbers else None), answer.verdict

    def shards(self, path: str) -> tuple[list[str] | None, Verdict]:
        """Which files an index of Hugging Face's names; None: it is none."""
        answer = self._ask("shards", path, read_stat(path))
        return answer.names, answer.verdict

    def parallel_sizes(self, path: str) -> tuple[int, int] | None:
        """(tensor, pipeline) parallel sizes that Megatron saved along."""
        numbers = self._ask("parallel", path, read_stat(path)).numbers
        return (numbers[0], numbers[1]) if len(numbers) == 2 else None

    def _ask(self, kind: str, path: str, stat: FileStat | None, name: str = "") -> Answer:
        key = (f"{kind} {name}", path, stat)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._ask_anew(kind, path, stat, name)
            if stat is not None and answer.is_final:
                if len(self._answers) > _MAX_REMEMBERED:
                    self._answers.clear()
                self._answers[key] = answer
        return answer

    def _ask_anew(self, kind: str, path: str, stat: FileStat | None, name: str = "") -> Answer:
        """Ask; but nothing about a file that has already been the end of somebody."""
        known = self._unjudged.get((path, stat))
        if known is not None:
            return Answer(unjudged=known.reason, is_final=known.is_final)
        try:
            answer = self._judge.ask(kind, path, self._patience, name=name, deep=self._deep)
        except OSError as error:
            return Answer(torn=explain(error))
        except ValueError as error:
            return Answer(torn=f"cannot be read: {error}")
        if answer.unjudged:
            if len(self._unjudged) > _MAX_REMEMBERED:
                self._unjudged.clear()
            self._unjudged[(path, stat)] = Unjudged(answer.unjudged, is_final=answer.is_final)
        return answer


def _is_small(sizes: Mapping[str, int]) -> bool:
    return sum(sizes.values()) <= CRC_LIMIT_BYTES
