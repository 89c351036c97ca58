"""What is asked of one open file, and the answers. Knows no paths; runs where nothing may be opened (`confined`).

A question is a dictionary as JSON has it, as is the answer (`judge.Answer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guardrun.supervisor.checkpoints.reading.dcp_metadata import check_items, read_metadata
from guardrun.supervisor.checkpoints.reading.json_documents import check_json, check_safetensors, read_json
from guardrun.supervisor.checkpoints.reading.pickles import Node
from guardrun.supervisor.checkpoints.reading.torch_file import (
    MAX_STEP,
    check_companion,
    check_torch_file,
    describe_torch_file,
    open_source,
    read_root,
)
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole, explain

MAX_SHARDS = 20_000
_MAX_NAME = 4096

Answer = dict[str, Any]


class Examiner:
    """Answers questions, one after the other."""

    def __init__(self) -> None:
        self._items: dict[str, list[tuple[int, int]]] = {}
        """Of the `.metadata` that was read last."""
        self._kinds: dict[str, Callable[[int, dict[str, Any]], Answer]] = {
            "torch": lambda fd, question: _said(check_torch_file(fd, deep=question.get("deep", False))),
            "companion": lambda fd, question: _said(check_companion(fd, deep=question.get("deep", False))),
            "safetensors": lambda fd, _: _said(check_safetensors(fd)),
            "json": lambda fd, _: _check_json(fd),
            "contents": lambda fd, _: _contents(fd),
            "parallel": lambda fd, _: _parallel_sizes(fd),
            "step": lambda fd, question: _integer(fd, question["name"]),
            "shards": lambda fd, _: _shards(fd),
            "metadata": lambda fd, _: self._metadata(fd),
            "items": lambda fd, question: self._check_items(fd, question["name"]),
        }

    def answer(self, question: dict[str, Any], fd: int) -> Answer:
        """Answer about a regular file. Raises MemoryError."""
        if question["kind"] != "items":
            self._items = {}
        try:
            return self._kinds[question["kind"]](fd, question)
        except OSError as error:
            return _said(Torn(explain(error)))

    def _metadata(self, fd: int) -> Answer:
        found, verdict = read_metadata(fd)
        self._items = found.items
        return {**_said(verdict), "ends": found.ends, "has_items": bool(found.items)}

    def _check_items(self, fd: int, name: str) -> Answer:
        if name not in self._items:
            return _said(Unjudged("what its .metadata said is lost", is_final=False))
        return _said(check_items(fd, self._items[name]))


def _said(verdict: Verdict) -> Answer:
    if isinstance(verdict, Whole):
        return {}
    if isinstance(verdict, Torn):
        return {"torn": verdict.reason}
    return {"unjudged": verdict.reason, "is_final": verdict.is_final}


def _check_json(fd: int) -> Answer:
    with open_source(fd) as file:
        return _said(check_json(file))


def _contents(fd: int) -> Answer:
    contents = describe_torch_file(fd)
    return {} if contents is None else {"contents": contents}


def _integer(fd: int, name: str) -> Answer:
    with open_source(fd) as file:
        value, verdict = read_json(file)
    found = value.get(name) if isinstance(value, dict) else None
    is_number = isinstance(found, int) and not isinstance(found, bool) and 0 <= found < MAX_STEP
    return {**_said(verdict), "numbers": [found] if is_number else []}


def _shards(fd: int) -> Answer:
    """Which files an index of Hugging Face's names."""
    with open_source(fd) as file:
        value, verdict = read_json(file)
    shards = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        return _said(verdict)
    names = sorted(set(shards.values()))
    if len(names) > MAX_SHARDS or any(len(name) > _MAX_NAME for name in names):
        return _said(Unjudged("it names more shards than can be looked into"))
    return {**_said(verdict), "names": names}


def _parallel_sizes(fd: int) -> Answer:
    """(tensor, pipeline) parallel sizes from the arguments that Megatron saves along."""
    read = read_root(fd)
    args: Any = read[0].get("args") if read is not None and isinstance(read[0], dict) else None
    state = args.state if isinstance(args, Node) else None
    if not isinstance(state, dict):
        return {}
    sizes = [state.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline")]
    return {"numbers": sizes} if all(isinstance(size, int) and 0 <= size < MAX_STEP for size in sizes) else {}
