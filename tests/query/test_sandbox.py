"""What a query may do, what it may not, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from guardrun.supervisor.query.bounds import Bounds, FailedError, RefusedError
from guardrun.supervisor.query.sandbox import Sandbox
from guardrun.supervisor.query.table import INTEGER, JSON, TEXT, Table, columns
from tests.support.waiting import wait_until

STEPS = Table("steps", "", columns(("rank", INTEGER, ""), ("name", TEXT, ""), ("more", JSON, "")), "there are none")
BACKTRACE = Table("python.backtrace", "", columns(("rank", INTEGER, ""), ("func", TEXT, "")), "there are none")
TABLES = (STEPS, BACKTRACE)
FOREVER = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(TABLES, Bounds(rows=100, seconds=20.0))
    try:
        yield made
    finally:
        made.close()


def ask(sandbox: Sandbox, sql: str) -> list[tuple[object, ...]]:
    sandbox.compile(sql)
    return list(sandbox.run(sql).rows)


def test_rows_come_back(sandbox: Sandbox) -> None:
    assert sandbox.fill(STEPS, ([n, f"step {n}", '{"a": [1, 2]}'] for n in range(3))) == 3
    sandbox.fill(BACKTRACE, [(1, "main")])
    assert ask(sandbox, "SELECT rank, name FROM steps ORDER BY rank DESC LIMIT 1") == [(2, "step 2")]
    assert ask(sandbox, "select func from python.backtrace b join steps s using (rank);") == [("main",)]
    assert ask(sandbox, "SELECT func FROM backtrace -- by its short name") == [("main",)]
    assert ask(sandbox, "SELECT count(*), sum(j.value) FROM steps, json_each(more, '$.a') j") == [(6, 9)]
    assert ask(sandbox, "SELECT name FROM sqlite_master") == [("steps",)]
    assert ask(sandbox, "VALUES (1), (2)") == [(1,), (2,)]
    [(_, _, _, plan)] = ask(sandbox, "/* how */ EXPLAIN QUERY PLAN SELECT * FROM steps /* and why */")
    assert "SCAN" in str(plan)
    assert ask(sandbox, "WITH n(i) AS (VALUES (1), (2)), steps AS (SELECT 7) SELECT count(*) FROM n, steps") == [(2,)]
    assert ask(sandbox, f"{FOREVER.partition(' SELECT max')[0]} SELECT n FROM c LIMIT 2") == [(1,), (2,)]
    assert sandbox.run("SELECT rank AS a, 1 AS a FROM steps").columns == ["a", "a"]


def test_it_is_known_what_a_query_reads_before_it_is_run(sandbox: Sandbox) -> None:
    read = sandbox.compile("SELECT name FROM steps WHERE rank IN (SELECT rank FROM python.backtrace) AND more > ''")
    assert read == {"steps": {"name", "rank", "more"}, "python.backtrace": {"rank"}}
    assert sandbox.compile(FOREVER) == {}
    assert set(sandbox.compile("SELECT count(*) FROM steps")) == {"steps"}


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("INSERT INTO steps VALUES (1, 'x', '')", "INSERT is refused"),
        ('INSERT INTO main."steps" VALUES (?, ?, ?)', "INSERT is refused"),
        ("UPDATE steps SET rank = 2", "UPDATE is refused"),
        ("DELETE FROM steps", "DELETE is refused"),
        ("WITH x AS (SELECT 1) DELETE FROM steps", "DELETE is refused"),
        ("UPDATE sqlite_master SET sql = ''", "may not be modified"),
        ("CREATE TABLE t (a)", "CREATE is refused"),
        ("CREATE TEMP VIEW v AS SELECT 1", "a query only reads"),
        ("DROP TABLE steps", "DROP is refused"),
        ("ALTER TABLE steps RENAME TO s", "a query only reads"),
        ("ATTACH '/etc/passwd' AS x", "ATTACH is refused"),
        ("DETACH python", "DETACH is refused"),
        ("PRAGMA query_only = OFF", "PRAGMA is refused"),
        ("SELECT * FROM pragma_query_only(0)", "only the tables that"),
        ("-- a\nBEGIN IMMEDIATE", "BEGIN is refused"),
        ("SAVEPOINT a", "SAVEPOINT is refused"),
        ("VACUUM", "VACUUM is refused"),
        ("VACUUM INTO 'copy.db'", "a query only reads"),
        ("EXPLAIN VACUUM", "a query only reads"),
        ("ANALYZE", "a query only reads"),
        ("REINDEX", "a query only reads"),
        ("SELECT load_extension('x.so')", "load_extension() can't be called"),
        ("SELECT hex(zeroblob(1000000000))", "zeroblob() can't be called"),
        ("SELECT fts3_tokenizer('simple')", "fts3_tokenizer"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT 1; DROP TABLE steps", "one statement at a time"),
        ("", "there is no query"),
        (" -- nothing\n /* at all */ ;", "there is no query"),
        ("SELECT '\0'", "NUL"),
        ("SELECT " + "1," * 100_000 + "1", "100,000 characters"),
        ("SELECT 1" + " + 1" * 5000, "depth"),
        ("SELECT * FROM nobody", "no table nobody; there are: steps, python.backtrace"),
        ("SELECT colour FROM steps", "no such column: colour"),
        ("SELEKT 1", 'near "SELEKT": syntax error'),
        ("SELECT ?", "no parameters"),
        ("SELECT :a", "no parameters"),
        ("/* a */ SELECT 1; /* b */ explain select 1", "one statement at a time"),
        ("EXPLAIN EXPLAIN SELECT 1", "syntax error"),
        # Which of SQLite's own tables there are depends on how it was built.
        ("SELECT * FROM dbstat", ""),
        ("SELECT count(*) FROM dbstat", ""),
        ("SELECT count(*) FROM sqlite_stmt", ""),
        ("SELECT * FROM sqlite_dbpage", ""),
    ],
)
def test_what_is_no_query_is_refused_in_one_sentence(sandbox: Sandbox, sql: str, why: str) -> None:
    sandbox.fill(STEPS, [(1, "as it was", None)])
    with pytest.raises(RefusedError) as caught:
        sandbox.compile(sql)
    assert why in str(caught.value) and "\n" not in str(caught.value)
    # As if compiling had let it pass: what is run is asked about again.
    with suppress(FailedError):
        sandbox.run(sql)
    assert ask(sandbox, "SELECT rank, name FROM steps") == [(1, "as it was")]


def test_nothing_is_written_anywhere(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for sql in ("VACUUM INTO 'copy.db'", "ATTACH 'other.db' AS o", "ATTACH 'file:o.db?mode=rwc' AS o"):
        with pytest.raises(FailedError):
            sandbox.run(sql)
    assert list(tmp_path.iterdir()) == []


def test_an_endless_query_is_ended() -> None:
    sandbox = Sandbox(TABLES, Bounds(seconds=0.2))
    sandbox.fill(STEPS, ([n, "x", None] for n in range(1000)))
    began_s = time.monotonic()
    for sql in (FOREVER, "SELECT count(*) FROM steps a, steps b, steps c, steps d WHERE a.rank + b.rank < c.rank"):
        sandbox.compile(sql)
        with pytest.raises(FailedError, match=r"took longer than 0\.2 s"):
            sandbox.run(sql)
    assert time.monotonic() - began_s < 60
    assert ask(sandbox, "SELECT count(*) FROM steps") == [(1000,)], "the next one is answered"
    sandbox.close()


def test_an_answer_has_its_bounds() -> None:
    sandbox = Sandbox(TABLES, Bounds(rows=10))
    sandbox.fill(STEPS, ([n, "x" * 300_000, None] for n in range(120)))
    answer = sandbox.run("SELECT rank FROM steps ORDER BY rank")
    assert ([row[0] for row in answer.rows], answer.is_cut) == (list(range(10)), True)
    assert sandbox.run("SELECT rank FROM steps LIMIT 10").is_cut is False
    sandbox.close()
    sandbox = Sandbox(TABLES, Bounds())
    sandbox.fill(STEPS, ([n, "x" * 900_000, None] for n in range(60)))
    answer = sandbox.run("SELECT name FROM steps")
    assert answer.is_cut and 30 < len(answer.rows) < 40
    sandbox.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="only SQLite's memory bounds a text before Python 3.11")
@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t(s) AS (SELECT 'ab' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) "
        "SELECT length(group_concat(printf('%.*c', 1000, 'x'))) FROM n",
        "SELECT replace(printf('%.*c', 1000000, 'x'), 'x', printf('%.*c', 1000000, 'y'))",
        "SELECT 'a' LIKE printf('%.*c', 100000, '%')",
    ],
)
def test_values_have_their_bounds(sandbox: Sandbox, sql: str) -> None:
    sandbox.compile(sql)
    with pytest.raises(FailedError):
        sandbox.run(sql)


MEMORY = """
import sqlite3, sys
from guardrun.supervisor.query import sandbox
from guardrun.supervisor.query.bounds import Bounds, FailedError
from guardrun.supervisor.query.table import INTEGER, Table, columns
if sys.argv[1] == "old":  # as a SQLite that has no such limit answers
    class Old(sqlite3.Connection):
        def execute(self, sql, *more):
            return super().execute("SELECT 1 WHERE 0" if "hard_heap_limit" in sql else sql, *more)
    sandbox.sqlite3.connect = lambda *a, **k: Old(*a, **k)
