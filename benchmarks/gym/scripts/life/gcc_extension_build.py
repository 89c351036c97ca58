"""Rank 0 builds variants of a C kernel with gcc in subprocesses and times them; the others wait for the best one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
KERNEL = """
double dot(const double *a, const double *b, int n) {
    double s = 0;
    for (int i = 0; i + UNROLL <= n; i += UNROLL) { BODY }
    return s;
}
"""


def build(folder: Path, unroll: int) -> ctypes.CDLL:
    body = "".join(f"s += a[i + {k}] * b[i + {k}];\n" for k in range(unroll))
    source, library = folder / f"dot{unroll}.c", folder / f"dot{unroll}.so"
    source.write_text(KERNEL.replace("UNROLL", str(unroll)).replace("BODY", body))
    subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True)
    kernel = ctypes.CDLL(str(library))
    kernel.dot.restype = ctypes.c_double
    return kernel


def tune(seconds: float) -> list[float]:
    numbers = (ctypes.c_double * 64)(*range(64))
    answers: list[float] = []
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        unroll = 1
        while len(answers) < 2 or time.monotonic() < end:
            kernel = build(Path(folder), unroll)
            if len(answers) < 2:
                answers.append(kernel.dot(numbers, numbers, 64))
            unroll = 200 + len(list(Path(folder).glob("*.c"))) if len(answers) == 2 else unroll + 1
    return answers


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(31)
model = torch.nn.Linear(64, 64)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
report = []
for phase in range(2):
    for _ in range(40):
        x = torch.randn(100, 64)
        loss = (model(x) @ x.T).tril().abs().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        opt.step()
    report.append(f"phase {phase}: {loss.item():.3f}")
    if phase == 0:
        tuned = [tune(SECONDS) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(tuned)
        report.append(f"kernels: {tuned[0]}")
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    Path("out/report.txt").write_text("\n".join(report) + "\n")
dist.barrier()
dist.destroy_process_group()
