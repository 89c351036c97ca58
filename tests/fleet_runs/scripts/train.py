"""A rank of several nodes' training: gloo, a step every 50 ms, checkpoints by rank 0; it does what files tell it to.

`hang-RANK` has that rank block at its next step, `slow-RANK` has each step of it take longer while it is there,
`end` has all end together. Asked for a checkpoint, rank 0 writes one. Where it is (`at-RANK.json`, and
`first-ATTEMPT-RANK.json` at an attempt's first step) is written to the same folder. Times are CLOCK_MONOTONIC's, which
the lab's hosts share.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

from guardrun.hooks import should_checkpoint, snapshot
from guardrun.hooks import step as count_step

parser = argparse.ArgumentParser()
parser.add_argument("--marks", required=True, help="a folder; may hold variables of the environment")
parser.add_argument("--out", default="out", help="likewise")
parser.add_argument("--resume", default="")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--keep", default="", help="replicas or shards, in memory")
parser.add_argument("--elements", type=int, default=50_000, help="of what is kept")
parser.add_argument("--alone", action="store_true", help="ranks that have nothing to do with each other, without torch")
arguments = parser.parse_args()
if not arguments.alone:
    import torch
    import torch.distributed as dist
if arguments.keep:
    sys.path.insert(0, str(Path(__file__).parents[2] / "runs" / "scripts"))
    from held_memory import wait_until_held
marks, out = (Path(os.path.expandvars(path)) for path in (arguments.marks, arguments.out))
ATTEMPT, RANK = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]


def fetch_vocabulary_update() -> None:
    """A call that never returns."""
    reader, _ = os.pipe()
    os.read(reader, 1)


def write(name: str, content: dict[str, object]) -> None:
    temporary = marks / f"{name}.{os.getpid()}"
    temporary.write_text(json.dumps(content))
    temporary.replace(marks / f"{name}.json")


def stood_at() -> int:
    """The step that this rank had done when it was ended; 0 for the first attempt."""
    try:
        return int(json.loads((marks / f"at-{RANK}.json").read_text())["step"])
    except FileNotFoundError:
        return 0


def is_planted(fault: str) -> bool:
    """Once."""
    try:
        (marks / f"{fault}-{RANK}").unlink()
    except FileNotFoundError:
        return False
    return True


def save(step: int) -> None:
    out.mkdir(exist_ok=True)
    torch.save({"step": step, "weight": torch.zeros(64)}, out / f"ckpt_{step}.tmp")
    (out / f"ckpt_{step}.tmp").replace(out / f"ckpt_{step}.pt")


def keep(step: int) -> None:
    """In memory; whether it is torn is seen when it is loaded."""
    name = "snap_{step}_rank{rank}.pt" if arguments.keep == "shards" else f"snap_{step}.pt"
    mine = float(step + 1000 * int(RANK) if arguments.keep == "shards" else step)
    snapshot(lambda: {"step": step, "large": torch.full((arguments.elements,), mine)}, path=str(out / name))


def load(path: str) -> int:
    content = torch.load(path.replace("rank0", f"rank{RANK}"))
    if "large" in content:
        mine = content["step"] + (1000 * int(RANK) if "rank0" in path else 0)
        assert bool((content["large"] == mine).all()), "torn, or another's"
    return int(content["step"])


def do_step(is_end: bool) -> bool:
    """All go on together, until one says that it is the end."""
    if arguments.alone:
        return is_end
    shared = torch.tensor([float(is_end)])
    dist.all_reduce(shared)
    return bool(shared.item() > 0)


me: dict[str, object] = {
    "rank": int(RANK),
    "world": int(os.environ["WORLD_SIZE"]),
    "group_rank": int(os.environ["GROUP_RANK"]),
    "attempt": int(ATTEMPT),
    "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
    "pid": os.getpid(),
    "run": os.environ.get("GUARDRUN_RUN_ID", ""),
}
if not arguments.alone:
    dist.init_process_group("gloo")
start = load(arguments.resume) if arguments.resume else 0
stood = stood_at()
for step in range(start + 1, arguments.steps + 1):
    if is_planted("hang"):
        fetch_vocabulary_update()
    if (marks / f"slow-{RANK}").exists():
        time.sleep(0.08)
    is_end = do_step((marks / "end").exists())
    count_step(step)
    at = me | {"step": step, "from": start, "stood": stood, "at_s": time.monotonic()}
    write(f"at-{RANK}", at)
    if step == start + 1:  # whoever sees this one looks for the other
        write(f"first-{ATTEMPT}-{RANK}", at)
    if is_end:
        break
    if arguments.keep:
        keep(step)
        if step == start + 1:
            wait_until_held()
    is_asked = should_checkpoint()
    if RANK == "0" and not arguments.alone and (is_asked or step % arguments.save_every == 0):
        save(step)
    time.sleep(0.05)
if not arguments.alone:
    dist.destroy_process_group()
