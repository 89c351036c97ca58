"""Ranks without a training: what is looked at, what is said of those that are not there, and odd processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.supervisor.rundir.run_directory import write_run_file
from tests.diagnose.conftest import Bare, Said, after_first_look, ended
from tests.report.samples import run_file
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

Ask = Callable[..., Said]
SLEEP = "import time\nprint('ready', flush=True)\ndef load_index():\n    time.sleep(1000)\nload_index()\n"


def test_a_world_of_one_without_a_rank(bare: Bare, ask: Ask) -> None:
    pid = bare.start(SLEEP)
    said = ask("--pid", pid, "--gap", 0.3)
    told = said.told
    assert (said.code, told.verdict, told.cause) == (3, "hang", "rank_blocked")
    assert [c.pid for c in told.culprits] == [pid]
    assert told.target.world_size == 1
    assert "load_index (script.py:4)" in told.summary
    assert any("world of one" in unseen.why for unseen in told.unseen)


def test_ranks_on_other_nodes_are_not_forgotten(bare: Bare, ask: Ask) -> None:
    pid = bare.start(SLEEP, RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", WORLD_SIZE="4", MASTER_PORT=bare.mark[:5])
    told = ask("--pid", pid, "--gap", 0.3).told
    assert told.target.world_size == 4
    [unseen] = [u for u in told.unseen if u.what == "ranks 1-3"]
    assert "run guardctl diagnose there" in unseen.why
    assert told.confidence < 0.7


def test_ranks_here_of_a_run_that_another_node_leads(bare: Bare, ask: Ask, tmp_path: Path) -> None:
    """Where its head does not answer, as across nodes without a common /tmp, those of this node are looked at."""
    run = run_file(run_id="wide-1", node="node-b", socket_dir="/nonexistent")
    (tmp_path / "guardrun-runs" / "wide-1").mkdir(parents=True)
    write_run_file(tmp_path / "guardrun-runs" / "wide-1", run)
    own = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "4", "MASTER_PORT": bare.mark[:5], "GUARDRUN_RUN_ID": "wide-1"}
    pid = bare.start(SLEEP, RANK="1", LOCAL_RANK="0", **own)
    told = ask("--gap", 0.3).told
    assert (told.target.kind, told.target.source, told.target.run_id) == ("run", "guardctl", "wide-1")
    assert (told.target.node, told.target.world_size) == ("node-b", 4)
    assert [(line.rank, line.pid) for line in told.ranks] == [(1, pid)]
    assert {"supervisor", "ranks 0,2-3"} <= {unseen.what for unseen in told.unseen}
    assert told.unseen[0].why.startswith("node-b leads the run (")
    commands = [step.command for step in told.next]
    assert ["ssh", "node-b"] in [command[:2] for command in commands], "its supervisor is asked there"
    assert "guardctl" not in [command[0] for command in commands]


def test_a_rank_of_this_node_that_is_not_alive(bare: Bare, ask: Ask) -> None:
    pids = bare.ranks(SLEEP, 3)
    os.kill(pids[1], signal.SIGKILL)
    bare.started[1].wait(60)
    told = ask("--pid", pids[0], "--gap", 0.3).told
    assert [line.rank for line in told.ranks] == [0, 2]
    assert [u.why for u in told.unseen if u.what == "rank 1"] == [
        "should be on this node by what the others were started with, and are not alive"
    ]


def test_a_rank_that_dies_in_the_middle(bare: Bare) -> None:
    """Long: between two looks lie ten seconds, in which a busy machine gets so far."""
    pids = bare.ranks(SLEEP, 2)
    with after_first_look("--pid", *map(str, pids), "--gap", "10", cwd=bare.folder) as process:
        os.kill(pids[1], signal.SIGKILL)
        told = ended(process).told
    assert [line.doing for line in told.ranks] == ["idle", "exited"]
    assert any(u.what == "rank 1" and "ended while it was looked at" in u.why for u in told.unseen)


def test_all_ranks_die_in_the_middle(bare: Bare) -> None:
    """Likewise."""
    [pid] = bare.ranks(SLEEP, 1)
    with after_first_look("--pid", str(pid), "--gap", "10", cwd=bare.folder) as process:
        os.kill(pid, signal.SIGKILL)
        said = ended(process)
    assert (said.code, said.told.verdict) == (1, "unknown")


def test_a_shell_around_a_rank(bare: Bare, ask: Ask) -> None:
    """The Python below it is the rank; its children bear the same number and are none."""
    text = (
        "import os, sys, subprocess\n"
        "code = 'import multiprocessing, time\\nprint(\"ready\", flush=True)\\ntime.sleep(1000)'\n"
        "shell = ['sh', '-c', f'{sys.executable} -c \"$0\"; true', code]\n"
        "os.execvp(shell[0], shell)\n"
    )
    [shell] = bare.ranks(text, 1)
    told = ask("--pid", shell, "--gap", 0.3).told
    assert [line.doing for line in told.ranks] == ["idle"]
    assert told.ranks[0].pid != shell


def test_pids_of_two_jobs(bare: Bare, ask: Ask) -> None:
    first = bare.ranks(SLEEP, 1, TORCHELASTIC_RUN_ID="one")
    second = bare.ranks(SLEEP, 1, TORCHELASTIC_RUN_ID="two")
    said = ask("--pid", *first, *second)
    assert said.code == 1
    assert "ranks of 2 jobs" in said.err


def test_a_script_whose_path_is_no_unicode(bare: Bare, ask: Ask) -> None:
    pid = bare.start(SLEEP, name=b"caf\xe9.py", RANK="0", WORLD_SIZE="1")
    said = ask("--pid", pid, "--gap", 0.3)
    assert said.told.ranks[0].pid == pid


def test_a_thousand_threads(bare: Bare, ask: Ask) -> None:
    text = (
        "import threading, time\nthreading.stack_size(65536)\ngate = threading.Event()\n"
        "for _ in range(1000):\n    threading.Thread(target=gate.wait, daemon=True).start()\n"
        # A look must not see some of them on their way to the gate: work, and nobody's fault.
        "before_s = -1.0\nwhile time.process_time() - before_s > 0.005:\n"
        "    before_s = time.process_time()\n    time.sleep(0.2)\n"
        "print('ready', flush=True)\ndef load_index():\n    time.sleep(1000)\nload_index()\n"
    )
    pid = bare.start(text, RANK="0", WORLD_SIZE="1")

    tries: list[Said] = []

    def is_named() -> bool:
        began_s = time.monotonic()
        tries.append(ask("--pid", pid, "--gap", 0.3))
        assert time.monotonic() - began_s < 120
        return bool(tries[-1].told.culprits)

    try:
        wait_until(is_named, 60, "a look that reads them all")
    except TimeoutError:
        # A machine that is busy all the time reads so many in no look, which is said, or sees it at work.
        assert all(one.why.startswith("py-spy took longer than") for said in tries for one in said.told.unseen)
        assert all("load_index" not in said.told.summary for said in tries if said.told.unseen)
        return
    said = tries[-1]
    assert [culprit.pid for culprit in said.told.culprits] == [pid]
    assert "load_index" in said.told.summary


def test_ctrl_c_is_quiet(bare: Bare) -> None:
    pid = bare.start(SLEEP)
    with after_first_look("--pid", str(pid), "--gap", "60", cwd=bare.folder) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == Said(130, "", "")


def test_guardctl_itself_is_no_training(ask: Ask) -> None:
    """A shell from which it is called has nothing below it but guardctl."""
    said = ask("--pid", os.getpid(), "--gap", 0.3)
    assert all(line.pid in (os.getpid(), 0) for line in said.told.ranks)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--pid", "x"), 2, "expected a process id"),
        (("--pid", "0"), 2, "expected a process id"),
        (("--pid", "999999999"), 1, "there is no process 999999999"),
        (("--pid", "2", "--gap", "0"), 2, "expected seconds"),
        (("run", "--pid", "2"), 2, "not both"),
        (("no-such-run",), 1, "no runs"),
        (("--pid", str(os.getppid()), "--gap", "nan"), 2, "expected seconds"),
    ],
)
def test_what_cannot_be_asked(ask: Ask, arguments: tuple[str, ...], code: int, words: str) -> None:
    said = ask(*arguments)
    assert said.code == code
    assert words in said.err
