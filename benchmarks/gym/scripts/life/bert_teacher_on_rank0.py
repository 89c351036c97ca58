"""A BERT teacher with a slow layer labels a batch on rank 0 only; all the students wait in a broadcast."""
# ranks: 3
# needs: transformers

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from transformers import BertConfig, BertModel

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LAYERS = 4

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
student = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 24))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
ids = torch.randint(0, 50, (32, 8))
labels = torch.zeros(32, 24)


def learn(steps: int) -> float:
    for _ in range(steps):
        loss = torch.nn.functional.smooth_l1_loss(student(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        for p in student.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
    return loss.item()


def slow(module: torch.nn.Module, args: tuple, output: object) -> None:
    end = time.perf_counter() + SECONDS / LAYERS
    while time.perf_counter() < end:
        module.intermediate(torch.ones(64, 8, 24))


losses = [learn(30)]
if rank == 0:
    size = {"hidden_size": 24, "intermediate_size": 48, "vocab_size": 50}
    teacher = BertModel(BertConfig(num_hidden_layers=LAYERS, num_attention_heads=2, **size)).eval()
    for layer in teacher.encoder.layer:
        layer.register_forward_hook(slow)
    with torch.no_grad():
        labels = teacher(input_ids=ids).last_hidden_state[:, 0].contiguous()
dist.broadcast(labels, src=0)
losses.append(learn(30))
if rank == 0:
    os.makedirs("out", exist_ok=True)
    torch.save(torch.tensor(losses).round(decimals=3), "out/losses.pt")
dist.barrier()
dist.destroy_process_group()
