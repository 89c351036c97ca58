"""How ranks fail: exit statuses, error files with and without @record, and the launcher's own report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.guardrun_run import Finished
from tests.torchrun.beside import RESTARTS, Beside, Pair

BOTH = ["--nproc-per-node=2", RESTARTS, "--log-dir=logs"]

RECORDED = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

class OwnError(RuntimeError):
    pass

def fail():
    raise OwnError("spoilt by rank " + os.environ["RANK"])

@record
def main():
    print("error file", os.environ["TORCHELASTIC_ERROR_FILE"], flush=True)
    if os.environ["RANK"] == "1":
        fail()
    __import__("time").sleep(600)

main()
"""


def read_error(folder: Path, rank: int) -> dict[str, Any] | None:
    paths = list((folder / "logs").rglob(f"attempt_0/{rank}/error.json"))
    message: dict[str, Any] | None = json.loads(paths[0].read_text())["message"] if paths else None
    return message


def errors(beside: Beside, rank: int) -> Pair:
    return Pair(*(read_error(starter.folder, rank) for starter in beside.starters.values()))


def test_error_files_with_record(beside: Beside) -> None:
    """The rank's file, and the copy that whoever started the launcher asked for, are as under torchrun."""
    beside.write("recorded.py", RECORDED)
    ours, theirs = beside.run([*BOTH, "recorded.py"], env={"TORCHELASTIC_ERROR_FILE": "reply.json"})
    assert (ours.returncode, theirs.returncode) == (1, 1), ours
    our_error, their_error = errors(beside, rank=1)
    assert our_error["message"] == their_error["message"] == "OwnError: spoilt by rank 1"
    assert set(our_error["extraInfo"]) == set(their_error["extraInfo"])
    for error in (our_error, their_error):
        assert "in fail" in error["extraInfo"]["py_callstack"] and error["extraInfo"]["timestamp"].isdigit()
    assert tuple(errors(beside, rank=0)) == (None, None)
    replies = [json.loads((starter.folder / "reply.json").read_text()) for starter in beside.starters.values()]
    assert [reply["message"]["message"] for reply in replies] == ["OwnError: spoilt by rank 1"] * 2
    assert set(replies[0]["message"]["extraInfo"]) == set(replies[1]["message"]["extraInfo"])
    for result in (ours, theirs):
        assert "OwnError: spoilt by rank 1" in result.stderr and "recorded.py" in result.stderr
    [incident] = ours.incidents
    assert (incident["cause"], [culprit["rank"] for culprit in incident["culprits"]]) == ("exception", [1])


def test_error_files_without_record(beside: Beside) -> None:
    """Under torchrun there is none; guardrun's ranks leave one with the traceback. Rank 0's peers are ended."""
    wishes = '{"raise": "no such data", "rank": 0, "others_stay": true}'
    ours, theirs = beside.run([*BOTH, "probe.py", wishes], env={"TORCHELASTIC_ERROR_FILE": "reply.json"})
    assert (ours.returncode, theirs.returncode) == (1, 1), ours
    our_error, their_error = errors(beside, rank=0)
    assert their_error is None
    assert our_error["message"] == "ValueError: no such data" and "in main" in our_error["extraInfo"]["py_callstack"]
    reply = json.loads((beside.starters["ours"].folder / "reply.json").read_text())
    assert reply["message"]["message"] == "ValueError: no such data"
    for result in (ours, theirs):  # the script's own traceback, once, as Python prints it
        assert (
            result.stderr.count("ValueError: no such data") >= 1
            and "Traceback (most recent call last)" in result.stderr
        )


