"""One device's process: says `ready`, then does what each line on its standard input asks for, and answers in JSON.

`python -m guardrun.launcher.device_trial.program DEVICE RANK RANKS STORE`; it ends with its input. Its parent ends it
where it hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def main(arguments: list[str]) -> int:
    """Answer each line of stdin with one of JSON until stdin ends; 1 where the device could not be set up."""
    name, rank, ranks, store = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What libraries print is not for whoever reads the answers.
    try:
        parts, identity = _load(name, rank, ranks, store)
    except Exception as error:
        _write_answer(answers, {"part": "ready", "error": f"{type(error).__name__}: {error}"})
        return 1
    _write_answer(answers, {"part": "ready", **identity})
    for line in sys.stdin:
        part, *more = line.split()
        try:
            answer = parts[part](*more)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _write_answer(answers, {"part": part, **answer})
    return 0


def _load(
    name: str, rank: int, ranks: int, store: str
) -> tuple[dict[str, Callable[..., dict[str, Any]]], dict[str, str]]:
    """Import torch, take hold of the device: both may take seconds, or fail. What it can do, and which it is."""
    from guardrun.launcher.device_trial.device import Device, Pairing, try_copies, try_pattern, try_product, try_reduce

    device = Device(name)
    device.synchronize()
    pairing = Pairing(device)
    parts: dict[str, Callable[..., dict[str, Any]]] = {
        "serve": pairing.serve,
        "add": pairing.add,
        "product": lambda: try_product(device),
        "pattern": lambda: try_pattern(device),
        "copies": lambda: try_copies(device, ranks),
        "reduce": lambda: try_reduce(device, store, rank, ranks),
    }
    return parts, device.identity()


def _write_answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
