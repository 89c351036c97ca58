"""A small real training over gloo in four layouts; the environment says which, and what it is to suffer (planted.py).

Comments that begin with [heartbeats] are what NVIDIA's ft_launcher needs; the gym uncomments them in its copy.
"""

from benchmarks.gym.scripts.diary import RANK, note

note("first")

from benchmarks.gym.scripts import hangs, pauses, planted  # noqa: E402

planted.suffer("start", 0)

import contextlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# [heartbeats] import nvidia_resiliency_ext.fault_tolerance as fault_tolerance

STEPS = int(os.environ["GYM_STEPS"])
LAYOUT = os.environ["GYM_WORKLOAD"]
STEP_S = 0.03
EVERY = 15
"""Steps from one evaluation and save to the next."""
WIDTH = 64


class Stack(torch.nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Two layers, and a place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.step = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.first(batch).relu()
        planted.suffer("layer", self.step)
        result: torch.Tensor = self.second(hidden)
        return result


class Replicas:
    """DDP."""

    def __init__(self) -> None:
        self.stack = Stack()
        self.model = torch.nn.parallel.DistributedDataParallel(self.stack)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.done = 0

    def train(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        self.stack.step = step
        loss: torch.Tensor = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done = step
        return loss.detach()

    def state(self, step: int) -> dict[str, Any]:
        return {"model": self.stack.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, content: dict[str, Any]) -> None:
        self.stack.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])