@pytest.mark.parametrize(
    ("wish", "status"),
    [({"exit": 3}, 3), ({"signal": "SIGKILL"}, 137), ({"signal": "SIGSEGV"}, 139), ({"exit": 0}, 0)],
    ids=["exit-3", "SIGKILL", "SIGSEGV", "exit-0"],
)
def test_exit_statuses(beside: Beside, wish: dict[str, Any], status: int) -> None:
    """torchrun ends with 1 whatever the rank's status; guardrun with the rank's. Both end the other ranks."""
    ours, theirs = beside.run([*BOTH, "probe.py", json.dumps(wish | {"rank": 1, "others_stay": status != 0})])
    assert ours.returncode == status, ours
    assert theirs.returncode == (1 if status else 0), theirs
    assert len(ours.incidents) == (1 if status else 0)
    if status:
        assert "exitcode" in theirs.stderr and "rank 1" in ours.stderr.lower(), ours


def report(result: Finished) -> list[str]:
    """What the launcher says of failed ranks at its end, without times, pids and what stands in error files."""
    lines = result.stderr.splitlines()
    begin = next(n for n, line in enumerate(lines) if "ChildFailedError" in line and not line.startswith(" "))
    kept = [
        line for line in lines[begin:] if not line.startswith(("  time ", "  error_file", "  traceback", "[", "==="))
    ]
    # Its rules are as long as its longest line, which may be one with a pid.
    return [re.sub(r"^-{9,}$", "---", re.sub(r"pid: \d+", "pid", line).rstrip()) for line in kept]


@pytest.mark.parametrize("wish", [{"exit": 3}, {"signal": "SIGKILL"}], ids=["exit-3", "SIGKILL"])
def test_the_report_of_failed_ranks(beside: Beside, wish: dict[str, Any]) -> None:
    ours, theirs = beside.run([*BOTH, "probe.py", json.dumps(wish | {"rank": 1, "others_stay": True})])
    assert report(ours) == report(theirs), ours
    assert "Root Cause (first observed failure):" in report(ours) and "probe.py FAILED" in report(ours)
    assert ours.stderr.rstrip().endswith("=" * 20)


def test_functions_that_fail(beside: Beside) -> None:
    """--run-path: the exception of a function is shown, although no interpreter of its own prints it."""
    flags = ["--nproc-per-node=1", RESTARTS, "--log-dir=logs", "--run-path"]
    ours, theirs = beside.run([*flags, "probe.py", '{"raise": "bad function", "rank": 0}'])
    assert (ours.returncode, theirs.returncode) == (1, 1), ours
    our_error, their_error = errors(beside, rank=0)
    assert our_error["message"] == their_error["message"]
    for result in (ours, theirs):
        assert "bad function" in result.stderr


def test_restarts_run_out(beside: Beside) -> None:
    """--max-restarts=1: two attempts, then the rank's failure."""
    flags = ["--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "probe.py"]
    ours, theirs = beside.run([*flags, '{"exit": 9, "rank": 0, "others_stay": true}'])
    assert (ours.returncode, theirs.returncode) == (9, 1), ours
    our_ranks, their_ranks = beside.seen()
    assert set(our_ranks) == set(their_ranks) == {"0-0", "0-1", "1-0", "1-1"}
    assert ours.incidents[-1]["action"] == "give_up"


@pytest.mark.parametrize(
    ("script", "states"),
    [("[ $RANK = 0 ] && exit 3; sleep 60", ["FAILED", "FAILED"]), ("exit 0", ["SUCCEEDED", "SUCCEEDED"])],
)
def test_the_events_of_a_runs_end(beside: Beside, script: str, states: list[str]) -> None:
    flags = ["--nproc-per-node=2", RESTARTS, "--event-log-handler=console", "--no-python"]
    pair = beside.run([*flags, "sh", "-c", script])
    ours, theirs = ([event for event in read_events(result) if event["name"] in ENDS] for result in pair)
    assert [event["metadata"]["state"] for event in ours] == [*states, "SUCCEEDED"]
    for own, other in zip(ours, theirs, strict=True):
        for event in (own, other):
            for field in ("run_id", "worker_id", "total_run_time", "raw_error", "metadata"):
                event["metadata"].pop(field)
        assert own == other


ENDS = {f"torchelastic.worker.status.{state}" for state in ("FAILED", "TERMINATED", "SUCCEEDED")}


def read_events(result: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stderr.splitlines() if line.startswith('{"name": "torchelastic')]
