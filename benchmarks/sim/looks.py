"""Looks at all ranks, as the edge would send them: what waits, what stands still, what works.

Ranks that do the same share one process record, so that ten thousand looks cost no more than the engine takes to judge
them. Stacks are short; counters move as they do in reality, or stand.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook

SCRIPT = "/home/user/train.py"
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
_LOOP = (Frame("train", SCRIPT, 60), Frame("<module>", SCRIPT, 99))
_FEW = 16
"""Ranks that are looked at one by one where one that gets somewhere says it all."""


def _process(pid: int, frames: tuple[Frame, ...], state: str, cpu_s: float) -> ProcessLook:
    thread = ThreadLook(tid=pid, is_main=True, cpu_s=cpu_s, frames=list(frames))
    return ProcessLook(pid=pid, state=state, cpu_s=cpu_s, switches=int(cpu_s), faults=0, threads=[thread])


_WAITING = _process(1, (Frame("all_reduce", _TORCH, 2800), *_LOOP), "S", 100.0)


def waiting(rank: int, at_s: float, since_s: float, order: int) -> RankLook:
    """It waits for others in a collective."""
    return RankLook(
        global_rank=rank,
        at_s=at_s,
        process=_WAITING,
        heart_s=at_s,
        in_collective="all_reduce",
        collective_since_s=since_s,
        collectives=order,
        group_seq=order,
    )


def blocked(rank: int, at_s: float, order: int, place: int, is_storage: bool = False) -> RankLook:
    """It stands in the user's own code, or in the kernel, and others wait for it. place: which of its functions."""
    name, line, state = ("read_shard", 91, "D") if is_storage else ("fetch_update", 73, "S")
    process = _process(1, (Frame(f"{name}_{place}", SCRIPT, line), *_LOOP), state, 100.0)
    return RankLook(
        global_rank=rank, at_s=at_s, process=process, heart_s=at_s, collectives=order - 1, group_seq=order - 1
    )


def spinning(rank: int, at_s: float, order: int, place: int) -> RankLook:
    """It runs in the same two lines."""
    line = 80 + int(at_s) % 2
    process = _process(1, (Frame(f"wait_for_flag_{place}", SCRIPT, line), *_LOOP), "R", round(at_s, 2))
    return RankLook(
        global_rank=rank, at_s=at_s, process=process, heart_s=at_s, collectives=order - 1, group_seq=order - 1
    )


def working(world_size: int, at_s: float) -> tuple[list[RankLook], dict[int, str]]:
    """They load, or train: those looked at, and those not."""
    looks = []
    for rank in range(min(world_size, _FEW)):
        frames = (Frame("load", SCRIPT, 40 + int(at_s) % 7), *_LOOP)
        process = _process(1, frames, "R", round(at_s, 2))
        looks.append(
            RankLook(
                global_rank=rank,
                at_s=at_s,
                process=ProcessLook(
                    pid=1, state="R", cpu_s=round(at_s, 2), io_bytes=int(at_s * 5e6), threads=process.threads
                ),
                heart_s=at_s,
            )
        )
    return looks, dict.fromkeys(range(_FEW, world_size), "not needed: others get somewhere")
