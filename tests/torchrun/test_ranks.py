"""What ranks see: environment, arguments, and all that a process inherits, by every way of starting a script."""

from __future__ import annotations

import json
import sys

import pytest

from tests.torchrun.beside import ADDITIONS, RESTARTS, Beside, check_ended_well, check_same, ranks_words

SCRIPT_ARGUMENTS = [
    "--guard-off",
    "--guard-nothing=1",
    "--nproc-per-node=9",
    "--",
    "-m",
    "-h",
    "",
    "two words",
    "--no-python",
    "ünï",
    "$HOME",
]


def test_everything_a_rank_sees_is_torchruns(beside: Beside) -> None:
    """Two ranks; a user's own variables, PYTHONPATH, standard input, umask, nice value and ignored signals."""
    beside.write("input.txt", "fed\n")
    beside.use_shell(
        "umask 027; ulimit -n 777; trap '' USR2; exec < input.txt; [ $(nice) -ge 5 ] || renice -q 5 $$ >&2"
    )
    ours, theirs = check_ended_well(
        beside.run(
            ["--nproc_per_node=2", RESTARTS, "probe.py", *SCRIPT_ARGUMENTS],
            env={
                "TEST_SENTINEL": "FOOBAR",
                "PYTHONPATH": "/nowhere/at/all:",
                "READ_STDIN": "1",
                "TORCH_DISTRIBUTED_DEBUG": "OFF",
                "OMP_NUM_THREADS": None,
            },
        )
    )
    our_ranks, their_ranks = beside.seen()
    assert set(our_ranks) == {"0-0", "1-0"}
    check_same(our_ranks, their_ranks)
    added = set(our_ranks["0-0"]["environment"]) - set(their_ranks["0-0"]["environment"])
    assert added == ADDITIONS - {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_DISTRIBUTED_DEBUG"}
    seen = our_ranks["0-0"]
    environment = seen["environment"]
    assert seen["argv"] == ["probe.py", *SCRIPT_ARGUMENTS]
    assert (seen["stdin"], seen["umask"], seen["cwd"]) == ("fed\n", "0o27", "FOLDER")
    assert seen["is_session_leader"] and seen["is_write_through"]
    assert environment["TORCH_DISTRIBUTED_DEBUG"] == "OFF", "what the user set stays"
    assert environment["PYTHONPATH"] == "/nowhere/at/all:" and environment["TEST_SENTINEL"] == "FOOBAR"
    assert environment["OMP_NUM_THREADS"] == "1"
    for text in (ours.stderr, theirs.stderr):
        assert text.count("Setting OMP_NUM_THREADS environment variable") == 1
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout) == []


def test_modules_with_relative_imports(beside: Beside) -> None:
    beside.write("pkg/__init__.py", "")
    beside.write(
        "pkg/worker.py", "from .inner import NAME\nimport probe\nprint(f'{NAME} {__name__}\\n', end='')\nprobe.main()\n"
    )
    beside.write("pkg/inner.py", "NAME = __name__\n")
    ours, theirs = check_ended_well(beside.run(["-m", "--nproc-per-node", "2", RESTARTS, "pkg.worker", "--lr", "1"]))
    our_ranks, their_ranks = beside.seen()
    check_same(our_ranks, their_ranks)
    assert our_ranks["1-0"]["argv"] == ["FOLDER/pkg/worker.py", "--lr", "1"]
    assert ours.stdout == theirs.stdout == "pkg.inner __main__\n" * 2


def test_two_dashes_before_the_script_are_the_launchers(beside: Beside) -> None:
    """Those after it are the script's; argparse up to Python 3.12 took one of them from torchrun's script."""
    check_ended_well(beside.run(["--nproc-per-node=2", RESTARTS, "--", "probe.py", "-x", "--", "--y"]))
    our_ranks, their_ranks = beside.seen()
    check_same(our_ranks, their_ranks)
    assert our_ranks["0-0"]["argv"] == ["probe.py", "-x", "--", "--y"]


def test_functions_as_ranks(beside: Beside) -> None:
    """--run-path: each rank a child of the multiprocessing module, started by spawn or fork."""
    check_ended_well(beside.run(["--run-path", "--nproc-per-node=1", RESTARTS, "probe.py", "--touch=x"]))
    our_ranks, their_ranks = beside.seen()
    for ranks in (our_ranks, their_ranks):
        for seen in ranks.values():  # descriptors in the command line; the ranks' standard input is closed or not
            seen["orig_argv"] = [word for word in seen["orig_argv"] if "spawn_main" not in word]
    check_same(our_ranks, their_ranks)
    assert our_ranks["0-0"]["argv"] == ["probe.py", "--touch=x"] and our_ranks["0-0"]["names"][0] == "__main__"


SHELL = """#!/bin/bash
descriptors=(/proc/$$/fd/*)
echo "rank $RANK of $WORLD_SIZE got $# arguments: $*; umask $(umask); descriptors ${descriptors[*]##*/}"
env -0 | sort -z | grep -zE '^(RANK|LOCAL_|GROUP_|ROLE_|WORLD|MASTER_A|TORCHELASTIC_[MRSU]|OMP|PYTHONU|PET)' |
    tr '\\0' '\\n' | grep -v RUN_ID
"""


