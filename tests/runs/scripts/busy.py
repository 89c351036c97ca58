"""Work for ten seconds that no hook sees: no torch, no steps, no files."""

from __future__ import annotations

import time


def refine(values: list[float]) -> list[float]:
    return [left + right for left, right in zip(values, reversed(values), strict=True)]


def order(values: list[float]) -> list[float]:
    return sorted(values, key=abs)


def scale(values: list[float]) -> list[float]:
    top = max(map(abs, values)) or 1.0
    return [value / top for value in values]


end = time.monotonic() + 10
numbers = [float(n % 17) for n in range(20_000)]
while time.monotonic() < end:
    numbers = scale(order(refine(numbers)))
