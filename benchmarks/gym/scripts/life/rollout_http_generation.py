"""Rank 0 asks a slow generation server for every completion; the others wait for it at a barrier."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
PROMPTS = ["the cat", "a storm", "my code", "our ship", "no one"]


class Generator(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        prompt = self.rfile.read(int(self.headers["Content-Length"])).decode()
        time.sleep(SECONDS / len(PROMPTS))
        body = json.dumps({"text": prompt[::-1] + " " + prompt}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def train(model: torch.nn.Module, opt: torch.optim.Optimizer, steps: int, shift: float) -> float:
    for _ in range(steps):
        x = torch.randn(256, 64)
        loss = (model(x) - x.roll(1, 1) - shift).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        time.sleep(0.005)
    return loss.item()


dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
before = train(model, opt, 30, 0.0)
texts: list[str] = []
if rank == 0:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Generator)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for prompt in PROMPTS:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", data=prompt.encode()) as reply:
            texts.append(json.load(reply)["text"])
        print(f"generated {len(texts)}/{len(PROMPTS)}", flush=True)
    server.shutdown()
    server.server_close()
dist.barrier()
after = train(model, opt, 30, 0.1)
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/rollouts.json", "w") as f:
        json.dump({"texts": texts, "before": round(before, 4), "after": round(after, 4)}, f)
dist.barrier()
dist.destroy_process_group()