def test_other_programs_as_ranks(beside: Beside) -> None:
    """--no-python runs what is named as it is; PET_NO_PYTHON=1 too, beside PET_MODULE=0."""
    beside.write("work.sh", SHELL, mode=0o755)
    flags = ["--nproc-per-node=2", RESTARTS, "--no-python"]
    ours, theirs = check_ended_well(beside.run([*flags, "./work.sh", "a", "b c"]))
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)
    assert "rank 1 of 2 got 2 arguments: a b c" in ours.stdout
    names = {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "0", "PET_NO_PYTHON": "1"}
    again, same = check_ended_well(beside.run(["./work.sh"], env={**names, "PET_MODULE": "0", "PET_ROLE": "worker"}))
    assert ranks_words(again.stdout) == ranks_words(same.stdout)
    assert "ROLE_NAME=worker" in again.stdout and "WORLD_SIZE=2" in again.stdout


def test_flags_and_variables_that_reach_the_ranks(beside: Beside) -> None:
    """Names, ids, addresses and counts that flags or PET_ variables choose."""
    environment = {"PET_ROLE": "overridden", "PET_RDZV_ID": "job-7", "PET_MONITOR_INTERVAL": "1"}
    environment |= {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    flags = [
        "--nproc-per=2",
        "--role",
        "trainer",
        "--max-restarts=3",
        "--local_addr=127.0.0.1",
        "--signals-to=SIGTERM,SIGUSR1",
    ]
    flags += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--virtual-local-rank", "--start_method", "fork"]
    check_ended_well(beside.run([*flags, "probe.py"], env=environment))
    our_ranks, their_ranks = beside.seen()
    check_same(our_ranks, their_ranks)
    seen = our_ranks["1-0"]["environment"]
    expected = {"ROLE_NAME": "trainer", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "job-7"}
    expected |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR1"}
    expected |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "LOCAL_RANK": "0", "PET_ROLE": "overridden"}
    assert {name: seen.get(name) for name in expected} == expected
    assert "TORCHELASTIC_TIMER_FILE" in seen


@pytest.mark.parametrize(
    "flags",
    [
        ["--standalone"],
        ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port={port}"],
        ["--nnodes=1:1", "--rdzv-endpoint=127.0.0.1:{port}"],
    ],
    ids=["standalone", "master-port", "static-endpoint"],
)
def test_one_node_however_it_is_written(beside: Beside, free_ports: list[int], flags: list[str]) -> None:
    pair = beside.start_each(
        [
            [flag.format(port=port) for flag in [*flags, "--nproc-per-node=2", RESTARTS, "probe.py"]]
            for port in free_ports
        ]
    )
    for run in pair:
        assert run.wait(60).returncode == 0, run.result()
    our_ranks, their_ranks = beside.seen()
    check_same(our_ranks, their_ranks)


def test_python_named_by_the_user(beside: Beside) -> None:
    """PYTHON_EXEC is what runs the script."""
    beside.write("python.sh", f'#!/bin/sh\nTHROUGH=wrapper exec "{sys.executable}" "$@"\n', mode=0o755)
    check_ended_well(beside.run([RESTARTS, "probe.py"], env={"PYTHON_EXEC": "./python.sh"}))
    our_ranks, their_ranks = beside.seen()
    assert set(our_ranks) == {"0-0"}, "one rank, where no number is given"
    assert our_ranks["0-0"]["environment"]["THROUGH"] == "wrapper"
    check_same(our_ranks, their_ranks)


TORCH = """
import json, os, sys
import torch, torch.distributed as dist
port = os.environ["MASTER_PORT"]
dist.init_process_group("gloo", init_method=sys.argv[1].format(port=port), rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
total = torch.ones(1)
dist.all_reduce(total)
facts = [dist.is_torchelastic_launched(), int(total), dist.get_rank(), dist.get_node_local_rank()]
print(json.dumps(facts) + chr(10), end="")
dist.destroy_process_group()
"""


def test_process_groups_by_env_and_tcp(beside: Beside, free_ports: list[int]) -> None:
    """Both init methods find the store, at the port that was asked for; torch knows that it was launched."""
    beside.write("group.py", TORCH)
    ours, theirs = check_ended_well(beside.run(["--nproc-per-node=2", RESTARTS, "group.py", "env://"]))
    assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines())
    assert json.loads(sorted(ours.stdout.splitlines())[1]) == [True, 2, 1, 1]
    flags = ["--nproc-per-node=2", RESTARTS, "--master-addr=localhost"]
    arguments = [[*flags, f"--master-port={port}", "group.py", f"tcp://localhost:{port}"] for port in free_ports]
    again, same = (run.wait(60) for run in beside.start_each(arguments))
    assert again.returncode == same.returncode == 0, (again, same)
    assert sorted(again.stdout.splitlines()) == sorted(ours.stdout.splitlines())
