"""The desk: what ranks say becomes events; what is malformed, or a stranger's, is counted and dropped."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire import messages as msg
from guardrun.hooks.wire.board import MAGIC, Field, Milestone, board_name, create_board
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
from guardrun.supervisor.wire.control_messages import MAX_SHARES, shares_json


class Bench:
    """A desk with one rank, and what it was told."""

    def __init__(self, sockets: Path) -> None:
        self.clock = EngineClock(0.0, time.monotonic())
        self.sampler = Sampler(self.clock, sockets)
        self.saved: list[tuple[str, int, float, int, int]] = []
        self.loaded: list[msg.CheckpointLoaded] = []
        self.ingest = RankMessageIngest(
            self.clock, self.sampler, lambda *said: self.saved.append(said), self.loaded.append
        )
        create_board(str(sockets / board_name(0, 0)))
        self.rank = ev.Rank(global_rank=0, local_rank=0, pid=os.getpid(), node="node-a")
        self.sampler.attempt_started(0, [self.rank])
        self.ingest.attempt_started(0, [self.rank], None)

    def say(self, message: msg.RankMessage) -> list[ev.Event]:
        return self.ingest.receive(msgspec.msgpack.encode(message))


@pytest.fixture
def bench(tmp_path: Path):  # type: ignore[no-untyped-def]
    bench = Bench(tmp_path)
    yield bench
    bench.sampler.close()


def test_ten_thousand_malformed_messages_are_counted_and_slow_nothing(bench: Bench) -> None:
    began = time.process_time()
    for n in range(10_000):
        assert bench.ingest.receive(os.urandom(n % 200)) == []
    assert bench.ingest.malformed == 10_000
    assert time.process_time() - began < 2
    assert bench.say(msg.Ended(attempt=0, global_rank=0, pid=1, at_ns=1)) == [ev.RankEnded(attempt=0, global_rank=0)]


def test_another_attempts_words_are_a_strangers(bench: Bench) -> None:
    assert bench.say(msg.Ended(attempt=7, global_rank=0, pid=1, at_ns=1)) == []
    assert bench.say(msg.Ended(attempt=0, global_rank=9, pid=1, at_ns=1)) == []
    assert bench.ingest.strangers == 2


def test_what_a_rank_says_before_it_is_known_to_be_started_is_heard_then(bench: Bench) -> None:
    loaded = msg.CheckpointLoaded(attempt=1, global_rank=0, pid=1, path="/x/ckpt_10.pt", reader="torch.load")
    assert bench.say(loaded) == []
    assert bench.say(msg.Ended(attempt=1, global_rank=0, pid=1, at_ns=1)) == []
    assert bench.say(msg.Ended(attempt=1, global_rank=9, pid=1, at_ns=1)) == []
    assert bench.ingest.take_early() == [], "it is not known yet"
    assert (bench.loaded, bench.ingest.strangers) == ([], 0)
    bench.ingest.attempt_started(1, [bench.rank], None)
    assert bench.ingest.take_early() == [ev.RankEnded(attempt=1, global_rank=0)]
    assert (bench.loaded, bench.ingest.strangers) == ([loaded], 1), "a rank that is none is a stranger all the same"
    assert bench.ingest.take_early() == []


def test_ranks_that_have_ended_are_known_until_the_next_attempt(bench: Bench) -> None:
    """The launcher says every few seconds who is alive; what the others left is still to be read."""
    other, stranger = (ev.Rank(global_rank=n, local_rank=n, pid=os.getpid(), node="node-a") for n in (1, 2))
    bench.ingest.attempt_started(0, [bench.rank, other], None)
    assert bench.ingest.knows(0, [bench.rank]) and bench.ingest.knows(0, [bench.rank, other])
    assert not bench.ingest.knows(1, [bench.rank]) and not bench.ingest.knows(0, [bench.rank, stranger])


def test_a_save_is_told_to_the_engine_and_to_the_chooser(bench: Bench) -> None:
    now_ns = time.monotonic_ns()
    saved = msg.CheckpointSaved(
        attempt=0,
        global_rank=0,
        pid=1,
        path="/x/ckpt_10.pt",
        writer="torch.save",
        step=10,
        began_ns=now_ns - 2_000_000_000,
        ended_ns=now_ns,
        inode=77,
    )
    (event,) = bench.say(saved)
    assert isinstance(event, ev.CheckpointSaved)
    assert (event.step, event.duration_s, event.inode) == (10, 2.0, 77)
    ((path, step, wall_s, inode, attempt),) = bench.saved
    assert (path, step, inode, attempt) == ("/x/ckpt_10.pt", 10, 77, 0)
    assert abs(wall_s - time.time()) < 30


def test_only_a_load_before_the_first_step_is_a_resume(bench: Bench) -> None:
    loaded = msg.CheckpointLoaded(attempt=0, global_rank=0, pid=1, path="/x/ckpt_10.pt", reader="torch.load")
    bench.sampler.boards[0].write(Field.PULSES, 1)  # heard of after its first step, where this process is late
    bench.say(loaded)
    bench.say(msgspec.structs.replace(loaded, has_stepped=True))
    assert bench.loaded == [loaded]


def test_steps_count_from_the_base_that_is_set(bench: Bench) -> None:
    bench.ingest.set_base(attempt=0, rank=0, step=40)
    bench.ingest.set_base(attempt=1, rank=0, step=99)
    (report,) = bench.sampler.sample()
    assert report.step == 40


def test_a_rank_that_was_never_heard_is_told_once(bench: Bench) -> None:
    assert bench.ingest.missing_hooks() is None
    bench.ingest.started_s -= 60
    missing = bench.ingest.missing_hooks()
    assert missing is not None
    assert missing.global_ranks == [0]
    assert bench.ingest.missing_hooks() is None


def test_a_rank_that_ended_before_it_could_be_heard_had_hooks(bench: Bench) -> None:
    bench.sampler.boards[0].write(Field.MILESTONES, Milestone.HOOKED)
    bench.ingest.started_s -= 60
    assert bench.ingest.missing_hooks() is None


def test_a_note_is_kept_and_is_no_failure(bench: Bench) -> None:
    note = msg.Noted(
        attempt=0, global_rank=0, pid=1, topic="gc policy", text="not followed: the script collects by itself"
    )
    assert bench.say(note) == []
    assert list(bench.ingest.notes) == ["rank 0: gc policy: not followed: the script collects by itself"]
    assert bench.ingest.failed_hooks == []


def test_the_last_batch_comes_with_the_exception(bench: Bench) -> None:
    raised = msg.UncaughtException(
        attempt=0, global_rank=0, pid=1, at_ns=1, error="E", message="", traceback="", frames=[], data={"batch": 7}
    )
    (event,) = bench.say(raised)
    assert isinstance(event, ev.UncaughtExceptionReported)
    assert event.error.data == {"batch": 7}


def test_shares_of_the_time_up_to_the_last_progress(bench: Bench) -> None:
    assert bench.ingest.shares() == {}
    assert shares_json(bench.ingest.shares()) == {}
    board = bench.sampler.boards[0]
    now_ns = time.monotonic_ns()
    bench.ingest.began_s = bench.clock.at_ns(now_ns) - 10
    for field, value in (
        (Field.MAGIC, MAGIC),
        (Field.PROGRESS_NS, now_ns),
        (Field.DATA_TOTAL_NS, 4_000_000_000),
        (Field.GC_TOTAL_NS, 500_000_000),
        (Field.STEP, 7),
        (Field.STEP_BASE, 40),
    ):
        board.write(field, value)
    assert bench.ingest.shares() == {0: (0.4, 0.05)}
    (row,) = bench.ingest.rows()
    assert (row.global_rank, row.has_hooks, row.step, row.beat_age_s) == (0, True, 47, None)
    assert row.progress_age_s is not None and row.progress_age_s < 60
    assert row.data_share is not None and 0.1 < row.data_share <= 0.4


def test_shares_are_of_the_time_before_this_supervisor_too(bench: Bench) -> None:
    """A supervisor that was started anew finds ranks that have lived for long."""
    lived_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat_field(os.getpid(), 22)) / os.sysconf("SC_CLK_TCK")
    assert bench.clock.now() - bench.ingest.began_s == pytest.approx(lived_s, abs=5)


def _stat_field(pid: int, number: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number - 3]


def test_shares_of_all_nodes_say_whose_are_missing() -> None:
    told = shares_json({1: (0.2, 0.0), 0: (0.4, 0.1)}, ["node2"])
    ranks = {"0": {"data": 0.4, "gc": 0.1}, "1": {"data": 0.2, "gc": 0.0}}
    assert told == {"data": 0.3, "gc": 0.05, "ranks": ranks, "not_told": ["node2"]}
    many = shares_json({rank: (rank / 1000, 0.0) for rank in range(1000)})
    assert len(many["ranks"]) == MAX_SHARES and many["data"] == 0.4995, "all count, some are shown"


def test_what_a_rank_says_of_its_modules(bench: Bench) -> None:
    names = [f"layers.{number} (ReLU)" for number in range(99)]
    who = {"attempt": 0, "global_rank": 0}
    fields = {"step": 900, "since": 410, "what": "output", "count": 99, "looks": 50, "every": 10, "alive": 40}
    (died,) = bench.say(msg.ModulesDied(**who, pid=1, modules=names, **fields))  # type: ignore[arg-type]
    assert died == ev.ModulesDied(**who, modules=names[:16], **fields)  # type: ignore[arg-type]
    (grew,) = bench.say(msg.GradientsGrew(**who, pid=1, step=7, groups=[("layers.1", 0.5, 9.0)] * 99, count=99))
    assert isinstance(grew, ev.GradientsGrew) and (grew.step, grew.count) == (7, 99)
    assert grew.groups == [ev.GroupNorm("layers.1", 0.5, 9.0)] * 16
