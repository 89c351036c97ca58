"""Training without torch, in place within a tenth of a second: steps told by the public API, safetensors files saved.

For faults that need no collective. Says what it does on stdout, one line each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from guardrun.hooks import step as count_step

sys.path.insert(0, str(Path(__file__).parent))
from faults import ATTEMPT, RANK, alive_of_before, due, due_now, note, parse_plan, suffer

parser = argparse.ArgumentParser()
parser.add_argument("--plan", default="")
parser.add_argument("--when", default="", help="FILE:FAULT, see faults.py")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.01)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--out", default="out")
parser.add_argument("--resume", default="")
parser.add_argument("--seconds", type=float, default=5.0, help="how long faults last that end")
parser.add_argument("--leave-children", action="store_true", help="processes that try to outlive the rank")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--ignore-sigint", action="store_true")
arguments = parser.parse_args()
plan = parse_plan(arguments.plan)
out = Path(arguments.out)


def say(text: str) -> None:
    os.write(1, f"attempt {ATTEMPT} rank {RANK}: {text}\n".encode())


def save(step: int, path: Path) -> None:
    """A whole safetensors file, put in place by a rename."""
    header = json.dumps(
        {
            "__metadata__": {"step": str(step)},
            "weight": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]},
        }
    ).encode()
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1024))
    temporary.rename(path)


def load(path: Path) -> int:
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(header["__metadata__"]["step"])


def leave_children() -> None:
    """A child that ignores SIGTERM, and one in a session of its own that nobody is parent of."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    command = [sys.executable, "-S", "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    note(child.pid)
    if os.fork() == 0:
        os.setsid()
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        note(daemon.pid)
        os._exit(0)
    os.wait()


class Steps:
    """All ranks go in step, as collectives would have it: each waits until nobody is behind."""

    def __init__(self) -> None:
        name = f"steps-{os.environ['GUARDRUN_RUN_ID']}-{ATTEMPT}"
        self._size = int(os.environ["WORLD_SIZE"])
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)

    def arrive(self, step: int) -> None:
        os.pwrite(self._fd, step.to_bytes(8, "little"), 8 * int(RANK))
        while any(self._of(rank) < step for rank in range(self._size)):
            time.sleep(0.001)

    def _of(self, rank: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 8 * rank), "little")


def tear() -> None:
    """A save that is cut short by a kill."""
    path = out / "ckpt_99.safetensors"
    save(99, path)
    os.truncate(path, 600)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    if arguments.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.ignore_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.leave_children:
        say(f"alive of before: {alive_of_before()}")
        note(os.getpid())
        leave_children()
    start = load(Path(arguments.resume)) if arguments.resume else 0
    names = ("GUARDRUN_RESUME_FROM", "GUARDRUN_RESUME_STEP", "MY_RESUME")
    say(f"starts at step {start} " + " ".join(f"{name}={os.environ.get(name)}" for name in names))
    steps = Steps()
    for step in range(start + 1, arguments.steps + 1):
        time.sleep(arguments.step_s)
        for fault in due(plan, step) + due_now(arguments.when):
            suffer(fault, arguments.seconds, {"tear": tear})
        steps.arrive(step)
        count_step(step)
        if RANK == "0" and arguments.save_every and step % arguments.save_every == 0:
            out.mkdir(exist_ok=True)
            save(step, out / f"ckpt_{step}.safetensors")
    say("done")


main()
