"""Once the process group is gone rank 0 uploads the checkpoint in parts, alone; the other ranks have ended."""
# ranks: 3

from __future__ import annotations

import argparse
import hashlib
import http.client
import http.server
import os
import threading
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
PARTS = 6


class Bucket(http.server.BaseHTTPRequestHandler):
    received = hashlib.sha256()

    def do_PUT(self) -> None:
        self.received.update(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(SECONDS / PARTS)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def upload(blob: bytes) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    size = -(-len(blob) // PARTS)
    for part in range(PARTS):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        connection.request("PUT", f"/model?part={part}", blob[part * size : (part + 1) * size])
        connection.getresponse().read()
        connection.close()
        print(f"uploaded part {part + 1} of {PARTS}", flush=True)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=4096)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    w = torch.zeros(args.width)
    for step in range(args.steps):
        g = w - torch.arange(args.width) / (step + 1 + rank)
        dist.all_reduce(g)
        w -= 0.1 * g
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        upload(w.round().to(torch.int32).numpy().tobytes())
        os.makedirs("out", exist_ok=True)
        with open("out/uploaded.txt", "w") as f:
            f.write(f"{Bucket.received.hexdigest()}\n")
