"""Run tests many times, in random order, on a machine that is short of everything: which of them fail now and then?

    python -m tests.support.flaky --runs 10 [-k EXPRESSION] [-- more for pytest]      `make test-flaky N=10 K=…`

Beside the tests run as many busy processes as there are CPUs, at their priority, and one that keeps the disk of their
folders busy. Prints a table at the end; ends with 1 where any test failed in any run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NoReturn

from tests.support.turns import SEATS

WRITTEN_BYTES = 4 << 20
"""What the writer has on disk at most: it writes the same part of one file again and again."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
COUNTS = re.compile(r"(\d+) (passed|failed|errors?)\b")

# Each ends by itself once nobody is there whom it could slow down: a load must not outlive what it is for.
BUSY = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""
WRITER = f"""
import os, sys, tempfile
parent, data = int(sys.argv[1]), os.urandom({WRITTEN_BYTES})
with tempfile.TemporaryFile(dir=sys.argv[2], buffering=0) as file:
    while os.getppid() == parent:
        file.seek(0)
        file.write(data)
        os.fsync(file.fileno())
"""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    seed: int
    status: int
    """pytest's: 0 where all passed, 1 where a test failed, others where there was no proper run."""
    passed: int
    failed: tuple[str, ...]
    """Ids, each once."""
    took_s: float


def parse_outcome(seed: int, status: int, output: str, took_s: float) -> Outcome:
    """What pytest's own last lines (-ra) say."""
    summary = output.rpartition("short test summary info")[2]
    last = next((line for line in reversed(output.splitlines()) if COUNTS.search(line)), "")
    counts = {what: int(number) for number, what in COUNTS.findall(last)}
    return Outcome(seed, status, counts.get("passed", 0), tuple(dict.fromkeys(FAILED.findall(summary))), took_s)


@contextmanager
def program(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python beside the tests, ended with the block, by its pid."""
    # -S: no site-packages, it is up at once; -I: nothing of the caller's environment steers it.
    command = [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def load(folder: str, busy: int) -> Iterator[list[int]]:
    """Busy processes, and one that writes to the folder's disk; their pids."""
    with ExitStack() as stack:
        codes = [(BUSY,)] * busy + [(WRITER, folder)]
        yield [stack.enter_context(program(*code)).pid for code in codes]


def run_once(seed: int, arguments: Sequence[str]) -> Outcome:
    """One run of pytest, its output on this terminal as it comes."""
    command = [sys.executable, "-m", "pytest", f"--randomly-seed={seed}", *arguments]
    began_s, lines = time.monotonic(), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # Ctrl-C has met it, too
                run.send_signal(signal.SIGINT)  # upon which pytest ends what its fixtures have started
            for line in run.stdout:  # what has failed so far
                print(line, end="", flush=True)
            raise
    return parse_outcome(seed, run.returncode, "".join(lines), time.monotonic() - began_s)


def table(outcomes: Sequence[Outcome]) -> str:
    """Run by run, and then each test that failed, with how often it did."""
    lines = [f"{'run':>4}{'seed':>12}{'s':>7}{'passed':>8}{'failed':>8}"]
    for number, outcome in enumerate(outcomes, 1):
        lines.append(f"{number:4}{outcome.seed:12}{outcome.took_s:7.0f}{outcome.passed:8}{len(outcome.failed):8}")
        lines += [f"       {name}" for name in outcome.failed]
        if outcome.status not in (0, 1):
            lines.append(f"       pytest ended with {outcome.status}")
    bad = sum(outcome.status != 0 for outcome in outcomes)
    lines.append(f"{bad} of {len(outcomes)} runs failed" if bad else f"{len(outcomes)} runs without a failure")
    return "\n".join(lines)


def stop(signum: int, frame: object) -> NoReturn:
    """SIGTERM ends what runs beside the tests, too."""
    sys.exit(128 + signum)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("-k", default="", help="which tests, as for pytest")
    parser.add_argument("--busy", type=int, default=SEATS, help="processes that compute all the time (one a CPU)")
    parser.add_argument("pytest", nargs="*", help="more for pytest, after --")
    options = parser.parse_args(argv)
    arguments = [*options.pytest, *(["-k", options.k] if options.k else [])]
    signal.signal(signal.SIGTERM, stop)
    outcomes: list[Outcome] = []
    try:
        with load(tempfile.gettempdir(), options.busy):
            for number in range(1, options.runs + 1):
                seed = random.randrange(1 << 32)
                print(f"\nrun {number} of {options.runs}: seed {seed}", flush=True)
                outcomes.append(run_once(seed, arguments))
    except KeyboardInterrupt:
        print("\ninterrupted")
    print(f"\n{table(outcomes)}")
    return int(len(outcomes) < options.runs or any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
