"""The ring: bounded in rows and bytes, whole after a SIGKILL, set aside when it is spoilt."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.agent.history.downsampling import Downsampler, Point
from guardrun.supervisor.agent.history.history import Entry, History, Query, SpoiltError, read_file, set_aside
from guardrun.supervisor.agent.history.history_writer import HistoryWriter
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.health.base.readings import Readout, Sample
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    opened = History(path)
    yield opened
    opened.close()


def point(wall_s: float, subject: str = "gpu:0", value: float = 1.0) -> Point:
    return Point(subject, "temperature_c", wall_s, value, value, value, "")


def entry(wall_s: float, name: str = "xid", text: str = "", **data: Any) -> Entry:
    return Entry(wall_s, "happening", "gpu:0", name, text, data)


def test_what_is_written_is_read_in_its_order(history: History) -> None:
    history.write([point(1.0), point(2.0, "gpu:1")], [entry(1.0, text="Xid 63", code=63), entry(2.0, "mce")])
    data = history.read(Query())
    assert [(s["subject"], s["wall_s"]) for s in data["samples"]] == [("gpu:0", 1.0), ("gpu:1", 2.0)]
    assert [(e["name"], e["text"], e["data"]) for e in data["entries"]] == [
        ("xid", "Xid 63", {"code": 63}),
        ("mce", "", {}),
    ]


@pytest.mark.parametrize(
    ("query", "times"),
    [
        (Query(since_wall_s=3.0), [3.0, 4.0]),
        (Query(until_wall_s=1.0), [1.0]),
        (Query(limit=1), [4.0]),
        (Query(subject="gpu:1"), []),
        (Query(subject="gpu"), [1.0, 2.0, 3.0, 4.0]),
        (Query(name="other"), []),
        (Query(since_wall_s=float("nan"), limit=-5), [4.0]),
    ],
)
def test_queries(history: History, query: Query, times: list[float]) -> None:
    history.write([point(n) for n in (1.0, 2.0, 3.0, 4.0)], [])
    assert [s["wall_s"] for s in history.read(query)["samples"]] == times


def test_samples_are_left_out_where_one_kind_is_asked_for(history: History) -> None:
    history.write([point(1.0)], [entry(1.0), Entry(2.0, "finding", "gpu:0", "thermal")])
    assert [e["what"] for e in history.read(Query(what="finding"))["entries"]] == ["finding"]
    assert history.read(Query(what="finding"))["samples"] == []


def test_rows_stay_within_their_bound(path: Path) -> None:
    history = History(path, max_samples=100, max_entries=20)
    for n in range(60):
        history.write([point(float(n * 10 + i)) for i in range(10)], [entry(float(n))])
    rows = history.count()
    assert rows["samples"] <= 100
    assert rows["entries"] <= 20
    assert history.read(Query(limit=1))["samples"][0]["wall_s"] == 599.0
    history.close()
    again = History(path)
    assert {name: again.count()[name] for name in ("samples", "entries")} == {
        name: rows[name] for name in ("samples", "entries")
    }
    again.close()


def test_bytes_stay_within_their_bound(path: Path) -> None:
    bound = 600 * 1024
    history = History(path, max_bytes=bound)
    for n in range(300):
        history.write([point(float(n), f"disk:{n}-{i}") for i in range(5)], [entry(float(n), text="x" * 1500)] * 3)
    assert history.count()["bytes"] <= bound
    assert path.stat().st_size <= bound
    assert history.read(Query(limit=1))["entries"][0]["wall_s"] == 299.0
    history.close()


def test_series_that_no_sample_has_any_more_go(path: Path) -> None:
    history = History(path, max_samples=50)
    for n in range(200):
        history.write([point(float(n), f"disk:{n}")], [])
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM series").fetchone()[0] <= 60
    db.close()
    history.close()


def test_a_sigkill_in_the_middle_of_writing_loses_nothing_that_was_told(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from guardrun.supervisor.agent.history.history import Entry, History
history = History(Path(sys.argv[1]))
n = 0
while True:
    history.write([], [Entry(float(n), "happening", "node", "tick")])
    print(n, flush=True)
    n += 1
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 200:
            break
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait(60)
    history = History(path)
    times = [e["wall_s"] for e in history.read(Query(limit=10_000))["entries"]]
    assert times[: last + 1] == [float(n) for n in range(last + 1)]
    history.close()


@pytest.mark.parametrize("how", ["garbage", "truncated", "flipped", "newer", "empty pages"])
def test_a_spoilt_file_is_told_from_a_good_one_and_set_aside(path: Path, how: str) -> None:
    history = History(path)
    for n in range(50):
        history.write([point(float(n), f"gpu:{i}") for i in range(50)], [])
    history.close()
    data = bytearray(path.read_bytes())
    if how == "garbage":
        data = bytearray(os.urandom(8192))
    elif how == "truncated":
        data = data[: len(data) // 2]
    elif how == "flipped":
        data[4096:12288] = bytes(255 - byte for byte in data[4096:12288])
    elif how == "empty pages":
        data[8192:20480] = bytes(12288)
    else:
        data[60:64] = (99).to_bytes(4, "big")  # user_version, sqlite.org/fileformat.html
    path.write_bytes(data)
    with pytest.raises(SpoiltError):
        History(path)
    aside = set_aside(path)
    assert aside.read_bytes() == data
    fresh = History(path)
    fresh.write([], [entry(1.0)])
    assert len(fresh.read(Query())["entries"]) == 1
    fresh.close()


def test_what_an_earlier_version_wrote_is_kept(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE series (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, name TEXT NOT NULL,
                                 UNIQUE (subject, name));
            CREATE TABLE samples (id INTEGER PRIMARY KEY, series INTEGER NOT NULL, wall_s REAL NOT NULL,
                                  low REAL, high REAL, mean REAL, text TEXT NOT NULL);
            CREATE INDEX samples_by_series ON samples (series, wall_s);
            CREATE TABLE entries (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, what TEXT NOT NULL,
                                  subject TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL);
            INSERT INTO entries VALUES (1, 1.0, 'note', 'node', 'earlier', 'kept', '{"code": 63}');
            PRAGMA user_version = 1;
        """)
    assert [row["name"] for row in read_file(path, Query())["entries"]] == ["earlier"], "read, not changed"
    for number in range(2):  # begun, and begun again
        history = History(path)
        history.write([], [Entry(2.0, "job", f"job:{number}", "registered", uid=1)])
        rows = history.read(Query())["entries"]
        history.close()
    assert [row["subject"] for row in rows] == ["node", "job:0", "job:1"]
    assert rows[0]["data"] == {"code": 63}


