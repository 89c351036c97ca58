"""What a script says of its secrets is in none of what guardrun keeps or says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.report.secrets import S
from tests.runs.runs import EdgeRuns, only
from tests.support.outlet import guardrun_with

SAYS = """
import os, sys
secret = sys.argv[2]
if sys.argv[4] == "raises":
    os.write(2, b"a line of the script's own\\n")
    try:
        raise ConnectionError(f"https://me:{secret}@host/x refused")
    except ConnectionError as error:
        raise RuntimeError(f"cannot log in: token={secret} Authorization: Bearer {secret}") from error
os.write(2, f"train.c:7: main: Assertion `login(--password={secret})' failed.\\n".encode())
os.abort()
"""


@pytest.mark.parametrize("how", ["raises", "aborts"])
def test_no_file_of_a_run_and_no_line_of_guardrun_s_has_one(edge: EdgeRuns, how: str) -> None:
    """The script's own stderr goes its way as it is."""
    (edge.folder / "says.py").write_text(SAYS)
    arguments = ("--password", S, "--how", how)
    finished = edge.run(
        str(edge.folder / "says.py"), *arguments, flags=("--max-restarts=0",), ranks=1, config=None,
        program=guardrun_with("pipe"),
    )  # fmt: skip
    incident = only(finished)
    assert incident["cause"] == ("exception" if how == "raises" else "abort")
    assert "(not recorded)" in incident["summary"]
    assert finished.run_dir is not None
    files = [path for path in finished.run_dir.rglob("*") if path.is_file() and path.name != ".owner"]
    assert {"events.jsonl", "incident.json", "report.html", "guardrun.log", "run.json"} <= {path.name for path in files}
    assert [path for path in files if S.encode() in path.read_bytes()] == []
    said = [line for line in finished.stderr.splitlines() if line.startswith("guardrun:")]
    assert said and not [line for line in said if S in line]
    assert any(S in line for line in finished.stderr.splitlines() if not line.startswith("guardrun:"))
    shown = subprocess.run(
        [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "incidents", str(finished.run_dir), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "(not recorded)" in shown.stdout and S not in shown.stdout
