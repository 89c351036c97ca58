"""Verdicts on files, remembered for as long as the file stays the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from guardrun.launcher.checkpoints.dcp import check_dcp
from guardrun.launcher.checkpoints.places import FileStat
from guardrun.launcher.checkpoints.safetensors import check_safetensors
from guardrun.launcher.checkpoints.torchfile import (
    Contents,
    check_companion,
    check_torch_file,
    describe_torch_file,
)
from guardrun.launcher.checkpoints.verdicts import Torn, Verdict, Whole, explain

TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".tar")
MAX_TEXT_BYTES = 64 << 20
_MAX_REMEMBERED = 20_000
_JSON_BEGINS = frozenset('{["-0123456789tfnNI')


class Inspector:
    """Checks files by what they hold. Safe to use from several threads: what races is only done twice."""

    def __init__(self, *, deep: bool = False) -> None:
        self._deep = deep
        self._verdicts: dict[tuple[str, FileStat], Verdict] = {}
        self._contents: dict[tuple[str, FileStat], Contents | None] = {}

    def check(self, path: str, stat: FileStat) -> Verdict:
        """Say whether a file is whole, by what it holds; one of no known kind (a log, a raw array) is."""
        key = (path, stat)
        if key not in self._verdicts:
            if len(self._verdicts) > _MAX_REMEMBERED:
                self._verdicts.clear()
            self._verdicts[key] = self._check(path)
        return self._verdicts[key]

    def _check(self, path: str) -> Verdict:
        name = path.lower()
        if name.endswith(".safetensors"):
            return check_safetensors(path)
        if name.endswith(".json"):
            return self._check_json(path)
        if name.endswith((".pkl", ".pickle", *TORCH_ENDINGS)):
            return check_companion(path, deep=self._deep)
        return Whole()

    def _check_json(self, path: str) -> Verdict:
        """JSON, or JSON lines; what does not begin like either is of another kind."""
        text, verdict = self.text(path)
        if isinstance(verdict, Torn) or len(text) >= MAX_TEXT_BYTES:
            return verdict
        begin = text.lstrip("\ufeff \t\r\n")[:1]
        if text.strip("\0 \r\n") and begin not in _JSON_BEGINS:
            return Whole()
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > 1 and all(isinstance(_parse_json(line)[1], Whole) for line in lines):
            return Whole()
        return _parse_json(text)[1]

    def check_torch(self, path: str, stat: FileStat) -> Verdict:
        """Say whether a file of torch.save's is whole, whatever its name."""
        if path.lower().endswith(".safetensors"):
            return self.check(path, stat)
        key = (f"torch {path}", stat)
        if key not in self._verdicts:
            self._verdicts[key] = check_torch_file(path, deep=self._deep)
        return self._verdicts[key]

    def describe(self, path: str, stat: FileStat) -> Contents | None:
        """Say what a torch.save file holds."""
        key = (path, stat)
        if key not in self._contents:
            if len(self._contents) > _MAX_REMEMBERED:
                self._contents.clear()
            self._contents[key] = describe_torch_file(path)
        return self._contents[key]

    def check_dcp(self, folder: str, files: Mapping[str, FileStat]) -> Verdict:
        """Check a folder of torch.distributed.checkpoint's (files: all that lie in it)."""
        prefix = os.path.join(folder, "")
        sizes = {path: stat.size for path, stat in files.items() if path.startswith(prefix)}
        return check_dcp(folder, sizes, deep=self._deep)

    def json(self, path: str) -> tuple[Any, Verdict]:
        """Read a JSON file: (value, Whole) or (None, Torn)."""
        text, verdict = self.text(path)
        return (None, verdict) if isinstance(verdict, Torn) else _parse_json(text)

    def text(self, path: str) -> tuple[str, Verdict]:
        """Read a small text file."""
        try:
            with open(path, "rb") as file:
                return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace"), Whole()
        except OSError as error:
            return "", Torn(explain(error))


def _parse_json(text: str) -> tuple[Any, Verdict]:
    try:
        return json.loads(text.removeprefix("\ufeff")), Whole()
    except (ValueError, RecursionError):
        return None, Torn("is damaged (no JSON)" if text.strip("\0 \n") else "the file is empty")
