"""Rank 1 learns BPE merges in pure Python, and everybody else waits until the vocabulary is there."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def corpus(seed: int, words: int = 600) -> Counter[tuple[str, ...]]:
    rng = random.Random(seed)
    syllables = ["ka", "to", "mi", "ren", "sol", "ve", "gu", "pan"]
    return Counter(tuple("".join(rng.choices(syllables, k=rng.randint(1, 4)))) for _ in range(words))


def merge(words: Counter[tuple[str, ...]], pair: tuple[str, str]) -> Counter[tuple[str, ...]]:
    merged: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        symbols: list[str] = []
        i = 0
        while i < len(word):
            if word[i : i + 2] == pair:
                symbols.append(word[i] + word[i + 1])
                i += 2
            else:
                symbols.append(word[i])
                i += 1
        merged[tuple(symbols)] += count
    return merged


def learn(seed: int, merges: int = 40) -> list[str]:
    words = corpus(seed)
    learned = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda p: (pairs[p], p))
        words = merge(words, best)
        learned.append("".join(best))
    return learned


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(5)
    emb = torch.nn.EmbeddingBag(500, 64)
    opt = torch.optim.SGD(emb.parameters(), lr=0.5)

    def some_steps(high: int) -> float:
        for _ in range(30):
            loss = (emb(torch.randint(0, high, (32, 20))) - 1).abs().mean()
            opt.zero_grad()
            loss.backward()
            dist.all_reduce(emb.weight.grad)
            opt.step()
            time.sleep(0.005)
        return round(loss.item(), 4)

    before = some_steps(500)
    vocabulary: list[str] = []
    if rank == 1:
        started = time.perf_counter()
        vocabulary = learn(0)
        shard = 1
        while time.perf_counter() - started < SECONDS:
            learn(shard)
            shard += 1
    shared = [vocabulary]
    dist.broadcast_object_list(shared, src=1)
    after = some_steps(10 * len(shared[0]))
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        json.dump([before, after, shared[0]], open("out/vocabulary.json", "w"))  # noqa: SIM115
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
