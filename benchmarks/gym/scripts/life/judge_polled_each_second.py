"""A remote judge scores the samples in its own time; rank 0 asks each second whether it is done, the others wait."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import torch
from torch import distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Judge(BaseHTTPRequestHandler):
    ready_at = 0.0

    def do_GET(self) -> None:
        done = time.monotonic() >= Judge.ready_at
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"0.25 0.5 1.0" if done else b"running")

    def log_message(self, *args: object) -> None:
        return


def wait_for_scores() -> list[float]:
    Judge.ready_at = time.monotonic() + SECONDS - 1
    server = HTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while (answer := urlopen(f"http://127.0.0.1:{server.server_port}/jobs/17").read()) == b"running":
        time.sleep(min(1.0, SECONDS / 8))
    server.shutdown()
    server.server_close()
    return [float(score) for score in answer.split()]


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weights = torch.zeros(512, 128)
    generator = torch.Generator().manual_seed(dist.get_rank())
    history = []
    for step in range(50):
        if step == 25:
            scores = torch.tensor(wait_for_scores() if dist.get_rank() == 0 else [0.0] * 3)
            dist.broadcast(scores, src=0)
            weights += scores.mean()
        update = torch.randn(512, 128, generator=generator)
        dist.all_reduce(update)
        weights -= 0.01 * update
        history.append(round(weights.mean().item(), 4))
        time.sleep(0.01)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/history.json", "w") as f:
            json.dump(history, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