steps = Table("steps", "", columns(("rank", INTEGER, "")), "")
made = sandbox.Sandbox((steps,), Bounds(memory_bytes=32 << 20, seconds=60))
made.fill(steps, ([n] for n in range(1000)))
try:
    made.run("SELECT DISTINCT a.rank, b.rank, c.rank FROM steps a, steps b, steps c ORDER BY 3 DESC")
except FailedError as error:
    print(error)
print(made.run("SELECT count(*) FROM steps").rows)
"""


@pytest.mark.parametrize("age", ["new", "old"])
def test_memory_has_its_bound(age: str) -> None:
    """In a process of its own: SQLite's limit lasts."""
    done = subprocess.run([sys.executable, "-c", MEMORY, age], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "it takes more than 32 MB of memory\n[(1000,)]\n", done


ENDLESS = """
import time
from guardrun.supervisor.query import sandbox
from guardrun.supervisor.query.bounds import Bounds
sandbox.GRACE_S = 0.1
made = sandbox.Sandbox((), Bounds(seconds=0.1))
made._connection.create_function("endless", 0, lambda: time.sleep(3600))
made.run("SELECT endless()")
"""


def test_a_call_that_nothing_interrupts_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "can't be interrupted: guardctl ends" in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_ends_a_query_and_no_more(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = threading.Event()
    before, is_over = signal.getsignal(signal.SIGINT), Sandbox._is_over

    def note(self: Sandbox) -> int:
        runs.set()
        return is_over(self)

    monkeypatch.setattr(Sandbox, "_is_over", note)

    def interrupt() -> None:
        wait_until(runs.is_set, 60.0, "the query")
        os.kill(os.getpid(), signal.SIGINT)

    waits = threading.Thread(target=interrupt)
    waits.start()
    sandbox.compile(FOREVER)
    with pytest.raises(KeyboardInterrupt):
        sandbox.run(FOREVER)
    waits.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert ask(sandbox, "SELECT 1") == [(1,)]


def test_cells_are_storable_whatever_they_are(sandbox: Sandbox) -> None:
    sandbox.fill(BACKTRACE, [(1, "ä" * 2_000_000)])
    sandbox.fill(
        STEPS, [(1 << 80, "a\udcff\x1b", "x" * 1_000_001), (-(1 << 63), ["no", "text"], None), (10**400, True, 2.5)]
    )
    assert ask(sandbox, "SELECT rank, name, more FROM steps") == [
        (float(1 << 80), "a\\udcff\x1b", None),
        (-(1 << 63), "['no', 'text']", None),
        (None, "1", "2.5"),
    ]
    assert ask(sandbox, "SELECT length(func) FROM backtrace") == [(1_000_000,)]
