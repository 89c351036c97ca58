"""Rank 0 downloads the pretrained weights in a thread, with a progress bar; the others wait in a broadcast."""
# needs: tqdm

from __future__ import annotations

import os
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
import torch.distributed as dist
from tqdm import tqdm

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SIZE = 256 * 256 * 4


class Mirror(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(32):
            time.sleep(SECONDS / 32)
            self.wfile.write(b"\x00\x00\x80\x3c" * (SIZE // 128))

    def log_message(self, *args: object) -> None:
        pass


def download(url: str) -> torch.Tensor:
    data = bytearray()
    with urllib.request.urlopen(url) as response, tqdm(total=SIZE, unit="B", unit_scale=True, desc="weights") as bar:
        while chunk := response.read(8192):
            data += chunk
            bar.update(len(chunk))
    return torch.frombuffer(data, dtype=torch.float32).view(256, 256)


def finetune(layer: torch.nn.Linear, steps: int) -> None:
    opt = torch.optim.AdamW(layer.parameters(), lr=1e-4)
    for _ in range(steps):
        x = torch.randn(64, 256)
        opt.zero_grad()
        torch.nn.functional.mse_loss(layer(x), x).backward()
        for p in layer.parameters():
            dist.all_reduce(p.grad)
        opt.step()


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(21)
layer = torch.nn.Linear(256, 256)
finetune(layer, 20)
if dist.get_rank() == 0:
    server = HTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with ThreadPoolExecutor(max_workers=1) as pool:
        weights = pool.submit(download, f"http://127.0.0.1:{server.server_port}/w.bin").result()
    server.shutdown()
    server.server_close()
    layer.weight.data.copy_(weights)
dist.broadcast(layer.weight.data, src=0)
finetune(layer, 40)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    torch.save(layer.state_dict(), "out/layer.pt")
dist.barrier()
dist.destroy_process_group()
