"""Each way of starting something of guardrun's, with every process executed: what forked tests cannot show.

docs/testing.md has the table of these, and of those that are shown elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.client.agent_client import ask
from tests.support.forkserver import client
from tests.support.guardrun_run import Finished, GuardrunRun, clean_environment
from tests.support.ports import free_ports
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cold

Start = Callable[..., GuardrunRun]
Run = Callable[..., Finished]

SAYS = """
import sys
early = sorted({"torch", "numpy", "tests"} & set(sys.modules))
import gc, json, os
def tell(**more):
    line = open("/proc/self/cmdline", "rb").read().decode().split(chr(0))[1:-1]
    said = {"rank": os.environ.get("RANK"), "line": line, "argv": sys.argv[1:], "early": early,
            "frozen": gc.get_freeze_count(), "name": __name__, **more}
    sys.stdout.write("SAID " + json.dumps(said) + "\\n")  # One write: print() has a second for the line's end.
    sys.stdout.flush()
"""
TRAINS = f"""{SAYS}
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
tell(total=total.item())
"""
TELLS = f"{SAYS}tell()\n"


def said(text: str) -> list[dict[str, Any]]:
    """What the processes said of themselves, in the order of their ranks."""
    found = [json.loads(line.partition("SAID ")[2]) for line in text.splitlines() if "SAID " in line]
    return sorted(found, key=lambda one: one["rank"] or "")


def check(done: Finished, ranks: int = 1, early: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """A run that ended well, of ranks that were executed: nothing but `early` was there before them."""
    assert done.returncode == 0, done
    assert done.summary is not None and (done.summary["outcome"], done.incidents) == ("finished", []), done
    told = said(done.stdout)
    assert [one["rank"] for one in told] == [str(rank) for rank in range(ranks)], done
    assert all((one["early"], one["frozen"]) == ([*early], 0) for one in told), told
    return told


def answer(command: list[str], folder: Path, **variables: str) -> str:
    """What a command that ends well writes."""
    environment = clean_environment("cold", {**variables})
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=240, check=True
    ).stdout


def test_what_is_forked_is_told_from_what_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign that `check` goes by: the fork server's children have objects that the collector leaves alone."""
    counts = [sys.executable, "-c", "import gc; print(gc.get_freeze_count())"]
    assert int(answer(counts, tmp_path)) == 0
    monkeypatch.setattr(client, "cold", False)
    assert int(answer(counts, tmp_path)) > 0


def test_guardrun_and_a_script_with_torch(run_guardrun: Run) -> None:
    """Long: nothing is forked here, and torch is imported three times."""
    told = check(run_guardrun(["--nproc-per-node=2"], script=TRAINS, script_args=["--lr", "1"]), 2)
    assert [(one["total"], one["argv"], one["line"]) for one in told] == [
        (2.0, ["--lr", "1"], ["-u", "train.py", "--lr", "1"])
    ] * 2


def test_python_m_guardrun_and_a_module(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").write_text(TELLS)
    words = ["--nproc-per-node=1", "-m", "pack.train", "--lr", "1"]
    output = answer([sys.executable, "-m", "guardrun", *words], tmp_path, GUARDRUN_DIR=str(tmp_path / "runs"))
    [told] = said(output)
    assert (told["rank"], told["early"], told["frozen"]) == ("0", [], 0)
    assert (told["line"], told["name"]) == (["-u", "-m", "pack.train", "--lr", "1"], "__main__")


def test_a_program_that_is_no_python_and_falls_and_is_started_again(run_guardrun: Run, tmp_path: Path) -> None:
    fails = f"{SAYS}tell()\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise OSError('no data')\n"
    (tmp_path / "train.py").write_text(fails)
    done = run_guardrun(["--nproc-per-node=1", "--no-python", "/bin/sh", "-c", f"{sys.executable} train.py"])
    assert done.returncode == 0, done
    told = said(done.stdout)
    assert [(one["rank"], one["early"], one["frozen"], one["line"]) for one in told] == [("0", [], 0, ["train.py"])] * 2
    assert [incident["cause"] for incident in done.incidents] == ["exception"]


def test_run_path(run_guardrun: Run) -> None:
    """A function of torch's, in an interpreter that multiprocessing spawns, runs the script."""
    [told] = check(run_guardrun(["--nproc-per-node=1", "--run-path"], script=TELLS), early=("numpy", "torch"))
    assert told["name"] == "__main__"


def test_torchrun_s_own_agent(run_guardrun: Run) -> None:
    done = run_guardrun(["--guard-off", "--standalone", "--nproc-per-node=1"], script=TELLS)
    assert done.returncode == 0 and done.run_dir is None, done
    assert [(one["rank"], one["early"], one["frozen"]) for one in said(done.stdout)] == [("0", [], 0)]


def test_torchrun_s_agent_watched_by_guardrun(run_guardrun: Run) -> None:
    """Torch's agent in a process that guardrun forks."""
    check(run_guardrun(["--guard-launcher-agent=torchrun", "--nproc-per-node=1"], script=TELLS))


def test_two_launchers_that_meet(start_guardrun: Start) -> None:
    port = free_ports(1)[0]
    flags = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    runs = [start_guardrun([*flags, f"--node-rank={node}"], script=TELLS) for node in range(2)]
    done = [run.wait(200) for run in runs]
    assert [one.returncode for one in done] == [0, 0], done
    told = said("".join(one.stdout for one in done))
    assert [(one["rank"], one["frozen"]) for one in told] == [("0", 0), ("1", 0)]


def test_a_supervisor_that_was_killed_is_started_again_and_children_of_a_rank(
    start_guardrun: Start, tmp_path: Path
) -> None:
    """Those by multiprocessing's spawn: an interpreter of its own, which is no rank."""
    waits = f"""{SAYS}
import multiprocessing, time
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("from the child",))
    child.start()
    child.join()
    tell()
    while not os.path.exists("end"): time.sleep(0.02)
    sys.exit(child.exitcode)
"""
    run = start_guardrun(["--nproc-per-node=1"], script=waits)
    run.wait_for_output("SAID")
    [first] = run.supervisors()
    os.kill(first.pid, 9)
    wait_until(lambda: [one for one in run.supervisors() if one.pid != first.pid], 20, "another supervisor")
    (tmp_path / "end").touch()
    done = run.wait(60)
    check(done)
    assert "from the child" in done.stdout


@pytest.mark.parametrize(
    "command",
    [[str(Path(sys.executable).with_name("guardctl"))], [sys.executable, "-m", "guardrun.supervisor.cli.guardctl"]],
    ids=["guardctl", "python -m"],
)
def test_guardctl(command: list[str], tmp_path: Path) -> None:
    json.loads(answer([*command, "node", "list", "--json"], tmp_path, GUARDRUN_NODE_STATE_DIR=str(tmp_path)))


def test_a_node_s_agent(tmp_path: Path) -> None:
    guardrund = Path(sys.executable).with_name("guardrund")
    listens = tmp_path / "run" / "agent.sock"
    environment = clean_environment("cold", {"GUARDRUN_METRICS_NODE_LISTEN": ""})
    command = [str(guardrund), "--node", "--state", str(tmp_path / "state"), "--socket", str(listens)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as agent:
        try:
            wait_until(lambda: listens.exists() or not is_alive(agent.pid), 30, "its socket")
            assert ask("status", path=listens)["pid"] == agent.pid
        finally:
            agent.terminate()
    assert agent.returncode == 0