def test_it_is_read_beside_its_writer_and_after_it(history: History, path: Path) -> None:
    history.write([point(1.0)], [entry(1.0)])
    assert len(read_file(path, Query())["entries"]) == 1
    assert len(read_file(path, Query())["samples"]) == 1


def test_text_that_is_no_unicode_and_data_without_end_are_kept_in_bounds(history: History) -> None:
    history.write([], [entry(1.0, text="\udcff" * 10_000, blob="x" * 1_000_000, code=63)])
    kept = history.read(Query())["entries"][0]
    assert kept["text"].startswith("\\udcff")
    assert kept["data"] == {"code": 63}


# Thinning --------------------------------------------------------------------------------------------------------


def readout(**values: float | str | bool | None) -> Readout:
    samples = [Sample(subject="gpu:0", name=name, value=value) for name, value in values.items()]
    return Readout(sensor="gpu", at_s=0.0, samples=samples)


def test_a_minute_becomes_a_line() -> None:
    thinner = Downsampler()
    for second in range(60):
        thinner.add(readout(temperature_c=40.0 + second % 3, state="P0"), 1000.0 + second)
        assert thinner.take_points(1000.0 + second) == []
    points = {p.name: p for p in thinner.take_points(1060.0)}
    assert points["temperature_c"] == Point("gpu:0", "temperature_c", 1000.0, 40.0, 42.0, 41.0, "")
    assert points["state"].text == "P0"


