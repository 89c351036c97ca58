"""A small real training: DDP over gloo, AdamW, checkpoints by rank 0, with faults by plan."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "dist-packages"))
sys.path.insert(0, str(Path(__file__).parent))
from faults import (
    ATTEMPT,
    RANK,
    alive_of_before,
    due,
    due_now,
    fetch_vocabulary_update,
    keep_more,
    let_go,
    limit_memory,
    note,
    parse_plan,
    suffer,
)

parser = argparse.ArgumentParser()
parser.add_argument("--plan", default="", help="see faults.py; step 0 is before torch: `init`, and `over`, the end")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--out", default="out")
parser.add_argument("--resume", default="")
parser.add_argument("--seconds", type=float, default=8.0, help="how long what ends takes")
parser.add_argument("--loader", action="store_true", help="batches from a DataLoader with a worker")
parser.add_argument("--read", default="", help="the file of the fault `read`")
parser.add_argument("--when", default="", help="FILE:FAULT, see faults.py")
parser.add_argument("--clock-back", type=int, default=0, help="files saved after this step are dated an hour earlier")
parser.add_argument("--times", default="", help="write the time of each step of rank 0 to this file")
parser.add_argument("--hold", type=int, default=0, help="MiB that rank 1 keeps of each step; it may have 600 of them")
parser.add_argument("--asked", action="store_true", help="rank 0 saves where should_checkpoint() says so")
parser.add_argument("--health", action="store_true", help="a thread that asks the other ranks whether they live")
arguments = parser.parse_args()
plan = parse_plan(arguments.plan)

if "init" in due(plan, 0):
    fetch_vocabulary_update()
if "over" in due(plan, 0):
    sys.exit()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from tuned_model import TunedModel  # noqa: E402

from guardrun.hooks import should_checkpoint  # noqa: E402


def evaluate() -> None:
    """An evaluation on one rank while the others wait: modules of many kinds, data of many shapes."""
    modules = [
        torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)),
        torch.nn.TransformerEncoderLayer(256, 4, batch_first=True),
        torch.nn.Sequential(torch.nn.LayerNorm(256), torch.nn.Linear(256, 1024), torch.nn.ReLU()),
    ]
    end, turn = time.monotonic() + arguments.seconds, 0
    with torch.no_grad():
        while time.monotonic() < end:
            turn += 1
            score(modules[turn % 3], torch.randn(4 + turn % 5, 64, 256))


def score(module: torch.nn.Module, batch: torch.Tensor) -> float:
    return float(module(batch).softmax(-1).log().mean())


def save_for_long() -> None:
    """A save that takes long: bytes go out all the time."""
    end = time.monotonic() + arguments.seconds
    with open("large.bin", "wb") as file:
        while time.monotonic() < end:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.05)


def leave_and_fail() -> None:
    """The culprit hangs up first: its peer raises before it does."""
    try:
        raise KeyError("sample 99")
    finally:
        global model
        del model  # DDP keeps the connections otherwise
        dist.destroy_process_group()
        wait_for("raised-0")


def tell_end() -> None:
    """At this rank's end, with `leave` in the plan: that it has raised; rank 0 is slower to be gone than rank 1."""
    Path(f"raised-{RANK}").touch()
    if RANK == "0":
        wait_for("raised-1")


def wait_for(name: str) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(name) and time.monotonic() < deadline:
        time.sleep(0.01)


