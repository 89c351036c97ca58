"""guardctl as a process: on a terminal, into a pipe, into a closed one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.report.incident import write_incident
from tests.cli.conftest import NODE, Ctl
from tests.report.samples import hang, run_file, wall

GUARDCTL = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl"]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "SLURMD_NODENAME": NODE, "TERM": "xterm", **changes}


def on_terminal(cwd: Path, *arguments: str, columns: int = 100, **changes: str) -> str:
    """What guardctl writes on a terminal that is so wide."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*GUARDCTL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(COLUMNS=str(columns), **changes),
        )
        os.close(theirs)
        found = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not data:
                break
            found += data
        _, errors = process.communicate(timeout=60)
    finally:
        os.close(ours)
    assert process.returncode == 0, errors.decode()
    assert errors == b""
    return found.decode()


def test_a_path_is_never_broken_in_two_and_sentences_end_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/folder/whose/name/is/much/longer/than/the/terminal/is/wide/report.html"
    Output(False, {"COLUMNS": "30"}).line(f"report: {path} says more of this than fits into a line\n\nend")
    assert capsys.readouterr().out == f"report:\n{path}\nsays more of this than fits\ninto a line\n\nend\n"


def test_colours_on_a_terminal_only(recorded: Path, tmp_path: Path) -> None:
    assert "\x1b[" in on_terminal(tmp_path, "status")
    assert "\x1b[3" not in on_terminal(tmp_path, "status", NO_COLOR="1")
    piped = subprocess.run(
        [*GUARDCTL, "status"], cwd=tmp_path, env=environment(), capture_output=True, check=True, timeout=60
    ).stdout.decode()
    assert "\x1b" not in piped
    assert not any(line.endswith(" ") for line in piped.splitlines())
    assert "7 ranks wait for it in all_reduce." in piped, "nothing is folded into a pipe"


@pytest.mark.parametrize("arguments", [("status",), ("incidents",), ("show", "1"), ("config",)])
def test_narrow_terminals(recorded: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    out = on_terminal(tmp_path, *arguments, columns=38, NO_COLOR="1", TERM="dumb")
    assert max(len(line.rstrip("\r")) for line in out.split("\n") if " " in line) <= 38, "but for a path"
    assert len(out.splitlines()) > 5


def test_text_from_ranks_cannot_drive_the_terminal(recorded: Path, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202ecod.exe\u2066\u200f[red]x"
    write_incident(recorded, hang(summary=evil, advice=evil, evidence={"traceback": evil}), run_file(), wall)
    for arguments in (("show", "1"), ("incidents",), ("status",)):
        out = on_terminal(tmp_path, *arguments)
        assert not any(
            steering in out for steering in ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\u200f")
        )
        assert "[red]x" in out
    out = on_terminal(tmp_path, "show", "1", "--json")
    assert json.loads(out)["summary"] == evil, "as JSON it is told whole"
    assert all(c.isprintable() or c in "\r\n" for c in out)


def test_a_reader_that_leaves(recorded: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*GUARDCTL, "show", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert errors == b""


@pytest.mark.parametrize("arguments", [("show", "1"), ("show", "1", "--json"), ("query", "SELECT 1")])
def test_where_there_is_no_room_for_the_answer(recorded: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*GUARDCTL, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
            timeout=240,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.decode() == "guardctl: the answer can't be written: No space left on device\n"


def test_no_torch_is_imported(tmp_path: Path) -> None:
    """guardctl answers at once, on a node without torch too."""
    code = (
        "import sys; from guardrun.supervisor.cli.guardctl import main; main(['config', '--json']); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_templates_are_loaded_for_a_page_alone(recorded: Path, tmp_path: Path) -> None:
    """They cost as much as all else that guardctl does."""
    code = """
import sys
from guardrun.supervisor.cli.guardctl import main
for verb in (["status"], ["incidents"], ["show", "1"], ["config"], ["replay"], ["report", "--json"]):
    assert main(verb) == 0, verb
    assert "jinja2" not in sys.modules, verb
assert main(["report"]) == 0
assert "jinja2" in sys.modules
"""
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shwo",), "invalid choice: 'shwo'"),
        (("show",), "the following arguments are required: INCIDENT"),
        (("node", "isolate"), "the following arguments are required: NODE"),
        (("check", "--nproc-per-node", "many"), "invalid int value: 'many'"),
    ],
)
def test_a_wrong_command_line_is_told_to_programs(ctl: Ctl, arguments: tuple[str, ...], said: str) -> None:
    assert said in ctl.json(*arguments, code=2)["error"]
    assert said in ctl.err and "usage: guardctl" in ctl.err
    assert ctl(*arguments, code=2) == "", "people read stderr"