def test_what_does_not_change_is_written_now_and_then_only() -> None:
    thinner = Downsampler()
    written = 0
    for minute in range(120):
        thinner.add(readout(row_remap_pending=False), 60.0 * minute)
        written += len(thinner.take_points(60.0 * minute + 60))
    assert written == 4


def test_unknown_and_impossible_values_are_nothing() -> None:
    thinner = Downsampler()
    thinner.add(readout(a=None, b=float("nan"), c=float("inf"), d=1.0), 0.0)
    assert [p.name for p in thinner.take_points(100.0)] == ["d"]


@given(st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=40))
def test_a_clock_that_is_set_loses_no_sample_for_good(times: list[float]) -> None:
    thinner = Downsampler()
    taken = 0
    for wall_s in times:
        thinner.add(readout(value=wall_s), wall_s)
        taken += len(thinner.take_points(wall_s))
    taken += len(thinner.take_points(times[-1], is_end=True))
    assert taken >= 1


# The writer's thread ---------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.events.append(event)


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    writer = BackgroundWriter(patience_s=60.0)
    yield writer
    writer.close()


def test_a_trouble_is_told_once_and_what_waited_is_written_when_it_is_over(
    tmp_path: Path, writer: BackgroundWriter
) -> None:
    told = Told()
    folder = tmp_path / "state"
    historian = HistoryWriter(folder, writer, told, max_bytes=1 << 20, retry_s=0.0)
    for n in range(5):
        historian.put([], [entry(float(n))])
    wait_until(lambda: told.events, 10, "the trouble")
    assert writer.do(lambda: None)
    assert told.events == ["history_trouble"]
    folder.mkdir()
    historian.put([], [entry(5.0)])
    wait_until(lambda: "history_again" in told.events, 10, "its end")
    answers: list[dict[str, Any]] = []
    assert historian.ask(Query(), answers.append)
    wait_until(lambda: answers, 10, "an answer")
    assert [e["wall_s"] for e in answers[0]["entries"]] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    historian.close()
    assert writer.do(lambda: None)


def test_a_file_that_is_spoilt_while_it_is_open_is_set_aside_too(tmp_path: Path, writer: BackgroundWriter) -> None:
    told = Told()
    historian = HistoryWriter(tmp_path, writer, told, max_bytes=1 << 24, retry_s=0.0)
    try:
        spoil(historian, writer, tmp_path / "history.db")

        def goes_on() -> bool:
            historian.put([point(1.0, f"disk:{os.urandom(4).hex()}")], [entry(1.0)])
            return "history_set_aside" in told.events

        wait_until(goes_on, 20, "the new file")
        assert (tmp_path / "history.db.spoilt").exists()
    finally:
        historian.close()
        assert writer.do(lambda: None)


def spoil(historian: HistoryWriter, writer: BackgroundWriter, file: Path) -> None:
    """Fill it beyond what is cached, bring all of it to the file, and overwrite that."""
    for n in range(3000):
        historian.put([point(float(n), f"disk:{n}")], [entry(float(n), text="x" * 200)])
    assert writer.do(lambda: None)
    db = sqlite3.connect(file)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data = bytearray(file.read_bytes())
    assert len(data) > 600_000
    data[4096:] = os.urandom(len(data) - 4096)
    file.write_bytes(data)


def test_a_users_rows_push_out_that_users_own_alone(path: Path) -> None:
    history = History(path)
    try:
        history.write(
            [], [Entry(1.0, "job", "job:theirs", "registered", uid=2), Entry(1.0, "agent", "node", "started")]
        )
        for number in range(30):
            history.write([], [Entry(2.0, "job", f"job:{number}", "registered", uid=1) for _ in range(100)])
        rows = history.read(Query(limit=10_000))["entries"]
        assert [row["subject"] for row in rows[:2]] == ["job:theirs", "node"]
        assert 800 <= len(rows) - 2 <= 1000
        assert rows[-1]["subject"] == "job:29"
        assert history.count()["entries"] == len(rows)
    finally:
        history.close()
