"""The process in which files are judged: it reads one open file at a time and may do nothing else.

A file that is made to take all memory, to compute for ever, or to end whoever reads it, ends this. It opens nothing,
knows no paths and writes no file; of memory and of CPU time it has so much and no more. Waiting for a disk costs it
nothing: how long that may take is the parent's to say (confined_reader.py).

Standard input is a socket of the parent's: a question (a dictionary as JSON, its length before it) with a descriptor
beside it, and the answer. It ends when the parent does. Imports nothing that is not needed: no torch, nothing from
site-packages.
"""

from __future__ import annotations

import array
import codecs
import gc
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

from guardrun.supervisor.base.confinement import confine
from guardrun.supervisor.base.framing import LENGTH, frame
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
from guardrun.supervisor.checkpoints.reading.verdicts import MEMORY_BYTES, Torn, Unjudged, Verdict, Whole, explain

MAX_QUESTION_BYTES = 1 << 16
READY = frame(b"")
"""What it says first: from then on a file's time counts."""
STALE_BYTES = 96 << 20
"""Larger than this after a question it makes room for another: what was allocated is rarely given back."""
_DESCRIPTORS = 5
"""The three that everybody has, one of /proc, and the file."""

MAX_SHARDS = 20_000
_MAX_NAME = 4096

Answer = dict[str, Any]


def main() -> None:
    """Answer until the parent is gone. The last argument: seconds of computing for a question."""
    cpu_s = int(sys.argv[-1])
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    for name in ("raw_unicode_escape", "latin-1", "utf-8"):
        codecs.lookup(name)  # They are modules, read when they are used first.
    confine(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
            resource.RLIMIT_NOFILE: _DESCRIPTORS,
            resource.RLIMIT_AS: _pages(statm, 0) + MEMORY_BYTES,
        }
    )
    gc.disable()  # What a walk builds is let go of as a whole; a collection in between would look at all of it.
    examiner = Examiner()
    with socket.socket(fileno=0) as parent:
        parent.sendall(READY)
        while (received := _receive(parent)) is not None:
            question, fd = received
            try:
                answer = _answer(examiner, question, fd, cpu_s)
                os.close(fd)
                is_last = _pages(statm, 1) > STALE_BYTES and not answer.get("has_items")
                data = json.dumps({**answer, "is_last": is_last}).encode()
            except BaseException:
                os.abort()  # An exit status would say that it could not run, which is no file's doing.
            parent.sendall(frame(data))
            if is_last:
                return


def _pages(statm: int, field: int) -> int:
    """Bytes of address space (0), or in memory (1)."""
    return int(os.pread(statm, 256, 0).split()[field]) * resource.getpagesize()


def _receive(parent: socket.socket) -> tuple[dict[str, Any], int] | None:
    fds = array.array("i")
    data, ancillary, _, _ = parent.recvmsg(MAX_QUESTION_BYTES, socket.CMSG_SPACE(fds.itemsize))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data or not fds:
        return None
    size = LENGTH.unpack(data[: LENGTH.size])[0] + LENGTH.size
    while len(data) < size:
        more = parent.recv(size - len(data))
        if not more:
            return None
        data += more
    return json.loads(data[LENGTH.size :]), fds[0]


def _answer(examiner: Examiner, question: dict[str, Any], fd: int, cpu_s: int) -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(used.ru_utime + used.ru_stime) + cpu_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        return examiner.answer(question, fd)
    except MemoryError:
        return {"unjudged": f"more than {MEMORY_BYTES >> 20} MiB of memory would be needed", "is_final": True}
    except Exception as error:
        # A mistake of ours, which costs nobody a checkpoint that is whole: the verdict says that there is none.
        return {"unjudged": f"{type(error).__name__} while it was read", "is_final": True}


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
