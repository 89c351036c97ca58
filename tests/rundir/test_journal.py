"""The journal: what is written can be replayed, whatever a kill or a full disk left of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.rundir import journal as jn
from guardrun.supervisor.rundir.journal_end import read_end
from tests.support.journals import set_version

RANKS = [ev.Rank(global_rank=n, local_rank=n, pid=100 + n, node="node-a") for n in range(2)]


def story(extra_reports: int = 3) -> list[tuple[float, ev.Event]]:
    """A run in which rank 1 is killed, up to the choice of a checkpoint."""
    opened = ev.RunOpened(
        run_id="r", settings=ev.Settings(), node="node-a", command=["guardrun"], world_size=2, wall_s=1.0
    )
    events: list[tuple[float, ev.Event]] = [(0.0, opened), (1.0, ev.AttemptStarted(attempt=0, ranks=RANKS))]
    for n in range(1, extra_reports + 1):
        reports = [ev.RankReport(global_rank=r, progress=n, progress_s=1.0 + n, step=n) for r in range(2)]
        events.append((1.5 + n, ev.NodeReport(node="node-a", attempt=0, ranks=reports)))
    at_s = 3.0 + extra_reports
    events += [
        (at_s, ev.RankExited(attempt=0, global_rank=1, pid=101, exitcode=-9, at_s=at_s)),
        (at_s + 0.1, ev.AttemptStopped(attempt=0, exitcodes={0: -15, 1: -9}, stopped_by_us=[0])),
        (at_s + 0.2, ev.ExitsRead(attempt=0, traces=[])),
    ]
    return events


def write(run_dir: Path, events: list[tuple[float, ev.Event]], rotate_bytes: int = jn.ROTATE_BYTES) -> Engine:
    engine, journal = Engine(), jn.Journal(run_dir, rotate_bytes=rotate_bytes)
    for now_s, event in events:
        journal.append(event, engine.handle(event, now_s), engine.last_s)
        journal.rotate_if_large(engine)
    journal.close()
    return engine


def test_a_replay_reaches_the_same_decisions_and_the_same_state(tmp_path: Path) -> None:
    engine = write(tmp_path, story())
    assert engine.state.phase is Phase.CHOOSING

    result = jn.replay(tmp_path)
    assert result.mismatches == []
    assert result.events == len(story())
    assert result.decisions > 0
    recovered, _ = jn.recover(tmp_path)
    assert recovered.snapshot() == engine.snapshot()


def test_a_journal_that_says_something_else_is_found_out(tmp_path: Path) -> None:
    write(tmp_path, story())
    path = tmp_path / jn.NAME
    lines = path.read_bytes().splitlines()
    index = next(n for n, line in enumerate(lines) if b"stop_attempt" in line)
    lines[index] = lines[index].replace(b'"type":"stop_attempt"', b'"type":"read_exits"')
    path.write_bytes(b"\n".join(lines) + b"\n")

    result = jn.replay(tmp_path)
    assert len(result.mismatches) == 1
    assert "RankExited" in result.mismatches[0]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_set_aside_and_the_next_is_not_glued_to_it(tmp_path: Path, cut: int) -> None:
    write(tmp_path, story())
    path = tmp_path / jn.NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])

    engine, result = jn.recover(tmp_path)
    journal = jn.Journal(tmp_path, result.last_number + 1)
    restarted = ev.SupervisorRestarted()
    journal.append(restarted, engine.handle(restarted, 99.0), 99.0)
    journal.close()

    result = jn.replay(tmp_path)
    # Only the line break lost: the line itself is whole.
    assert result.set_aside == (0 if cut == 1 else 1)
    assert result.mismatches == []
    assert result.last_s == 99.0


def test_each_rotated_file_begins_with_a_snapshot_and_disk_use_is_bounded(tmp_path: Path) -> None:
    engine = write(tmp_path, story(extra_reports=400), rotate_bytes=8000)

    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [jn.NAME, *(f"{jn.NAME}.{n}" for n in range(1, jn.KEEP))]
    first = msgspec.json.decode((tmp_path / jn.NAME).read_bytes().splitlines()[0])
    assert "snapshot" in first
    recovered, _ = jn.recover(tmp_path)
    assert recovered.snapshot() == engine.snapshot()
    result = jn.replay(tmp_path)
    assert result.mismatches == []


def test_an_event_that_made_the_engine_raise_cannot_kill_twice(tmp_path: Path) -> None:
    write(tmp_path, story())
    journal = jn.Journal(tmp_path, 99)
    journal.append_error(ev.HoldSet(is_held=True, who="me"), "ValueError('x')", 50.0)
    journal.close()

    engine, result = jn.recover(tmp_path)
    assert result.set_aside == 1
    assert not engine.state.is_held


def test_a_folder_that_cannot_be_written_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    journal = jn.Journal(tmp_path / "gone")
    journal.append(ev.Ticked(), [], 1.0)
    assert journal.dropped == 1
    assert "No such file" in journal.trouble
    journal.close()


OTHER_VERSIONS = [jn.NO_VERSION, jn.JOURNAL_VERSION + 1]


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_a_journal_of_another_version_is_not_replayed(tmp_path: Path, version: int) -> None:
    write(tmp_path, story())
    set_version(tmp_path / jn.NAME, version)
    engine, result = jn.recover(tmp_path)
    assert engine.state.phase is Phase.NEW
    assert (result.is_other, result.other_version, result.left_out) == (True, version, len(story()))
    assert (result.events, result.mismatches, result.set_aside) == (0, [], 0)
    assert (result.last_number, result.last_s) == (len(story()) - 1, story()[-1][0]), "its numbers and times go on"
    replayed = jn.replay(tmp_path)
    assert (replayed.events, replayed.left_out, replayed.mismatches) == (0, len(story()), [])


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_what_is_written_behind_it_is_replayed_by_itself(tmp_path: Path, version: int) -> None:
    """The guardrun that goes on begins with a new engine, and so does whoever reads it later: an older one, too."""
    write(tmp_path, story())
    set_version(tmp_path / jn.NAME, version)
    engine = write(tmp_path, story()[:-1])
    recovered, result = jn.recover(tmp_path)
    assert recovered.snapshot() == engine.snapshot()
    assert not result.is_other and result.left_out == len(story()) and result.mismatches == []
    assert jn.replay(tmp_path).events == len(story()) - 1

    for_another = [line for line in (tmp_path / jn.NAME).read_bytes().splitlines(keepends=True) if b'"v":1' in line]
    (tmp_path / jn.NAME).write_bytes(b"".join(for_another))
    after = tmp_path / "after"
    after.mkdir()
    write(after, story())
    set_version(after / jn.NAME, version)
    with open(tmp_path / jn.NAME, "ab") as file:
        file.write((after / jn.NAME).read_bytes())
    recovered, result = jn.recover(tmp_path)
    assert recovered.state.phase is Phase.NEW and result.is_other, "what this one knows of the run is out of date"


def test_lines_that_only_another_version_can_read_are_its_own(tmp_path: Path) -> None:
    (tmp_path / jn.NAME).write_text(
        '{"v":9,"n":0,"t":1.0,"snapshot":[]}\n'
        '{"v":9,"n":1,"t":2.0,"event":{"type":"moon_rose"},"actions":[{"type":"howl"}]}\n'
        f'{{"v":{jn.JOURNAL_VERSION},"n":2,"t":3.0,"event":{{"type":"moon_rose"}}}}\n'
    )
    lines = list(jn.read_lines(tmp_path))
    assert [line and (line.v, line.n, line.t) for line in lines] == [(9, 0, 1.0), (9, 1, 2.0), None]
    _, result = jn.recover(tmp_path)
    assert (result.left_out, result.other_version, result.set_aside) == (2, 9, 1)


def test_events_of_another_version_are_shown_to_who_asks_for_them(tmp_path: Path) -> None:
    write(tmp_path, story())
    set_version(tmp_path / jn.NAME, 9)
    seen: list[ev.Event] = []
    jn.recover(tmp_path, lambda event, now_s: seen.append(event))
    assert seen == []
    jn.recover(tmp_path, lambda event, now_s: seen.append(event), watch_others=True)
    assert seen == [event for _, event in story()]


def test_how_a_run_ended_is_read_without_a_replay(tmp_path: Path) -> None:
    assert read_end(tmp_path) == ("", False)
    at_s = story()[-1][0]
    stopped = ev.StopRequested(signum=2)
    write(tmp_path, [*story(), (at_s + 1.0, stopped)])
    assert read_end(tmp_path) == ("interrupted", False)
    (tmp_path / jn.NAME).rename(tmp_path / f"{jn.NAME}.1")
    assert read_end(tmp_path) == ("interrupted", False), "the newest file was never written"
    journal = jn.Journal(tmp_path)
    continued = ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=1.0)
    journal.append(continued, [], at_s + 2.0)
    journal.close()
    assert read_end(tmp_path) == ("", False), "a guardrun went on behind it"


@pytest.mark.parametrize("newest", [None, b"", b'{"n": 7, "t": 1.0, "snapsh'])
def test_where_its_newest_file_was_never_written_the_one_before_tells(tmp_path: Path, newest: bytes | None) -> None:
    """Whoever rotated it was killed, or the disk was full."""
    engine = write(tmp_path, story())
    (tmp_path / jn.NAME).rename(tmp_path / f"{jn.NAME}.1")
    if newest is not None:
        (tmp_path / jn.NAME).write_bytes(newest)
    recovered, _ = jn.recover(tmp_path)
    assert recovered.snapshot() == engine.snapshot()
