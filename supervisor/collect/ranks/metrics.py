"""What a rank's training computes, from its metrics page: read once a second, while its hooks may be writing it."""

from __future__ import annotations

import math
import os
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from guardrun.hooks.wire import metrics_page as page
from guardrun.hooks.wire.metrics_page import Flag, Head, Record
from guardrun.supervisor.base.shared_pages import PageFile
from guardrun.supervisor.engine.model.events import StepLoss, TrainingMetrics
from guardrun.supervisor.engine.observation.metric_window import MetricWindow
from guardrun.supervisor.rundir.step_values import StepValues, is_kept

EVERY_S = 3.9
"""A rank's numbers are reported so often, in reports that have other reasons; at once where a step is odd."""
LOSSES = 16
LOSSES_EVERY = 16
"""Losses are told of steps whose number in the attempt is a multiple of this: ranks tell the same ones."""
RECENT = 64
"""Such losses: of one reading to the next, where a second has a thousand steps."""

_HEAD = struct.Struct(f"<{page.HEAD_WORDS}q")
_RECORD = struct.Struct("<qqddqqqq")
assert _RECORD.size == 8 * page.RECORD_WORDS


class StepRecord(NamedTuple):
    """One record of the page: hooks/wire/metrics_page.py's Record, without what holds it together."""

    step: int
    """Of this attempt."""
    loss: float
    grad_norm: float
    flags: int
    batch: int
    said: int
    """Bits of what the script says itself."""


assert StepRecord._fields.index("said") == Record.SAID - Record.STEP


class MetricsReader:
    """One rank's page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str], keeps_values: bool = False) -> None:
        """keeps_values: those of single steps are wanted (take_values)."""
        self._file = PageFile(path, page.SIZE_BYTES, page.MAGIC, _HEAD)
        self._values: list[StepValues] | None = [] if keeps_values else None
        self._window = MetricWindow()
        self._taken_s = -math.inf
        self._learning_rate = math.nan
        self._skipped = self._left_out = 0
        self._recent: deque[StepLoss] = deque(maxlen=RECENT)
        self._losses: list[StepLoss] = []
        """To be told."""
        self._losses_until = 0
        """The last step of which one is told; 0: none are wanted yet."""

    def read(self, base: int) -> None:
        """Take in what was written since the last time. base: the step that the attempt began with."""
        for record in self.records():
            step = base + record.step
            self._window.add(step, record.loss, record.grad_norm, record.flags, record.batch)
            if not record.step % LOSSES_EVERY:  # ranks read these even where their steps are short
                self._note_loss(step, record)
            if self._values is not None and is_kept(step):
                self._values.append(_values(step, record))

    def _note_loss(self, step: int, record: StepRecord) -> None:
        """What the script says itself may be of all ranks together: it tells nothing about one of them."""
        if record.flags & Flag.LOSS and not record.said & Flag.LOSS and math.isfinite(record.loss):
            loss = StepLoss(step, record.loss)
            self._recent.append(loss)
            if step <= self._losses_until:
                self._losses.append(loss)

    def want_losses(self, after: int | None) -> None:
        """Tell LOSSES single ones of the steps that follow this one, which may have been read; None: not yet."""
        if after is not None and after >= self._losses_until:
            self._losses_until = after + LOSSES * LOSSES_EVERY
            self._losses += [one for one in self._recent if after < one.step <= self._losses_until]

    def take_losses(self) -> list[StepLoss]:
        """Those that were read since the last time."""
        found, self._losses = self._losses, []
        return found

    def take_values(self) -> list[StepValues]:
        """Those of single steps that were read since the last time."""
        found, self._values = self._values or [], None if self._values is None else []
        return found

    def take_report(self) -> TrainingMetrics | None:
        """What is to be reported now; None where nothing is due, or new."""
        now_s = time.monotonic()
        if now_s - self._taken_s < EVERY_S and not self._window.is_urgent:
            return None
        rate = self._learning_rate if math.isfinite(self._learning_rate) else None
        metrics = self._window.take_report(rate, self._skipped, self._left_out)
        if metrics is not None:
            self._taken_s = now_s
        return metrics

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def records(self) -> Iterator[StepRecord]:
        """Those that are new and whole, in order; those that were written over meanwhile are lost."""
        head = self.head()
        if head is None:
            return
        count = head[Head.RECORDS]
        self._learning_rate = struct.unpack("<d", struct.pack("<q", head[Head.LEARNING_RATE]))[0]
        self._skipped, self._left_out = head[Head.SKIPPED], head[Head.LEFT_OUT]
        first = max(self._file.seen, count - page.MAX_RECORDS)
        self._file.seen = max(count, self._file.seen)
        while first < count:
            place = first % page.MAX_RECORDS
            number = min(count - first, page.MAX_RECORDS - place)
            data = self._file.read(number * _RECORD.size, 8 * page.HEAD_WORDS + place * _RECORD.size)
            for offset, (begin, *values, end) in enumerate(_RECORD.iter_unpack(data)):
                if begin == end == first + offset + 1:
                    yield StepRecord(*values)
            first += number

    def head(self) -> tuple[int, ...] | None:
        """The header's words, indexed by Head; None where there is no page."""
        return self._file.head()


def _values(step: int, record: StepRecord) -> StepValues:
    flags = record.flags
    loss, norm = record.loss if flags & Flag.LOSS else None, record.grad_norm if flags & Flag.GRAD_NORM else None
    if flags & (Flag.LOSS_NAN | Flag.LOSS_INFINITE):
        loss = math.nan if flags & Flag.LOSS_NAN else math.inf
    if flags & (Flag.NORM_NAN | Flag.NORM_INFINITE):
        norm = math.nan if flags & Flag.NORM_NAN else math.inf
    return StepValues(step, loss, norm)
