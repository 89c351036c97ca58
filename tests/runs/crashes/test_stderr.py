"""A stderr that is no file: what ranks wrote there last is in the verdict, and the user saw every byte of it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, EdgeRuns, finish, log_of, only, ranks_of
from tests.support.guardrun_run import GuardrunRun
from tests.support.outlet import guardrun_with
from tests.support.processes import is_alive, read_all
from tests.support.waiting import wait_until

WORDS = (
    r"Rank 1 on \S+ was ended by signal 6 \(SIGABRT\) in free_the_middle \(faults\.py:\d+\): free\(\): invalid pointer"
)
ABORTS = ("--plan", "0:free@15:1", "--steps", "30")
KINDS = {"pipe": "pipe", "pipe with stdout": "both", "terminal": "terminal"}


@pytest.mark.parametrize("name", KINDS)
def test_last_words_are_in_the_sentence_and_where_they_were_written(edge: EdgeRuns, name: str) -> None:
    """Long on a busy machine: two attempts."""
    finished = edge.run("plain.py", *ABORTS, config=RESUME, program=guardrun_with(KINDS[name]))
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["cause"], ranks_of(incident)) == ("abort", [1])
    assert re.match(WORDS, incident["summary"]), incident["summary"]
    assert "free(): invalid pointer" in incident["evidence"]["stderr"]
    seen = finished.stdout if name == "terminal" else finished.stderr
    assert seen.count("free(): invalid pointer") == 2, "as written, and in guardrun's sentence"
    assert seen.index("free(): invalid pointer") < seen.index("incident 001")


def test_switched_off_nothing_stands_between(edge: EdgeRuns) -> None:
    config = RESUME + "\n[launcher]\nkeep_stderr = false\n"
    finished = edge.run("plain.py", *ABORTS, config=config, program=guardrun_with("pipe"))
    assert "invalid pointer" not in only(finished)["summary"]
    assert "stderr" not in only(finished)["evidence"]
    assert finished.stderr.count("free(): invalid pointer") == 1


LINES = """
import os, time
rank = os.environ["RANK"]
for number in range(300):
    while number in (30, 130, 290) and not os.path.exists(f"go-{number}"):
        time.sleep(0.01)
    os.write(1 + number % 2, f"{rank}:{number}\\n".encode())  # print() to stderr writes the line's end by itself
    time.sleep(0.01)
"""


def relays(run: GuardrunRun) -> list[int]:
    """The process between, of this run's launcher."""
    mine = {process.pid for process in run.alive()}
    return [one.pid for one in read_all() if one.ppid in mine and "relay.py" in one.command and is_alive(one.pid)]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_without_the_process_between_no_rank_notices_and_no_line_is_missing(
    edge: EdgeRuns, tmp_path: Path, signum: signal.Signals
) -> None:
    script = tmp_path / "lines.py"
    script.write_text(LINES)
    run = edge.start(str(script), config=None, program=guardrun_with("both"))
    for number in (20, 120):
        run.wait_for_output(f"\n1:{number}\n")
        [pid] = wait_until(lambda: relays(run), 30, "the process between")
        os.kill(pid, signum)
        (run.folder / f"go-{number + 10}").touch()  # no rank ends before another process has taken its place
    wait_until(lambda: log_of(run).count('"relay_replaced"') == 2, 30, "another process between")
    (run.folder / "go-290").touch()
    finished = finish(run)
    assert (finished.returncode, finished.incidents) == (0, []), finished
    lines = [line for line in finished.stderr.splitlines() if re.fullmatch(r"[01]:\d+", line)]
    for rank in "01":
        assert [line for line in lines if line[0] == rank] == [f"{rank}:{number}" for number in range(300)]
    assert finished.run_dir is not None
    assert (finished.run_dir / "guardrun.log").read_text().count('"relay_replaced"') == 2
    wait_until(lambda: not [one for one in read_all() if "relay.py" in one.command and one.pid == pid], 30, "its end")


SAYS = """
import os, sys, time
rank, is_both = os.environ["RANK"], sys.argv[1] == "both"
told = [f"terminal: {os.isatty(2)} {os.isatty(1)}", f"outlets: {[name for name in os.environ if 'OUTLET' in name]}"]
for number, line in enumerate(told):
    # At once, as both write to one pipe: unbuffered, as it is here, print writes a line in pieces.
    os.write(1 if is_both and number else 2, f"{rank} {line}\\n".encode())
open(f"said-{rank}", "x").close()
if rank == "1":
    while not os.path.exists("said-0"):
        time.sleep(0.01)
    os.write(2, b"free(): invalid pointer\\n")
    os.abort()
time.sleep(600)  # until it is stopped for the other's end
"""


@pytest.mark.parametrize(
    ("name", "method"), [("pipe", "spawn"), ("pipe with stdout", "forkserver"), ("terminal", "spawn")]
)
def test_functions_as_ranks_have_outlets_of_their_own(edge: EdgeRuns, tmp_path: Path, name: str, method: str) -> None:
    """Long on a busy machine: multiprocessing's children import torch anew."""
    script = tmp_path / "says.py"
    script.write_text(SAYS)
    which = "one" if name == "pipe" else "both"
    flags = ("--run-path", f"--start-method={method}", "--max-restarts=0")
    finished = edge.run(str(script), which, flags=flags, config=None, program=guardrun_with(KINDS[name]))
    incident = only(finished)
    assert (incident["cause"], ranks_of(incident)) == ("abort", [1])
    assert "free(): invalid pointer" in incident["summary"]
    assert "free(): invalid pointer" in incident["evidence"]["stderr"]
    seen = finished.stdout if name == "terminal" else finished.stderr
    is_terminal = name == "terminal"
    for rank in "01":
        own = [line for line in seen.splitlines() if line.startswith(f"{rank} ")]
        assert own == [f"{rank} terminal: {is_terminal} {is_terminal}", f"{rank} outlets: []"], seen
