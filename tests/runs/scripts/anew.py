"""Training that writes its one checkpoint over in place, as small scripts do; and the ways in which it is begun again.

No collectives: what others wait for is not the point here.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import signal
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--takes", default="never", help="never, exists, pickle, rank0, rank1, weights, bucket")
parser.add_argument("--resume", default="", help="what guardrun says; heeded by `told` alone")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-s", type=float, default=0.01)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--crash-at", type=int, default=25, help="in the first attempt")
parser.add_argument("--cut-at", type=int, default=0, help="in the second: the save at that step is cut off")
parser.add_argument("--name", default="ckpt.pt", help="may hold {step}")
parser.add_argument("--save-first", action="store_true", help="before the first step")
parser.add_argument("--save-on-sigterm", action="store_true")
arguments, _ = parser.parse_known_args()

RANK, ATTEMPT = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
out = Path("out")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def say(text: str) -> None:
    os.write(1, f"attempt {ATTEMPT} rank {RANK}: {text}\n".encode())


def path_of(step: int) -> Path:
    return out / arguments.name.format(step=step)


def save(step: int) -> None:
    out.mkdir(exist_ok=True)
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "attempt": ATTEMPT}
    if ATTEMPT == 1 and 0 < step == arguments.cut_at:
        torch.save(state, whole := io.BytesIO())
        path_of(step).write_bytes(whole.getvalue()[:700])
        os.kill(os.getpid(), signal.SIGKILL)
    if arguments.takes == "pickle":
        with path_of(step).open("wb") as file:
            pickle.dump({**state, "optimizer": {"state": {}, "param_groups": []}}, file)
    else:
        torch.save(state, path_of(step))
    if arguments.takes == "bucket":
        torch.save(state, bucket_file := io.BytesIO())
        Path("bucket").mkdir(exist_ok=True)
        Path("bucket/latest").write_bytes(bucket_file.getvalue())


def newest() -> Path | None:
    if arguments.takes == "bucket":
        return Path("bucket/latest") if Path("bucket/latest").exists() else None
    told = os.environ.get("GUARDRUN_RESUME_FROM")
    if told:
        return Path(told)
    found = sorted(out.glob("*.p*"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def start() -> int:
    path = newest()
    if arguments.takes == "never" or path is None or arguments.takes in {"rank0", "rank1"} - {f"rank{RANK}"}:
        return 0
    if arguments.takes == "pickle":
        with path.open("rb") as file:
            return int(pickle.load(file)["step"])
    state = torch.load(path)
    model.load_state_dict(state["model"])
    if arguments.takes == "weights":
        return 0
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def main() -> None:
    step = 0

    def on_sigterm(signum: int, frame: object) -> None:
        save(step)
        say("saved on SIGTERM")
        raise SystemExit(0)

    if arguments.save_on_sigterm:
        signal.signal(signal.SIGTERM, on_sigterm)
    began_s = time.monotonic()
    first = step = start()
    say(f"starts at step {step}")
    if arguments.save_first:
        save(step)
    for step in range(first + 1, arguments.steps + 1):
        time.sleep(arguments.step_s)
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % arguments.save_every == 0 and RANK == "0":
            save(step)
        if ATTEMPT == 0 and step == arguments.crash_at and RANK == "0":
            raise RuntimeError("the first attempt ends here")
    say(f"done after {time.monotonic() - began_s:.1f} s")


main()
