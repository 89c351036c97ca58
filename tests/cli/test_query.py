"""`guardctl query`: what a person types, of a run that is over and of one whose supervisor answers."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.client.supervisor_client import Unreachable
from guardrun.supervisor.query.examples import EXAMPLES
from guardrun.supervisor.query.prompt import Completer, Prompt
from guardrun.supervisor.query.run_query import TABLES
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor, stacks_answer
from tests.report.samples import rank_look
from tests.support.waiting import wait_until

GUARDCTL = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl"]
STACKS = "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10"


# A run that is over -------------------------------------------------------------------------------------------------


def test_a_table(ctl: Ctl, recorded: Path) -> None:
    out = ctl("query", "SELECT rank, step, exitcode, phase FROM ranks ORDER BY rank")
    assert [line.split() for line in out.splitlines()] == [
        ["rank", "step", "exitcode", "phase"],
        ["0", "20", "train"],
        ["1", "20", "-9", "train"],
    ]
    assert ctl.err == "guardctl: ranks: as the journal leaves it (the run is over)\n"


def test_columns_without_a_value_are_there_all_the_same(ctl: Ctl, recorded: Path) -> None:
    assert ctl("query", "SELECT NULL AS none, '' AS empty, 1 AS one").split() == ["none", "empty", "one", "1"]


@pytest.mark.parametrize("flag", [["--json"], ["--format", "json"], ["--format=json", "--json"]])
def test_json(ctl: Ctl, recorded: Path, flag: list[str]) -> None:
    sql = "SELECT id, cause, id, 1e999, x'ff00', NULL AS n FROM incidents ORDER BY id"
    data = msgspec.json.decode(ctl("query", sql, *flag))
    assert data["columns"] == ["id", "cause", "id_2", "1e999", "x'ff00'", "n"]
    assert [list(row.values())[:3] for row in data["rows"]] == [
        ["001", "rank_blocked", "001"],
        ["002", "exception", "002"],
    ]
    assert list(data["rows"][0].values())[3:] == ["inf", "ff00", None]
    assert (data["run_id"], data["is_cut"], data["notes"], data["as_of"]) == ("vocab-1", False, [], {})


def test_csv(ctl: Ctl, recorded: Path) -> None:
    out = ctl("query", "SELECT 'a,\"b\n\x1b[2J' AS text, 1.5 AS n, NULL AS gone", "--format", "csv")
    assert list(csv.reader(io.StringIO(out))) == [["text", "n", "gone"], ['a,"b\n\\x1b[2J', "1.5", ""]]


def test_rows_that_are_left_out_are_named(ctl: Ctl, recorded: Path) -> None:
    out = ctl("query", "SELECT n FROM events", "--rows", "2", "--format", "csv")
    assert out == "n\n0\n1\n"
    assert "more rows were left out: these are the first 2; --rows N shows more" in ctl.err
    assert ctl.json("query", "SELECT n FROM events", "--rows", "2")["is_cut"] is True


def test_nothing_that_a_run_says_reaches_the_terminal_as_it_is(ctl: Ctl, recorded: Path) -> None:
    (recorded / "incidents" / "001-rank_blocked" / "incident.json").write_text(
        json.dumps({"id": "\x1b]0;x\x07\u202e", "summary": "<script>alert(1)</script>\r\x9b2J", "cause": "a\nb"})
    )
    sql = "SELECT id, summary, cause FROM incidents"
    for form in ("table", "json", "csv"):
        out = ctl("query", sql, "--format", form)
        assert not set(out) & set("\x1b\x07\u202e\r\x9b"), form
        assert "<script>alert(1)</script>" in out
    assert "a b" in ctl("query", sql)


def test_stdin_is_read_where_there_is_no_query(ctl: Ctl, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("-- how many?\nSELECT count(*) AS n\nFROM events;\n"))
    assert ctl("query", "--format", "csv") == "n\n5\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1; SELECT 2"))
    ctl("query", code=2)
    assert ctl.err == "guardctl: one statement at a time\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    ctl("query", code=2)
    assert "there is no query" in ctl.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * ((1 << 20) + 1)))
    ctl("query", code=2)
    assert "more than 1,048,576 characters" in ctl.err


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["DROP TABLE steps"], 2, "DROP is refused"),
        (["ATTACH 'x.db' AS x"], 2, "ATTACH is refused"),
        (["SELECT * FROM nobody"], 2, "no table nobody; there are: ranks, steps"),
        (["SELECT speed FROM steps"], 2, "no such column: speed; steps has: rank, node"),
        (["SELECT 1", "--timeout", "0"], 2, "--timeout"),
        (["SELECT 1", "--rows", "0"], 2, "--rows"),
        (["SELECT 1", "--format", "xml"], 2, "--format"),
        (["--schema", "nobody"], 2, "no table nobody"),
        (["SELECT 1", "--run", "nobody"], 1, "no run nobody"),
        (["SELECT json('{')"], 1, "malformed JSON"),
        (["SELECT sum(length(s)) FROM (SELECT 'x' AS s UNION ALL SELECT abs(-9223372036854775808))"], 1, "overflow"),
        (
            [
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c",
                "--timeout",
                "0.1",
            ],
            1,
            "the query took longer than 0.1 s: --timeout gives it more",
        ),
    ],
)
def test_what_is_refused_and_what_fails(ctl: Ctl, recorded: Path, arguments: list[str], code: int, why: str) -> None:
    assert ctl("query", *arguments, code=code) == ""
    assert why in ctl.err and (code == 2 or ctl.err.count("\n") == 1)
    if "--format" not in arguments:
        assert why.partition(";")[0] in msgspec.json.decode(ctl("query", *arguments, "--json", code=code))["error"]


def test_schema_and_examples(ctl: Ctl, runs: Path) -> None:
    """Without any run."""
    out = ctl("query", "--schema")
    assert all(f"\n{table.name}" in f"\n{out}" for table in TABLES)
    assert "waiting_s  REAL     of that: waiting for other ranks" in ctl("query", "--schema", "steps")
    assert ctl("query", "--schema", "backtrace").startswith("python.backtrace (of a living run: now)")
    [table] = ctl.json("query", "--schema", "gpu")["tables"]
    assert [column["name"] for column in table["columns"]] == ["at_s", "node", "device", "rank", "name", "value"]
    assert len(ctl.json("query", "--schema")["tables"]) == len(TABLES)
    assert ctl("query", "--examples").count(";\n") == len(EXAMPLES) == len(ctl.json("query", "--examples")["examples"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.about)
def test_examples_can_be_asked(ctl: Ctl, recorded: Path, example: Any) -> None:
    ctl("query", example.sql)


def test_only_a_query_loads_sqlite(recorded: Path) -> None:
    code = """
