"""Train a small character transformer on the source code of Python's standard library, with DDP.

    torchrun --nproc_per_node=2 train.py [--resume out/ckpt_120.pt]

NCCL on GPUs, gloo without. One batch depends only on (seed, step, rank), so a resumed run goes on
exactly as one that never stopped.
"""

import argparse
import json
import os
import sysconfig
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ALPHABET = "\n\t" + "".join(map(chr, range(32, 127)))
UNKNOWN = ALPHABET.index("?")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=24, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=96, help="characters per sequence")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--update-at", type=int, default=60, help="step at which rank 1 takes over new characters")
    return parser.parse_args()


# Data ---------------------------------------------------------------------------------------------------------------


def read_corpus(size_limit=2_000_000):
    """The standard library's modules, one after the other, as a tensor of indices into ALPHABET."""
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= size_limit:
            break
    index = {character: i for i, character in enumerate(ALPHABET)}
    return torch.tensor([index.get(character, UNKNOWN) for character in text[:size_limit]], dtype=torch.uint8)


def take_batch(corpus, args, step, rank, world_size):
    """Random slices of the corpus, and the same shifted by one character: what is to be predicted."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step * world_size + rank)
    starts = torch.randint(len(corpus) - args.context - 1, (args.batch_size,), generator=generator)
    rows = torch.stack([corpus[start : start + args.context + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def fetch_vocabulary_update(answered):
    """Take over the characters that a thread has fetched meanwhile.

    This is the example's fault to be found: the two take the same two locks in different order, and the first time each
    holds the one that the other wants. `answered` remembers that they met, so the next attempt gets past it.
    """
    if answered.exists():
        return
    answered.touch()
    vocabulary, connection, both_hold_one = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def fetch():
        with connection:
            both_hold_one.wait()
            with vocabulary:
                pass

    threading.Thread(target=fetch, daemon=True).start()
    with vocabulary:
        both_hold_one.wait()
        with connection:
            pass


# Model --------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to what came in."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.feed_norm(x))


class CharacterModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), args.width)
        self.positions = nn.Embedding(args.context, args.width)
        self.blocks = nn.Sequential(*(Block(args.width) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, len(ALPHABET))

    def forward(self, indices):
        places = torch.arange(indices.shape[1], device=indices.device)
        return self.head(self.norm(self.blocks(self.characters(indices) + self.positions(places))))


# Checkpoints --------------------------------------------------------------------------------------------------------


def save_checkpoint(args, step, model, optimizer):
    """Write out/ckpt_STEP.pt so that it is there whole or not at all, and drop the oldest beyond --keep."""
    path = args.out / f"ckpt_{step}.pt"
    temporary = path.with_suffix(".tmp")
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, temporary)
    os.replace(temporary, path)
    saved = sorted(args.out.glob("ckpt_*.pt"), key=lambda file: int(file.stem.rpartition("_")[2]))
    for old in saved[: -args.keep]:
        old.unlink()


def load_checkpoint(path, model, optimizer, device):
    """Take up the state at path; returns the step that it was saved after."""
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"].cpu())
    return state["step"]


# Training -----------------------------------------------------------------------------------------------------------


def set_up():
    """Join the process group; returns this rank's device."""
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    if gpus == 0:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    # NCCL wants a GPU for each rank; ranks that share one talk over gloo.
    dist.init_process_group("nccl" if gpus >= local_size else "gloo")
    return device


def report(args, step, losses, began):
    """Print the mean of the losses since the last report, over all ranks, and keep it in metrics.jsonl."""
    loss = torch.stack(losses).mean()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        mean = loss.item() / dist.get_world_size()
        print(f"step {step:4d}  loss {mean:.3f}  {time.monotonic() - began:5.1f} s", flush=True)
        with (args.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "loss": round(mean, 4)}) + "\n")


def train(args, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    corpus = read_corpus()
    torch.manual_seed(args.seed)
    model = CharacterModel(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    first = load_checkpoint(args.resume, model, optimizer, device) if args.resume else 0
    if rank == 0:
        size = sum(parameter.numel() for parameter in model.parameters())
        origin = f"resuming from {args.resume}" if args.resume else "from scratch"
        print(
            f"{len(corpus):,} characters, {size:,} parameters, {world_size} ranks on {device.type}, {origin}",
            flush=True,
        )
    parallel = DistributedDataParallel(model)
    began, losses = time.monotonic(), []
    for step in range(first + 1, args.steps + 1):
        if step == args.update_at and rank == 1:
            fetch_vocabulary_update(args.out / "vocabulary-service-was-asked")
        inputs, targets = take_batch(corpus, args, step, rank, world_size)
        logits = parallel(inputs.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 10 == 0:
            report(args, step, losses, began)
            losses.clear()
        if step % args.save_every == 0 and rank == 0:
            save_checkpoint(args, step, model, optimizer)


def main():
    args = parse_arguments()
    args.out.mkdir(exist_ok=True)
    device = set_up()
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
