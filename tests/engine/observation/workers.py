"""Looks at a rank that waits for its DataLoader workers."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook

LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
LOOP = Frame("_worker_loop", "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 350)
FETCH = Frame("fetch", "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 54)
PARENT = [Frame("__init__", LOADER, 1200), Frame("<module>", "/home/user/train.py", 9)]
READS = [Frame("read_shard", "/home/user/data.py", 31), Frame("__getitem__", "/home/user/data.py", 12), FETCH]
WAITS = [Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 103)]


def process(pid: int, frames: list[Frame], **more: Any) -> ProcessLook:
    """A process whose main thread is in these frames; in none: it could not be read."""
    threads = [ThreadLook(tid=pid, is_main=True, frames=frames)] if frames else []
    return ProcessLook(**{"pid": pid, "state": "S", "threads": threads, "command": "python train.py"} | more)


def worker(pid: int, inner: list[Frame], **more: Any) -> ProcessLook:
    """A DataLoader worker that is in these frames."""
    return process(pid, [*inner, LOOP, *PARENT], **more)


def look(at_s: float, *children: ProcessLook, **more: Any) -> RankLook:
    """Rank 1, which waits for a batch, and its children."""
    waiting = [Frame("_get_data", LOADER, 1440), Frame("<module>", "/home/user/train.py", 12)]
    rank = process(4242, waiting)
    fields = {"global_rank": 1, "at_s": at_s, "process": rank, "in_data_since_s": 1.0, "heart_s": at_s} | more
    return RankLook(children=list(children), **fields)
