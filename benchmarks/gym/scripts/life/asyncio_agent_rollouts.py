"""Rank 0 plays eight agent conversations at once in an asyncio loop against a slow tool server; the others wait."""

from __future__ import annotations

import asyncio
import json
import os

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
TURNS = 4


async def tool(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        await asyncio.sleep(SECONDS / TURNS)
        writer.write(str(int(line) * 3 % 101).encode() + b"\n")
        await writer.drain()
    writer.close()


async def conversation(port: int, seed: int) -> list[int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = [seed]
    for _ in range(TURNS):
        writer.write(b"%d\n" % said[-1])
        said.append(int(await reader.readline()))
    writer.close()
    await writer.wait_closed()
    return said


async def rollouts() -> list[list[int]]:
    server = await asyncio.start_server(tool, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = await asyncio.gather(*(conversation(port, seed) for seed in range(2, 10)))
    server.close()
    await server.wait_closed()
    return result


def reinforce(policy: torch.nn.Module, tokens: torch.Tensor, steps: int) -> float:
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _ in range(steps):
        logits = policy(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return round(loss.item(), 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    policy = torch.nn.Sequential(torch.nn.Embedding(101, 256), torch.nn.Linear(256, 512), torch.nn.Linear(512, 101))
    report = [reinforce(policy, torch.arange(40).view(8, 5), 30)]
    tokens = torch.zeros(8, TURNS + 1, dtype=torch.long)
    if dist.get_rank() == 0:
        tokens = torch.tensor(asyncio.run(rollouts()))
    dist.broadcast(tokens, 0)
    report.append(reinforce(policy, tokens, 30))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/policy.json", "w") as f:
            json.dump({"losses": report, "tokens": tokens.tolist()}, f)
    dist.barrier()
    dist.destroy_process_group()
