"""Checkpoints with a few bytes changed, by the thousand, looked into by one process with little memory.

    python -m tests.checkpoints.fuzz FOLDER NUMBER COUNT

FOLDER holds the seeds, and `seeds.json`, which says what each is. NUMBER begins the random numbers: the same one makes
the same mutations. What is being looked into lies in FOLDER/file: it is still there when this has ended over it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from guardrun.supervisor.checkpoints.reading.confined_process import Examiner
from tests.checkpoints import bombs

MAX_S = 2.0
MEMORY_BYTES = 256 << 20
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1)
_OPCODES = b".012()]}FGIJKLMNPQRSTUVXabcdeghijlopqrstu" + bytes((*range(0x80, 0x99),))
WRAPS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "archive": bombs.archive,
    "legacy": bombs.legacy,
    "safetensors": bombs.safetensors,
}
"""What is put around a mutation, whose checksums are right then: otherwise nothing of it would ever be walked."""

Mutation = Callable[[random.Random, bytearray, bytes], None]


def _flip(rng: random.Random, data: bytearray, _: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray, _: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def _delete(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 64)]


def _number(rng: random.Random, data: bytearray, _: bytes) -> None:
    size, at = rng.choice((1, 2, 4, 8)), rng.randrange(len(data))
    number = rng.choice((*_NUMBERS, len(data), len(data) - at)) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, "little")


def _opcodes(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = bytes(rng.choice(_OPCODES) for _ in range(rng.randrange(1, 8))) * rng.choice((1, 1, 1, 500))


def _repeat(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 64)] * rng.choice((1, 2, 300))


def _splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    data[at : at + rng.randrange(64)] = other[start : start + rng.randrange(1, 256)]


_MUTATIONS: tuple[Mutation, ...] = (_flip, _cut, _delete, _number, _opcodes, _repeat, _splice)


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a few bytes; some come from another seed."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if mutated:
            rng.choice(_MUTATIONS)(rng, mutated, other)
    return bytes(mutated)


def judge(examiner: Examiner, kind: str, data: bytes, fd: int) -> str:
    """Say whole, torn or unjudged. Raises whatever the examiner does, and TimeoutError."""
    # Never empty in between: some file systems write out at once what has replaced a file's content.
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    began_s = time.process_time()
    answer = examiner.answer({"kind": kind, "name": "global_step"}, fd)
    if time.process_time() - began_s > MAX_S:
        raise TimeoutError(f"{time.process_time() - began_s:.1f} s")
    return "torn" if "torn" in answer else "unjudged" if "unjudged" in answer else "whole"


def main(folder: Path, number: int, count: int) -> None:
    """Play them; says what came of them."""
    about = json.loads((folder / "seeds.json").read_text())
    seeds = [((folder / name).read_bytes(), WRAPS[wrap], kinds) for name, wrap, kinds in about]
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rng, examiner, said = random.Random(number), Examiner(), Counter[str]()
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    for at in range(count):
        data, wrap, kinds = rng.choice(seeds)
        kind = rng.choice(kinds)
        try:
            said[judge(examiner, kind, wrap(mutate(rng, data, rng.choice(seeds)[0])), fd)] += 1
        except Exception:
            print(f"mutation {at}, asked for {kind}", file=sys.stderr)
            raise
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