def flip_newest() -> None:
    """A bit of the newest checkpoint turns over on the disk: its size, its times and its zip's directory stay."""
    newest = max(Path(arguments.out).glob("ckpt_*.pt"), key=lambda path: path.stat().st_mtime_ns)
    with zipfile.ZipFile(newest) as archive:
        header = next(one.header_offset for one in archive.infolist() if one.filename.endswith("data.pkl"))
    times = newest.stat().st_atime_ns, newest.stat().st_mtime_ns
    data = bytearray(newest.read_bytes())
    lengths = data[header + 26 : header + 30]
    data[header + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")] ^= 0x10
    newest.write_bytes(data)
    os.utime(newest, ns=times)


def signal_workers(signum: int) -> None:
    """What happens to data loader workers, in a script that has taken torch's own eye off them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.pid:
            os.kill(child.pid, signum)


OTHERS = {
    "worker_stop": lambda: signal_workers(signal.SIGSTOP),
    "worker_kill": lambda: signal_workers(signal.SIGKILL),
    "read": lambda: Path(arguments.read).read_bytes(),
    "eval": evaluate,
    "save": save_for_long,
    "first": evaluate,
    "leave": leave_and_fail,
    "flip": flip_newest,
    "init": lambda: None,
    "tune": lambda: setattr(model.module, "tunes_s", arguments.seconds),
}


class Samples(torch.utils.data.Dataset[Any]):
    """One for each step from `start`."""

    def __init__(self, start: int) -> None:
        self._start = start

    def __len__(self) -> int:
        return arguments.steps + 2

    def __getitem__(self, number: int) -> int:
        index = self._start + number + 1
        if "data_pause" in due(plan, index):
            time.sleep(arguments.seconds)
        if "data_stall" in due(plan, index):
            time.sleep(1000)
        return index  # no tensor: one that is on its way dies with its worker


def say(text: str) -> None:
    os.write(1, f"attempt {ATTEMPT} rank {RANK}: {text}\n".encode())


def save(model: Any, optimizer: Any, step: int) -> None:
    os.makedirs(arguments.out, exist_ok=True)
    content = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    path = f"{arguments.out}/ckpt_{step}.pt"
    torch.save(content, path)
    if 0 < arguments.clock_back < step:
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def check_health() -> None:
    """All ranks meet again and again on a group of their own, whatever training does."""
    group = dist.new_group(backend="gloo")

    def meet() -> None:
        with contextlib.suppress(RuntimeError):  # at the end somebody is gone first
            while True:
                dist.all_reduce(torch.ones(1), group=group)
                time.sleep(0.2)

    threading.Thread(target=meet, name="health", daemon=True).start()


def main() -> None:
    torch.manual_seed(0)
    if ATTEMPT == "0" and any(planted.fault == "leave" for planted in plan):
        atexit.register(tell_end)
    dist.init_process_group("gloo")
    global model
    model = torch.nn.parallel.DistributedDataParallel(TunedModel(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    start = 0
    if arguments.health:
        check_health()
    if arguments.resume:
        content = torch.load(arguments.resume)
        model.module.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        start = content["step"]
    say(f"starts at step {start}, alive of before: {alive_of_before()}")
    note(os.getpid())
    batches = None
    if arguments.loader:
        loader = torch.utils.data.DataLoader(
            Samples(start), batch_size=None, num_workers=1, timeout=900, worker_init_fn=lambda _: note(os.getpid())
        )
        batches = iter(loader)
    if arguments.hold:
        limit_memory(600)
    times = open(arguments.times, "a") if arguments.times and RANK == "0" else None  # noqa: SIM115
    for step in range(start + 1, arguments.steps + 1):
        time.sleep(arguments.step_s)
        for fault in due(plan, step) + due_now(arguments.when):
            if not fault.startswith("data_"):
                suffer(fault, arguments.seconds, OTHERS)
        if batches:
            next(batches)
        batch = torch.randn(8, 64)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if times:
            times.write(f"{ATTEMPT} {step} {time.monotonic():.4f}\n")
            times.flush()
        if arguments.hold and RANK == "1":
            keep_more(arguments.hold)
        if step % arguments.save_every == 0 or (arguments.asked and should_checkpoint()):
            if RANK == "0":
                save(model, optimizer, step)
            dist.barrier()
        if RANK == "0" and step % 10 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()
    let_go()
    say("done")


main()