import sys
from guardrun.supervisor.cli.guardctl import main
main(sys.argv[1:])
print(sorted({"sqlite3", "readline", "guardrun.supervisor.query"} & set(sys.modules)), file=sys.stderr)
"""
    loaded = {}
    for verb in (["status"], ["incidents"], ["query", "SELECT 1"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *verb],
            cwd=recorded.parents[1],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        loaded[verb[0]] = done.stderr.splitlines()[-1]
    assert loaded == {"status": "[]", "incidents": "[]", "query": "['guardrun.supervisor.query', 'sqlite3']"}


# A living run -------------------------------------------------------------------------------------------------------


def test_stacks_are_asked_for_when_they_are_named(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([0, 1])
    ctl("query", "SELECT count(*) FROM incidents, events, steps")
    ctl("query", "SELECT nonsense FROM python.backtrace", code=2)
    assert live.asked == []
    data = ctl.json("query", STACKS)
    assert [one.verb for one in live.asked] == ["status", "stacks"]
    assert data["columns"] == ["func", "file", "lineno", "depth"] and len(data["rows"]) == 10
    assert 0 <= data["as_of"]["python.backtrace"]["age_s"] < 60
    assert data["notes"][0].startswith("python.backtrace: as of ") and data["notes"][0].endswith(" s ago")
    assert data["notes"][1:] == ["rank 7 could not be looked at: it is gone"]


def test_tables_of_one_look_are_of_one_moment(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([0, 1])
    sql = "SELECT r.rank, r.step, r.loss, t.func, w.state FROM ranks r JOIN threads t USING (rank) "
    sql += "JOIN workers w USING (rank) WHERE t.is_main AND t.is_rank ORDER BY 1"
    data = ctl.json("query", sql)
    assert [one.verb for one in live.asked] == ["status", "stacks"]
    assert [list(row.values()) for row in data["rows"]] == [
        [0, 120, 2.5, "all_reduce", "S"],
        [1, 121, 2.5, "readinto", "D"],
    ]
    assert set(data["as_of"]) == {"ranks", "threads", "workers"}
    assert data["notes"][0].startswith("ranks, threads, workers: as of ")


def test_batches_are_the_journals_and_those_of_now(ctl: Ctl, live: FakeSupervisor, runs: Path) -> None:
    looks = [msgspec.structs.replace(rank_look(rank), batch={"batch": 7 + rank}) for rank in range(2)]
    live.answers["stacks"] = Answer(is_ok=True, data={"ranks": msgspec.to_builtins(looks), "missing": {}})
    data = ctl.json("query", "SELECT rank, batch, attempt FROM batches ORDER BY rank")
    assert [list(row.values()) for row in data["rows"]] == [[0, 7, 1], [1, 8, 1]]


def test_ranks_alone_need_no_look(ctl: Ctl, live: FakeSupervisor) -> None:
    assert ctl("query", "SELECT rank, state, hooks FROM ranks", "--format", "csv") == "rank,state,hooks\n0,R,1\n1,T,0\n"
    assert [one.verb for one in live.asked] == ["status"]


@pytest.mark.parametrize(
    ("stacks", "why"),
    [
        (Answer(is_ok=False, error="no rank is alive"), "no rank is alive"),
        (Answer(is_ok=True, data={"ranks": [{"strange": 1}]}), "not one of this version"),
        (Answer(is_ok=True, data={"ranks": [], "missing": [], "nodes": {"x": 1}}), "not one of this version"),
    ],
)
def test_a_supervisor_that_has_no_stacks(ctl: Ctl, live: FakeSupervisor, stacks: Answer, why: str) -> None:
    live.answers["stacks"] = stacks
    notes = ctl.json("query", STACKS)["notes"]
    assert why in notes[0] and "python.backtrace is empty" in notes[-1]


def test_a_supervisor_that_says_nothing(
    ctl: Ctl, live: FakeSupervisor, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept is shown, and why it is no newer."""

    def ask(*_: object) -> Answer:
        raise Unreachable("its supervisor did not answer within 5 s")

    monkeypatch.setattr("guardrun.supervisor.cli.verbs.query.ask", ask)
    stacks = runs / "live-1" / "incidents" / "001-x" / "stacks"
    stacks.mkdir(parents=True)
    (stacks.parent / "incident.json").write_text("{}")
    (stacks / "rank-0-pid-7.txt").write_text(
        'rank 0, pid 7 (the rank itself): x\n\nThread 7 (main), most recent call last:\n  File "a.py", line 3, in f\n'
    )
    data = ctl.json("query", STACKS)
    assert [list(row.values()) for row in data["rows"]] == [["f", "a.py", 3, 0]]
    assert "as of the look of incident 001" in data["notes"][0]
    assert "its supervisor did not answer within 5 s" in data["notes"][0]
    assert ctl.json("query", "SELECT * FROM ranks")["notes"][0].endswith("did not answer within 5 s)")


