"""What is refused, before anything is started; and what counts as how many ranks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.torchrun.beside import GUARDRUN, RESTARTS, TORCHRUN, Beside, Pair, check_ended_well, check_same

Case = tuple[list[str], dict[str, str], str, str]
"""Arguments, environment, what guardrun says, what torchrun says where it says it otherwise."""

REFUSED: dict[str, Case] = {
    "unknown-flag": (["--no-such-flag", "probe.py"], {}, "unrecognized arguments: --no-such-flag", ""),
    "no-script": (["--nproc-per-node=2"], {}, "the following arguments are required: training_script", ""),
    "ambiguous": (["--no", "probe.py"], {}, "ambiguous option: --no could match", ""),
    "ambiguous-short": (["--s", "probe.py"], {}, "ambiguous option: --s could match --standalone", ""),
    "bad-choice": (["--start-method=magic", "probe.py"], {}, "invalid choice: 'magic'", ""),
    "no-number": (["--max-restarts=many", "probe.py"], {}, "invalid int value: 'many'", ""),
    "gpu-without-gpus": (["--nproc-per-node=gpu", "probe.py"], {}, "Cuda is not available", ""),
    "unknown-nproc": (["--nproc-per-node=some", "probe.py"], {}, "Unsupported nproc_per_node value: some", ""),
    "variable-nproc": (["probe.py"], {"PET_NPROC_PER_NODE": "x"}, "Unsupported nproc_per_node value: x", ""),
    "nnodes-of-three-parts": (["--nnodes=1:2:3", "probe.py"], {}, 'is not in "MIN:MAX" format', ""),
    "nnodes-backwards": (["--nnodes=3:2", "probe.py"], {}, "min_nodes must be > 0 and <= max_nodes", ""),
    "no-nodes": (["--nnodes=0", "probe.py"], {}, "min_nodes must be > 0 and <= max_nodes", ""),
    "restarts-below-0": (["--max-restarts=-1", "probe.py"], {}, "expected a whole number, 0 or more, got -1", ">= 0"),
    "filter-of-words": (["--local-ranks-filter=one", "probe.py"], {}, "comma-separated list of integers", ""),
    "redirects-of-words": (["--redirects=all", "probe.py"], {}, "all does not match", ""),
    "log-dir-is-a-file": (["--log-dir=probe.py", "probe.py"], {}, "probe.py is a file", ""),
    "logs-specs": (["--logs-specs=NONE", "probe.py"], {}, "torchrun.logs_specs[NONE]", ""),
    "module-and-no-python": (["-m", "--no-python", "probe"], {}, "'--no-python' flag and the '--module' flag", ""),
    "the-same-by-variables": (
        ["probe"],
        {"PET_NO_PYTHON": "1", "PET_MODULE": "1"},
        "'--no-python' flag and the '--module' flag",
        "",
    ),
    "unknown-backend": (
        ["--rdzv-backend=nosuch", "--rdzv-endpoint=localhost:1", "probe.py"],
        {},
        "The rendezvous backend 'nosuch' is not registered",
        "",
    ),
    "several-nodes-no-ranks": (["--nnodes=2", "--nproc-per-node=gpu", "probe.py"], {}, "Cuda is not available", ""),
}

DRIVER = """
import contextlib, io, json, os, sys, traceback
from MODULE import main

def run(arguments, environment):
    os.environ.update(environment)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
            status = 1
    for name in environment:
        del os.environ[name]
    return [status, said.getvalue()]

for name, (arguments, environment, *_) in json.load(open("cases.json")).items():
    print(json.dumps([name, *run(arguments, environment)]), flush=True)
