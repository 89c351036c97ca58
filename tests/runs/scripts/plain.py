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
import zipfile
from pathlib import Path

from guardrun.hooks import should_checkpoint
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
parser.add_argument("--asked", choices=["", "save", "leave"], default="", help="what should_checkpoint() leads to")
parser.add_argument("--own-handler", action="store_true", help="saves at SIGUSR1, and ends with 85")
parser.add_argument("--end", default="", help="a file: once it is there, training ends well")
parser.add_argument("--ledger", default="", help="a file: where rank 0 has begun, what it has saved")
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
    """All ranks go in step, as collectives would have it: each waits until nobody is behind.

    told: what has come meanwhile, for which one of them may have left a step before the others.
    """

    def __init__(self, told: list[int]) -> None:
        self._told = told
        name = f"steps-{os.environ['GUARDRUN_RUN_ID']}-{ATTEMPT}"
        self._size = int(os.environ["WORLD_SIZE"])
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)

    def arrive(self, step: int) -> None:
        os.pwrite(self._fd, step.to_bytes(8, "little"), 8 * int(RANK))
        while not self._told and any(self._of(rank) < step for rank in range(self._size)):
            time.sleep(0.001)

    def _of(self, rank: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 8 * rank), "little")


def enter(what: str, step: int) -> None:
    if arguments.ledger and RANK == "0":
        with open(arguments.ledger, "a") as ledger:
            ledger.write(f"{what} {step}\n")


def wait_to_be_watched() -> None:
    """Save nothing before guardrun knows what was there: without torch, a rank may be quicker than its supervisor."""
    run = Path("guardrun-runs") / os.environ.get("GUARDRUN_RUN_ID", "none")
    until_s = time.monotonic() + 10.0
    while ATTEMPT == "0" and run.is_dir() and not (run / "events.jsonl").exists() and time.monotonic() < until_s:
        time.sleep(0.005)


def tear() -> None:
    """A save that is cut short by a kill."""
    path = out / "ckpt_99.safetensors"
    save(99, path)
    os.truncate(path, 600)
    os.kill(os.getpid(), signal.SIGKILL)


def bomb() -> None:
    """A checkpoint that is made to hold up whoever looks into it; then a kill."""
    with zipfile.ZipFile(out / "ckpt_99.pt", "w") as archive:
        archive.writestr(
            "archive/data.pkl", b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s."
        )  # a key that is hashed for ever
        archive.writestr("archive/version", "3\n")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    wait_to_be_watched()
    if arguments.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.ignore_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    caught: list[int] = []
    if arguments.own_handler:
        signal.signal(signal.SIGUSR1, lambda signum, frame: caught.append(signum))
    if arguments.leave_children:
        say(f"alive of before: {alive_of_before()}")
        note(os.getpid())
        leave_children()
    start = load(Path(arguments.resume)) if arguments.resume else 0
    names = ("GUARDRUN_RESUME_FROM", "GUARDRUN_RESUME_STEP", "MY_RESUME")
    say(f"starts at step {start} " + " ".join(f"{name}={os.environ.get(name)}" for name in names))
    enter("begins", start)
    steps = Steps(caught)
    for step in range(start + 1, arguments.steps + 1):
        time.sleep(arguments.step_s)
        for fault in due(plan, step) + due_now(arguments.when):
            suffer(fault, arguments.seconds, {"tear": tear, "bomb": bomb})
        if arguments.end and os.path.exists(arguments.end):
            steps.arrive(1 << 62)  # nobody waits for this rank any more
            break
        steps.arrive(step)
        count_step(step)
        is_asked = bool(arguments.asked) and should_checkpoint()
        if is_asked or caught:
            say(f"saves at step {step}")
        is_due = arguments.save_every and step % arguments.save_every == 0
        if RANK == "0" and (is_due or is_asked or caught):
            out.mkdir(exist_ok=True)
            save(step, out / f"ckpt_{step}.safetensors")
            enter("saved", step)
        if caught:
            sys.exit(85)
        if is_asked and arguments.asked == "leave":
            return
    say("done")


main()