def test_what_a_query_of_many_ranks_takes_beyond_the_look(ctl: Ctl, live: FakeSupervisor) -> None:
    """A thousand ranks' stacks: seconds of work would show even on a busy machine."""
    live.answers["stacks"] = stacks_answer(list(range(1000)))
    began_s = time.process_time()
    assert ctl("query", "SELECT count(DISTINCT rank) AS n FROM python.backtrace", "--format", "csv") == "n\n1000\n"
    assert time.process_time() - began_s < 5


# The prompt ---------------------------------------------------------------------------------------------------------


def typed(*lines: str | type[BaseException]) -> tuple[list[str], list[str]]:
    """What a prompt makes of these lines: what it runs, and the prompts that it shows."""
    said: list[str] = []
    shown: list[str] = []
    waiting = list(lines)

    def read(prompt: str) -> str:
        shown.append(prompt)
        line = waiting.pop(0) if waiting else EOFError
        if isinstance(line, str):
            return line
        raise line

    commands = {name: lambda rest, name=name: said.append(f"{name} {rest}") for name in (".schema", ".help")}
    Prompt(read, said.append, commands).loop()
    return said, shown


def test_statements_may_have_several_lines() -> None:
    said, shown = typed("SELECT 1;", "", "SELECT ';", "' -- ;", ", 2;", "SELECT 3", "")
    assert said == ["SELECT 1;", "SELECT ';\n' -- ;\n, 2;", "SELECT 3\n"]
    assert [prompt.strip() for prompt in shown] == ["query>"] * 3 + ["...>"] * 2 + ["query>", "...>", "query>"]