class Shards:
    """FSDP (fully_shard)."""

    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.stack = Stack()
        for layer in (self.stack.first, self.stack.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.stack, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.stack.parameters(), 1e-3)

    def train(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        self.stack.step = step
        loss: torch.Tensor = self.stack(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self, step: int) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        if planted.is_due("fsdp_state", step):
            get_model_state_dict(self.stack, options=options)  # here: fsdp_state
        return {"model": get_model_state_dict(self.stack, options=options)}

    def load(self, content: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(self.stack, content["model"], options=StateDictOptions(full_state_dict=True))


class Grid:
    """Tensor-parallel pairs (0,1) and (2,3), data-parallel pairs (0,2) and (1,3)."""

    def __init__(self) -> None:
        self.tensor_group = self.data_group = dist.group.WORLD
        for pair in ((0, 1), (2, 3)):
            group = dist.new_group(pair)
            if RANK in pair:
                self.tensor_group = group
        for pair in ((0, 2), (1, 3)):
            group = dist.new_group(pair)
            if RANK in pair:
                self.data_group = group
        self.stack = Stack()
        self.optimizer = torch.optim.AdamW(self.stack.parameters(), 1e-3)

    def train(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        if planted.is_due("groups_order", step):
            dist.all_reduce(torch.zeros(1), group=self.data_group)  # here: groups_order
        partial = self.stack(batch)
        whole = partial.detach().clone()
        if not planted.is_due("groups_skip", step):
            dist.all_reduce(whole, group=self.tensor_group)  # here: groups_skip
        loss: torch.Tensor = (partial + (whole - partial).detach()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.stack.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.data_group)
        self.optimizer.step()
        return loss.detach()

    def state(self, step: int) -> dict[str, Any]:
        return {"model": self.stack.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, content: dict[str, Any]) -> None:
        self.stack.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])


class Samples(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # mypy skips torch
    """One for each step after `start`."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __len__(self) -> int:
        return STEPS - self.start

    def __getitem__(self, number: int) -> torch.Tensor:
        step = self.start + number + 1
        planted.suffer("item", step)
        return torch.randn(8, WIDTH)


def batches(start: int) -> Iterator[torch.Tensor]:
    """What to train on from here."""
    if LAYOUT != "loader":
        while True:
            yield torch.randn(8, WIDTH)
    locks = planted.find("worker_lock")
    # Held while the workers are forked: what a logging thread may well do.
    with hangs.forked_lock if locks and locks.is_meant else contextlib.nullcontext():
        loader = iter(torch.utils.data.DataLoader(Samples(start), batch_size=None, num_workers=2))
    yield from loader


def share_loss(loss: torch.Tensor, step: int) -> float:
    """The mean over all ranks, as most scripts log it."""
    mean = loss.reshape(1).clone()
    shapes = planted.find("other_shape")
    if planted.is_due("other_shape", step):
        dist.all_gather([torch.zeros(3) for _ in range(dist.get_world_size())], torch.zeros(3))  # here: other_shape
    elif shapes and step == shapes.step:
        dist.all_gather([torch.zeros(9) for _ in range(dist.get_world_size())], torch.zeros(9))
    if planted.is_due("broadcast", step):
        dist.broadcast(mean, src=0)  # here: broadcast
    elif not planted.is_due("skipped_all_reduce", step):
        dist.all_reduce(mean)  # here: skipped_all_reduce
    shared: float = mean.item() / dist.get_world_size()
    return shared


def evaluate(trained: Any, step: int) -> None:
    """Rank 0 evaluates, the others wait."""
    if RANK == 0:
        planted.suffer("eval", step)
        due = planted.take("long_eval", step) or planted.take("fsdp_eval", step)
        seconds = due.seconds if due else 0.0
        judge = [torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.TransformerEncoderLayer(256, 4)]
        end_s, turn = time.monotonic() + seconds, 0
        with torch.no_grad():
            while turn == 0 or time.monotonic() < end_s:
                turn += 1
                judge[turn % 3](torch.randn(2 + turn % 5, 64, 256)).softmax(-1).mean().item()
                time.sleep(0.02)
                beat()
    dist.barrier()


def save(trained: Any, step: int) -> None:
    content = {**trained.state(step), "step": step}
    if RANK == 0:
        planted.suffer("save", step)
        os.makedirs("out", exist_ok=True)
        torch.save(content, f"out/ckpt_{step}.pt")
        planted.suffer("saved", step)
    dist.barrier()


def save_in_time(trained: Replicas) -> str:
    """On one rank, before all are ended, where `--save-with` gives guardrun this function."""
    os.makedirs("out", exist_ok=True)
    path = f"out/jit_{trained.done}.pt"
    torch.save({**trained.state(trained.done), "step": trained.done}, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
    return path


def newest() -> str:
    """What the script would take by itself."""
    found = sorted(Path("out").glob("ckpt_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    return str(found[-1]) if found else ""


def load(trained: Any) -> int:
    """Resume where there is something to resume from; the step from which to go on."""
    path = os.environ.get("GUARDRUN_RESUME_FROM") or newest()
    if due := planted.take("long_load", 0):
        with open("/dev/zero", "rb") as source, open(f"staged-{RANK}.bin", "wb") as target:
            end_s = time.monotonic() + due.seconds
            while time.monotonic() < end_s:
                target.write(source.read(1 << 18))
                target.seek(0)
                time.sleep(0.05)
    if not path:
        return 0
    content = torch.load(path)
    trained.load(content)
    return int(content["step"])


def beat() -> None:
    """Say that training goes on, to those who want to be told."""
    # [heartbeats] client.send_heartbeat()


def main() -> None:
    torch.manual_seed(RANK)
    torch.set_num_threads(1)
    if planted.find("sigterm_deaf") and RANK == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    trained: Any = {"fsdp": Shards, "groups": Grid}.get(LAYOUT, Replicas)()
    start = load(trained)
    saves_in_time = os.environ.get("GYM_SAVE_WITH") and isinstance(trained, Replicas)
    if saves_in_time:
        from guardrun import hooks

        trained.done = start
        hooks.save_with(lambda: save_in_time(trained), between_steps=True)
    note("resumed", start)
    if planted.find("new_group") and not planted.is_due("new_group", 0):
        dist.new_group([0, 1])  # here: new_group
    source = batches(start)
    for step in range(start + 1, STEPS + 1):
        time.sleep(STEP_S)
        planted.suffer("data", step)
        if step == start + 1 and (due := planted.take("first_step", 0)):
            pauses.build_index(due.seconds)
        if planted.is_due("fsdp_uneven", step):
            dist.barrier()  # here: fsdp_uneven
        loss = trained.train(next(source), step)
        if saves_in_time:
            hooks.step()
        share_loss(loss, step)
        note("step", step)
        beat()
        if step % EVERY == 0:
            evaluate(trained, step)
            save(trained, step)
    note("done", STEPS)
    dist.barrier()
    # [heartbeats] client.shutdown_workload_monitoring()
    dist.destroy_process_group()
    let_go()


def let_go() -> None:
    """Wait until gloo's threads, which DDP keeps beyond destroy_process_group, have let go of their last work.

    DDP's end joins them with the GIL in hand, and whoever is still at it may want that: torch waits for ever.
    """
    while any(map(at_work, Path("/proc/self/task").iterdir())):
        time.sleep(0.001)


def at_work(task: Path) -> bool:
    """Whether this thread is one of gloo's that doesn't wait. One that ends while it is looked at has let go."""
    try:
        name, _, state = (task / "stat").read_text().rpartition(")")
    except OSError:
        return False
    return "gloo" in name and state.split()[0] != "S"


# [heartbeats] client = fault_tolerance.RankMonitorClient()
# [heartbeats] client.init_workload_monitoring()
main()
