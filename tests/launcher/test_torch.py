"""Ranks that really use torch.distributed, over gloo."""

from __future__ import annotations

from tests.launcher.conftest import read_facts
from tests.support.guardrun_run import GuardrunStarter
from tests.support.ports import free_ports

TRAIN = """
import os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
if dist.get_rank() == 0:
    print("sum", int(ones), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
dist.destroy_process_group()
"""


def test_the_next_attempt_meets_nothing_of_the_last_on_the_port_that_was_asked_for(launcher: GuardrunStarter) -> None:
    (port,) = free_ports(1)
    done = launcher.run(["--nproc-per-node=2", f"--master-port={port}"], script=TRAIN)
    assert done.returncode == 0, done
    started = [fact["attempt"] for fact in read_facts(done.run_dir) if fact["type"] == "started"]
    assert started == [0, 1], done
    assert done.stdout == f"sum 2 127.0.0.1 {port}\n", done
