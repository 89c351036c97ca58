"""RUN/steps.csv: loss and gradient norm of single steps of global rank 0, as its hooks read them.

    attempt,step,loss,grad_norm
    0,1,2.302585092994046,1.25

Numbers have all their digits, so that two runs can be compared to the last bit; what is not known is empty. Beyond
WHOLE steps every second one is kept, beyond 2 × WHOLE every fourth, and so on: always by the step's number, so that two
runs keep the same ones, and a run of ten million steps has 6 MB at most. A step may be there twice, where training went
back to a checkpoint, or a supervisor was restarted: the last one counts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.base.own_files import open_own, open_to_add

NAME = "steps.csv"
HEADING = "attempt,step,loss,grad_norm\n"
WHOLE = 16_384
MAX_BYTES = 16 << 20
MAX_LINE_CHARS = 200


class StepValues(NamedTuple):
    """One step's."""

    step: int
    """With the base of a resumed checkpoint."""
    loss: float | None
    """May be NaN, or infinite."""
    grad_norm: float | None


def is_kept(step: int) -> bool:
    """Whether this step's values are."""
    return step % (1 << max(0, (step // WHOLE).bit_length())) == 0


class StepsFile:
    """Adds to a run's file, for as long as it has room. Any thread but one at a time may do so."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        self._file: io.FileIO | None = None

    def add(self, attempt: int, values: Sequence[StepValues]) -> None:
        """Raises OSError."""
        if self._file is None:
            self._file = io.FileIO(open_to_add(self._path), "ab")
        size = self._file.tell()
        text = "".join(f"{attempt},{one.step},{_word(one.loss)},{_word(one.grad_norm)}\n" for one in values)
        if size + len(text) > MAX_BYTES:
            return
        data = ((HEADING if not size else "") + text).encode()
        if self._file.write(data) != len(data):
            self._file.write(b"\n")  # A full disk took a part: the next line must not be glued to it.

    def close(self) -> None:
        """Let go of the file; what is added later opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _word(value: float | None) -> str:
    return "" if value is None else repr(value)


def read_steps(run_dir: Path) -> Iterator[tuple[int, StepValues]]:
    """(attempt, values) as they were written; lines that are torn or strange are passed over. Raises OSError."""
    with open(open_own(run_dir / NAME, is_anybodys=True), "rb") as file:
        left = MAX_BYTES
        while left > 0 and (line := file.readline(MAX_LINE_CHARS)):
            left -= len(line)
            found = _parse(line)
            if found is not None:
                yield found


def _parse(line: bytes) -> tuple[int, StepValues] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        attempt, step, loss, norm = line.decode("ascii").split(",")
        values = StepValues(int(step), float(loss) if loss else None, float(norm) if norm.strip() else None)
    except ValueError:
        return None
    return (int(attempt), values) if values.step >= 0 and math.isfinite(values.step) else None
