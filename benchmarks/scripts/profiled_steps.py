"""What it costs to have steps profiled (`guardctl profile`): a step with and without, and afterwards each event."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from guardrun.hooks.examine.kineto import Recorder, read_allocated
from guardrun.hooks.rank.rank import Rank

ROUNDS, STEPS = 10, 20
WIDTH, BLOCKS = 32, 20


def main() -> None:
    os.environ["RANK"] = "0"
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)])
    x = torch.randn(16, WIDTH)
    recorder = Recorder(Rank({"sockets": "/nowhere"}, 0), torch, sys.exit)

    def step() -> int:
        began_ns = perf_counter_ns()
        model(x).sum().backward()
        model.zero_grad()
        return perf_counter_ns() - began_ns

    without, profiled, stopped, written = [], [], [], []
    grown = events = size = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        for number in range(1 + ROUNDS):
            plain = [step() for _ in range(STEPS)]
            before = read_allocated()
            recorder.start()
            slow = [step() for _ in range(STEPS)]
            grown = read_allocated() - before
            began_ns = perf_counter_ns()
            results: Any = recorder.stop()
            stopped_ns = perf_counter_ns()
            events = len(results.events())
            results.save(str(path))
            written_ns = perf_counter_ns()
            size = path.stat().st_size
            path.unlink()
            if number:  # the first session does what is done once
                without += plain
                profiled += slow
                stopped.append((stopped_ns - began_ns) / events)
                written.append((written_ns - stopped_ns) / events)
    plain_ms, with_ms = median(without) / 1e6, median(profiled) / 1e6
    more_us = (with_ms - plain_ms) * 1e3 * STEPS / events
    print(
        f"a step of {events / STEPS:.0f} events: {plain_ms:.2f} ms without, {with_ms:.2f} ms with: {more_us:.1f} µs an "
        f"event; taking it off {median(stopped) / 1e3:.1f} µs an event, writing {median(written) / 1e3:.1f}; "
        f"{grown / events:.0f} bytes an event before that, {size / events:.0f} of the trace"
    )


main()
