"""The fixtures that run the real command line, and that they leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.processes import is_alive

HELLO = """
import os, sys
os.write(1, f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n".encode())
"""

STAYS = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("waiting", flush=True)
time.sleep(600)
"""


def test_a_run_to_its_end(run_guardrun: Callable[..., Finished]) -> None:
    done = run_guardrun(["--nproc_per_node=2"], script=HELLO, script_args=["--lr", "1"])
    assert done.returncode == 0, done
    assert {"rank 0 of 2 ['--lr', '1']", "rank 1 of 2 ['--lr', '1']"} <= set(done.stdout.splitlines())
    assert done.run_dir is not None
    assert done.summary is not None
    assert done.incidents == []


def test_a_live_run_is_ended_with_its_test(guardrun_starter: GuardrunStarter) -> None:
    run = guardrun_starter.start(["--nproc_per_node=1"], script=STAYS)
    run.wait_for_output("waiting")
    processes = run.alive()
    assert {run.pid} < {process.pid for process in processes}
    assert run.find("train.py")
    guardrun_starter.close()
    assert not [process for process in processes if is_alive(process.pid)]
    assert run.alive() == []


def test_a_run_that_ends_before_its_time_is_told_with_its_output(start_guardrun: Callable[..., GuardrunRun]) -> None:
    run = start_guardrun(["--nproc_per_node=1"], script="raise SystemExit('no data')")
    with pytest.raises(AssertionError, match="no data"):
        run.wait_for_output("epoch 1")
