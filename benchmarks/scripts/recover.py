"""A light training over gloo, the same each time, that saves every so many steps and resumes.

It is ended by itself: a file `die` in its folder says which rank gets SIGKILL, in which step, how many seconds into it.
--way: what a launcher's documentation has a script do beside that.
"""

import time

first_ns = time.monotonic_ns()

import argparse  # noqa: E402
import importlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.scripts import moments  # noqa: E402

GROUP = os.environ.get("REPLICA_GROUP_ID")
if GROUP is not None:
    moments.RANK = int(GROUP)  # torchft: each rank is rank 0 of a job of its own
moments.note("first", first_ns)

parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=("plain", "save_with", "snapshot", "heartbeats", "torchft"), default="plain")
parser.add_argument("--every", type=int, default=20, metavar="STEPS")
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--imports", nargs="*", default=[], metavar="MODULE")
arguments = parser.parse_args()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

for module in arguments.imports:
    importlib.import_module(module)
moments.note("imported")

WIDTH, LAYERS = 512, 4
SAVES = Path("out")


def die_if_told(step: int) -> None:
    """Only once: what is restarted lives."""
    told = Path("die")
    if moments.ATTEMPT > 0 or not told.exists():
        return
    rank, at_step, seconds = told.read_text().split()
    if (moments.RANK, step) == (int(rank), int(at_step)):
        time.sleep(float(seconds))
        moments.note("killed")
        os.kill(os.getpid(), signal.SIGKILL)


class Replica:
    """DDP over two ranks of one job."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer: Any = torch.optim.SGD(self.layers.parameters(), 1e-3, momentum=0.9)
        self.done = 0
        self.join()

    def join(self) -> None:
        dist.init_process_group("gloo")
        self.model: Any = torch.nn.parallel.DistributedDataParallel(self.layers)

    def train(self) -> None:
        """One step."""
        step = self.done + 1
        self.optimizer.zero_grad()
        die_if_told(step)
        time.sleep(arguments.step_s)  # in place of a forward pass that takes long
        chance = torch.Generator().manual_seed(2 * step + moments.RANK)
        self.backward(torch.randn(8, WIDTH, generator=chance))
        self.optimizer.step()
        self.count()

    def backward(self, batch: torch.Tensor) -> None:
        """Leave the mean of all ranks' gradients in the parameters."""
        self.model(batch).square().mean().backward()

    def count(self) -> None:
        self.done += 1

    @property
    def is_saver(self) -> bool:
        return moments.RANK == 0

    def state(self) -> dict[str, Any]:
        return {"model": self.layers.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.done}

    def load(self, state: dict[str, Any]) -> None:
        self.layers.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["step"]

    def save(self, name: str) -> str:
        """Save under that name, whole or not at all."""
        path = SAVES / f"{name}_{self.done}.pt"
        torch.save(self.state(), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)
        return str(path)


class ManagedReplica(Replica):
    """This job is one of torchft's two replica groups.

    Its settings are those of torchft's README and train_ddp.py, but gradients are reduced by Manager.allreduce: the
    DistributedDataParallel of 0.2.0 fails over gloo, by an assertion, in the replica that has lost its peer.
    """

    def join(self) -> None:
        torchft = importlib.import_module("torchft")
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
            min_replica_size=1,
            load_state_dict=self.load_user,
            state_dict=self.user_state,
            replica_id=f"recover_{GROUP}",
            timeout=timedelta(seconds=30),
        )
        self.optimizer = torchft.Optimizer(self.manager, self.optimizer)

    def backward(self, batch: torch.Tensor) -> None:
        self.layers(batch).square().mean().backward()
        gradients = [parameter.grad for parameter in self.layers.parameters() if parameter.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        self.manager.allreduce(together).wait()  # where that fails, the step is not committed
        for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def count(self) -> None:
        self.done = self.manager.current_step()  # the same as before where the step was not committed

    @property
    def is_saver(self) -> bool:
        return bool(self.manager.participating_rank() == 0)

    def user_state(self) -> dict[str, Any]:
        return {"model": self.layers.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_user(self, state: dict[str, Any]) -> None:
        self.layers.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def state(self) -> dict[str, Any]:
        return {**self.user_state(), "manager": self.manager.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.load_user(state)
        self.manager.load_state_dict(state["manager"])
        self.count()


def find_save() -> str | None:
    """What guardrun says, else the newest."""
    found = sorted(SAVES.glob("step_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return os.environ.get("GUARDRUN_RESUME_FROM") or (str(found[-1]) if found else None)


def take_snapshot(replica: Replica) -> None:
    """The line that a script needs; how long it took is noted where a copy was due."""
    from guardrun import hooks

    began_ns, is_due = time.monotonic_ns(), False

    def state() -> dict[str, Any]:
        nonlocal is_due
        is_due = True
        return replica.state()

    hooks.snapshot(state, path=f"{SAVES}/snapshot_{replica.done}.pt")
    if is_due:
        moments.note("copy began", began_ns)
        moments.note("copy ended")


def main() -> None:
    SAVES.mkdir(exist_ok=True)
    replica = ManagedReplica() if arguments.way == "torchft" else Replica()
    path = find_save()
    if path is not None:
        replica.load(torch.load(path))
    if arguments.way == "save_with":
        from guardrun import hooks

        hooks.save_with(lambda: replica.save("jit"))
    if arguments.way == "heartbeats":
        client = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
        client.init_workload_monitoring()
    while True:  # until the benchmark ends it
        before = replica.done
        replica.train()
        if replica.done == before:
            continue
        moments.note(f"step {replica.done}")
        if arguments.way == "heartbeats":
            client.send_heartbeat()
        if arguments.way == "snapshot":
            take_snapshot(replica)
        if replica.done % arguments.every == 0 and replica.is_saver:
            began_ns = time.monotonic_ns()
            replica.save("step")
            moments.note("save began", began_ns)
            moments.note("save ended")


main()