def test_commands_of_the_prompt() -> None:
    assert typed(".schema steps", " .schema ", ".what", ".quit", "SELECT 1;")[0] == [
        ".schema steps",
        ".schema ",
        ".help ",
    ]
    assert typed("SELECT", ".quit", KeyboardInterrupt, "SELECT 2;", ".exit")[0] == ["SELECT 2;"]


def test_completion() -> None:
    completer = Completer(TABLES, (".schema", ".quit"))
    assert completer.words("python.", "SELECT func FROM ") == ["python.backtrace", "python.torch_trace"]
    assert completer.words("wai", "SELECT rank FROM steps WHERE ") == ["waiting_s"]
    assert completer.words("sel", "") == ["select"] and completer.words("Sel", "")[0] == "SELECT"
    assert completer.words("gc", "SELECT * FROM memory WHERE ") == []
    assert completer.words(".s", "") == [".schema"] and completer.words(".s", "SELECT 1") == []


class Terminal:
    """guardctl at a terminal of its own."""

    def __init__(self, cwd: Path, home: Path) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            environ = {**os.environ, "HOME": str(home), "TERM": "dumb", "COLUMNS": "200", "INPUTRC": "/dev/null"}
            os.execvpe(GUARDCTL[0], [*GUARDCTL, "query"], environ)
        os.set_blocking(self._fd, False)
        self.seen = ""

    def type(self, text: str, until: str) -> str:
        """Type, and answer what is shown until it is this, and then the prompt.

        Before the prompt nobody reads keys: Ctrl-D would be lost, and Ctrl-C would take with it what was typed before.
        """
        at = len(self.seen)
        os.write(self._fd, text.encode())
        shown = re.compile(f"{re.escape(until)}.*query> $", re.DOTALL)
        wait_until(lambda: self._read() and shown.search(self.seen, at), 60.0, f"{until!r} after {text!r}")
        return self.seen[at:]

    def begin(self, query: str) -> None:
        """Type a query without end, and have it run."""
        os.write(self._fd, query.encode() + b"\n")
        # It is watched by a thread.
        wait_until(lambda: self._read() and len(os.listdir(f"/proc/{self._pid}/task")) > 1, 60.0, "the query")

    def _read(self) -> bool:
        with suppress(OSError):
            self.seen += os.read(self._fd, 65536).decode(errors="replace").replace("\r", "")
        return True

    def end(self) -> int:
        """Type Ctrl-D, and answer the exit code."""
        os.write(self._fd, b"\x04")
        wait_until(self._has_ended, 60.0, "its end")
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _has_ended(self) -> bool:
        self._read()
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """Whatever has become of it."""
        os.close(self._fd)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


@pytest.fixture
def terminal(recorded: Path, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "home").mkdir()
    opened = Terminal(recorded.parents[1], tmp_path / "home")
    try:
        yield opened
    finally:
        opened.close()


def test_at_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("", "Run vocab-1")
    assert "7919" in terminal.type("SELECT 7919 AS prime\n;\n", "1 row\n")
    assert "python.torch_trace" in terminal.type("SELECT count(*) FROM python.to\t;\n", "is empty: no module times")
    assert "DELETE is refused" in terminal.type("DELETE FROM steps;\n", "SELECT is what there is")
    assert "waiting_s" in terminal.type(".schema steps\n", "garbage collections")
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c;"
    terminal.begin(endless)
    terminal.type("\x03", "interrupted")
    assert "6841" in terminal.type("SELECT 6841;\n", "1 row\n")
    assert terminal.end() == 0
    assert list((tmp_path / "home").iterdir()) == []


def test_ctrl_c_ends_one_query(recorded: Path) -> None:
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
    with subprocess.Popen(
        [*GUARDCTL, "query", endless, "--timeout", "600"],
        cwd=recorded.parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # A query is watched by a thread.
        wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1, 60.0, "the query")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")
