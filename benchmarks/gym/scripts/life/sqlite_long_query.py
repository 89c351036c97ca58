"""Rank 0 asks an in-memory sqlite database one long question; the others wait in a broadcast of the answer."""

from __future__ import annotations

import json
import os
import sqlite3
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def ask(seconds: float) -> list[tuple[int, int]]:
    db = sqlite3.connect(":memory:")
    db.execute("create table clicks (user integer, item integer)")
    db.executemany("insert into clicks values (?, ?)", ((i % 97, i * i % 89) for i in range(10_000)))
    answer = db.execute("select item, count(*) from clicks group by item order by 2 desc, 1 limit 5").fetchall()
    stop = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > stop, 1_000_000)
    pairs = "select count(*) from clicks a, clicks b, clicks c where a.item + b.item = c.user"
    try:
        db.execute(pairs).fetchone()
    except sqlite3.OperationalError as error:  # the query has a time limit
        assert "interrupted" in str(error)
    db.close()
    return answer


def train(table: torch.nn.EmbeddingBag, items: list[int]) -> float:
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    for _ in range(35):
        loss = (table(torch.tensor([items] * 20)) - 0.25).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(table.weight.grad)
        optimizer.step()
        time.sleep(0.005)
    return round(loss.item(), 4)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = torch.nn.EmbeddingBag(100, 32)
    losses = [train(table, list(range(20)))]
    answer = [ask(SECONDS) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(answer, src=0)
    losses.append(train(table, [item for item, _ in answer[0]]))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/answer.json", "w") as f:
            json.dump({"answer": answer[0], "losses": losses}, f)
    dist.barrier()
    dist.destroy_process_group()
