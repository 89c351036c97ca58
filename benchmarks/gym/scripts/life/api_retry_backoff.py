"""The feature API answers 503 for a while; rank 1 retries with an exponential backoff and rank 0 waits to gather."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class FlakyApi(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if time.monotonic() < up_at:
            self.send_error(503, "over capacity")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"feature": [1, 2, 3, 5, 8]}')

    def log_message(self, *args: object) -> None:
        pass


def get_with_retries(url: str) -> dict:
    delay = SECONDS / 31
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            print(f"{error}: trying again in {delay:.1f} s", flush=True)
            time.sleep(delay)
            delay *= 2


def steps(target: float) -> None:
    for i in range(25):
        g = (w - target) * (1 + i % 3)
        dist.all_reduce(g)
        w.sub_(g, alpha=0.02)
        norms.append(round(w.norm().item(), 3))
        time.sleep(0.01)


dist.init_process_group("gloo")
torch.set_num_threads(1)
w, norms, feature = torch.zeros(300, 100), [], None
steps(0.5)
if dist.get_rank() == 1:
    up_at = time.monotonic() + 0.9 * SECONDS
    server = HTTPServer(("127.0.0.1", 0), FlakyApi)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    feature = get_with_retries(f"http://127.0.0.1:{server.server_port}/v1/features")["feature"]
    server.shutdown()
    server.server_close()
gathered: list = [None] * dist.get_world_size()
dist.all_gather_object(gathered, feature)
steps(0.1 * sum(gathered[1]))
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/norms.json", "w") as f:
        json.dump([gathered, norms], f)
dist.barrier()
dist.destroy_process_group()
