"""A small real training on the emulated device; the environment says in which layout, and what it is to suffer."""

from benchmarks.gym.scripts.diary import RANK, note

note("first")

import os  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks.gym.scripts import planted  # noqa: E402
from benchmarks.gym.scripts.emu.layouts import Context, Ddp, Fsdp, Graph, Pipeline, Probe, Uneven  # noqa: E402
from benchmarks.gym.scripts.emu.mixed import Mixed  # noqa: E402
from benchmarks.gym.scripts.emu.suffering import suffer  # noqa: E402
from tests.emu import device as emu  # noqa: E402

LAYOUTS: dict[str, type[Ddp]] = {
    "emu ddp": Ddp,
    "emu fsdp": Fsdp,
    "emu pipeline": Pipeline,
    "emu context": Context,
    "emu uneven": Uneven,
    "emu mixed": Mixed,
    "emu graph": Graph,
}
STEPS = int(os.environ["GYM_STEPS"])
LAYOUT = os.environ["GYM_WORKLOAD"]
STEP_S, KERNEL_S = 0.07, 0.02
EVERY = 10
"""Steps from one evaluation and save to the next."""
LOOK_EVERY = 5
"""Steps from one look at the loss to the next: between them hosts run ahead."""
REPLAY_S = 0.25
AHEAD_STEPS = 500
"""For how many steps they do, where that is what is played."""
LATE_GROUPS = ("emu_lazy_comm", "emu_lazy_groups")
AT_THE_START = ("emu_first_call", "emu_fsdp_first")


def share_loss(loss: torch.Tensor, step: int) -> torch.Tensor:
    """The mean over all ranks, as most scripts log it."""
    mean = loss.reshape(1).clone()
    if planted.is_due("emu_shape", step):
        dist.all_reduce(torch.zeros(9, device="emu"))  # here: emu_shape
    elif planted.is_due("emu_broadcast", step):
        dist.broadcast(mean, src=0)  # here: emu_broadcast
    elif not planted.is_due("emu_skip", step):
        dist.all_reduce(mean)  # here: emu_skip
    return mean / dist.get_world_size()


def use_late_group(group: Any, step: int) -> None:
    """A group that was made at the start, and is first used now: its communicator is made."""
    if any(p.step == step for p in planted.PLAN if p.name in LATE_GROUPS):
        suffer("group", step)
        dist.all_reduce(torch.ones(8, device="emu"), group=group)


def evaluate(trained: Any, step: int) -> None:
    """Rank 0 evaluates, the others wait."""
    if RANK == 0:
        suffer("eval", step)
    dist.barrier(group=trained.hosts)


def save(trained: Any, step: int) -> None:
    if isinstance(trained, Mixed):
        trained.save_later(step)
        return
    content = {"model": trained.state(), "step": step}
    if RANK == 0:
        suffer("save", step)
        os.makedirs("out", exist_ok=True)
        torch.save(content, f"out/ckpt_{step}.pt")
    dist.barrier()


def load(trained: Any) -> int:
    """Resume where there is something to resume from; the step from which to go on."""
    found = sorted(Path("out").glob("ckpt_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    path = os.environ.get("GUARDRUN_RESUME_FROM") or (str(found[-1]) if found else "")
    if isinstance(trained, Mixed):
        return trained.load_newest(path)
    if not path:
        return 0
    content = torch.load(path)
    trained.load(content["model"])
    return int(content["step"])


def replay_on(trained: Any, seconds: float) -> None:
    """Graphs for so long, as in a long rollout: nothing else of the script's is called, as often in every rank."""
    for _ in range(round(seconds / REPLAY_S)):
        emu.kernel(REPLAY_S)
        trained.train(0).item()


def main() -> None:
    torch.manual_seed(RANK)
    torch.set_num_threads(1)
    emu.use()
    dist.init_process_group("cpu:gloo,emu:nccl" if LAYOUT == "emu mixed" else "nccl")
    late_group = dist.new_group() if any(p.name in LATE_GROUPS for p in planted.PLAN) else None
    for name in AT_THE_START:
        planted.take(name, 0)
    trained = LAYOUTS[LAYOUT]()
    start = load(trained)
    note("resumed", start)
    if planted.find("emu_new_group") and not planted.is_due("emu_new_group", 0):
        pair = dist.new_group([0, 1])
        if RANK == 0:
            dist.all_reduce(torch.ones(8, device="emu"), group=pair)  # here: emu_new_group
    ahead_until = 0
    for step in range(start + 1, STEPS + 1):
        Probe.step = step
        if planted.is_due("emu_run_ahead", step):
            ahead_until = step + AHEAD_STEPS
            emu.kernel(planted.PLAN[0].seconds)
        if step >= ahead_until:
            time.sleep(STEP_S)
            emu.kernel(KERNEL_S)
        suffer("data", step)
        if due := planted.take("emu_graph_replays", step):
            replay_on(trained, due.seconds)
        use_late_group(late_group, step)
        loss = trained.train(step)
        if LAYOUT not in ("emu pipeline", "emu graph"):
            loss = share_loss(loss, step)
        note("step", step)
        if step >= ahead_until and step % LOOK_EVERY == 0:
            loss.item()
        if step >= ahead_until and step % EVERY == 0:
            evaluate(trained, step)
            save(trained, step)
    note("done", STEPS)
    if isinstance(trained, Mixed):
        trained.finish()
    dist.barrier()
    dist.destroy_process_group()


main()