"""


def parse_answers(stdout: str) -> dict[str, tuple[int, str]]:
    answers = (json.loads(line) for line in stdout.splitlines())
    return {name: (status, said) for name, status, said in answers}


def test_refused_with_torchruns_words(beside: Beside) -> None:
    """All in one process a side: torch is imported once."""
    beside.write("cases.json", json.dumps(REFUSED))
    modules = {"ours": "guardrun.launcher.main", "theirs": "torch.distributed.run"}
    for name, module in modules.items():
        starter = beside.starters[name]
        (starter.folder / "driver.py").write_text(DRIVER.replace("MODULE", module))
    beside.use_programs(ours=[GUARDRUN[0], "driver.py"], theirs=[TORCHRUN[0], "driver.py"])
    results = beside.run([], env={"CUDA_VISIBLE_DEVICES": ""})
    ours, theirs = (parse_answers(result.stdout) for result in results)
    assert set(ours) == set(theirs) == set(REFUSED), results
    for name, (_, _, words, their_words) in REFUSED.items():
        our_status, our_text = ours[name]
        their_status, their_text = theirs[name]
        assert words in our_text and (their_words or words) in their_text, (name, our_text, their_text)
        assert our_status == 2 and their_status in (1, 2), (name, our_status, their_status)
        assert "Traceback" not in our_text, (name, our_text)
    assert tuple(beside.seen()) == ({}, {})
    assert not (beside.starters["ours"].folder / "guardrun-runs").exists()
    assert list((beside.starters["ours"].folder / "t").glob("guardrun-*")) == []


def test_an_event_handler_that_torch_does_not_know(beside: Beside) -> None:
    """torchrun's agent falls over it; guardrun writes events when training is over, and says so before."""
    ours, theirs = beside.run(["--event-log-handler=nosuch", RESTARTS, "probe.py"])
    assert (ours.returncode, theirs.returncode) == (2, 1)
    assert "torch has no handler 'nosuch', but console, " in ours.stderr and "KeyError: 'nosuch'" in theirs.stderr
    assert tuple(beside.seen()) == ({}, {})


def test_a_script_that_does_not_exist(beside: Beside) -> None:
    """torchrun says so once a rank; guardrun says so at once, with the folder."""
    ours, theirs = beside.run(["--nproc-per-node=2", RESTARTS, "nowhere.py"])
    assert (ours.returncode, theirs.returncode) == (2, 1)
    assert ours.stderr.strip().endswith(f"no such script: nowhere.py (in {beside.starters['ours'].folder})"), ours


@pytest.mark.parametrize("count", ["auto", "cpu"])
def test_numbers_of_ranks(beside: Beside, count: str) -> None:
    """auto, by variable: the accelerators, else the processors; cpu: the processors this process may use."""
    environment: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": "", "PET_NPROC_PER_NODE": "auto"}
    flags = [RESTARTS, *(["--nproc-per-node=cpu"] if count == "cpu" else [])]
    if count == "cpu":
        beside.use_shell(f"taskset -p -c {min(os.sched_getaffinity(0))} $$ >&2")
    for result in beside.run([*flags, "probe.py"], env=environment):
        assert result.returncode == 0, result
    our_ranks, their_ranks = beside.seen()
    assert sizes(our_ranks) == sizes(their_ranks) != {}


def sizes(ranks: dict[str, Any]) -> dict[str, str]:
    return {who: seen["environment"]["LOCAL_WORLD_SIZE"] for who, seen in ranks.items()}


def test_help_is_torchruns_and_ours(beside: Beside) -> None:
    pair = beside.run(["--help"])
    ours, theirs = Pair(*(flags_in(result.stdout) for result in pair))
    assert [result.returncode for result in pair] == [0, 0]
    assert theirs <= ours and all(flag.startswith("--guard-") for flag in ours - theirs)


def flags_in(text: str) -> set[str]:
    return {word.strip("[],") for word in text.split() if word.strip("[],").startswith("--")}


def test_abbreviations_mean_what_they_meant(beside: Beside) -> None:
    """guardrun's own flags take none of them away."""
    flags = ["--stand", "--nproc-p", "2", "--max-res=0", "--ro=x", "--monitor-i=1", "--redirect=3", "--log-d=logs"]
    flags += ["--local-r=0", "--rdzv-i=job", "--node-r=0", "--master-a=localhost", "--signals-t=SIGTERM"]
    check_ended_well(beside.run([*flags, "probe.py"]))
    our_ranks, their_ranks = beside.seen()
    check_same(our_ranks, their_ranks)
    assert our_ranks["1-0"]["environment"]["ROLE_NAME"] == "x"
