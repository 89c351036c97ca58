"""What device timing costs on the clock: blocks of steps with it, and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

BLOCKS, BLOCK_STEPS = 40, 20


def compare_blocks(timer: Any, step: Callable[[], None]) -> dict[str, Any]:
    """Steps with device timing and without, taking turns."""
    import torch

    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * BLOCKS):
        is_timed = number % 4 in (0, 3)
        timer.is_off = not is_timed
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            step()
        torch.cuda.synchronize()
        took[is_timed].append(1000 * (time.perf_counter() - began_s) / BLOCK_STEPS)
        if not is_timed:
            timer.stop()
    timer.is_off = False
    ratios = sorted(on / off for on, off in zip(took[True], took[False], strict=True))
    return {
        "with_ms": median(took[True]),
        "without_ms": median(took[False]),
        "ratio": [round(ratios[len(ratios) * place // 100], 4) for place in (25, 50, 75)],
    }
