"""Two nodes' accounts of what their ranks were handed out: pages of each, and messages that may be late, or lie."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from guardrun.hooks.data.data_replay import Account
from guardrun.hooks.data.sample_ledger import SampleLedger
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.ledger_page import consumed_name
from guardrun.hooks.wire.messages import CheckpointSaved
from guardrun.hooks.wire.snapshot_index import HOLDS, Record
from guardrun.supervisor.engine.model.actions import StartAttempt
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.saving import fleet_sample_ledgers, sample_ledgers
from guardrun.supervisor.saving.fleet_sample_ledgers import FleetLedgers, NodeLedgers
from guardrun.supervisor.saving.sample_ledgers import SampleLedgers
from guardrun.supervisor.saving.snapshot_files import Written
from guardrun.supervisor.saving.snapshot_sets import Copy, WholeSet

HOMES = {0: "head", 1: "other"}
SIZES = {"head": 1, "other": 1, "spare": 1}


class Job:
    """A rank on each of two nodes, whose pages are in folders of their own; messages wait until deliver()."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.up: deque[Any] = deque()
        self.down: deque[tuple[str, Any]] = deque()
        self.connected = {"other", "spare"}
        self.folders = {name: folder / name for name in SIZES}
        for path in self.folders.values():
            path.mkdir()
        self._pages: dict[int, SampleLedger] = {}
        self.head_node, self.other_node = self._node("head", 0), self._node("other", 1)
        self.state = SimpleNamespace(attempt=None)
        self.kept: list[Record] = []
        """What the other node's rank has in memory."""
        self.begin(0)
        self.supervisors()

    def _node(self, name: str, rank: int) -> Any:
        def put(work: Callable[[], object]) -> bool:
            work()
            return True

        return SimpleNamespace(
            run_dir=self.folder,
            run_file=SimpleNamespace(config={"checkpoint": {"exact_data": True}}, node=name),
            writer=SimpleNamespace(put=put),
            sockets=self.folders[name],
            sampler=SimpleNamespace(boards={rank: SimpleNamespace(read=self.board)}),
            ingest=SimpleNamespace(ranks={rank: None}, attempt=0, on_save=None),
        )

    def supervisors(self) -> None:
        """Both are started anew, and know what is on the disk."""
        context = SimpleNamespace(engine=SimpleNamespace(state=self.state))
        self.ledgers = SampleLedgers(cast(Any, self.head_node), self.folders["head"])
        self.head = FleetLedgers(
            self.head_node,
            cast(Any, context),
            self.ledgers,
            lambda node, order: self.down.append((node, order)),
            lambda node: node in self.connected,
        )
        memory = SimpleNamespace(copies=lambda attempt: [Copy(1, 0, record) for record in self.kept])
        self.other = NodeLedgers(self.other_node, memory, self.up.append)

    def board(self) -> list[int]:
        words = {Field.STEP: self.step, Field.SNAPSHOT_INDEX: len(self.kept)}
        return [words.get(word, 0) for word in Field]

    def begin(self, attempt: int) -> None:
        self.close()
        self.attempt, self.step = attempt, 0
        known = {rank: SimpleNamespace(rank=SimpleNamespace(node=home)) for rank, home in HOMES.items()}
        self.state.attempt = SimpleNamespace(number=attempt, ranks=known)
        for rank, home in HOMES.items():
            self._monkeypatch.setenv("RANK", str(rank))
            self._pages[rank] = SampleLedger(Rank({"sockets": str(self.folders[home])}, attempt))
        self.head_node.ingest.attempt = self.other_node.ingest.attempt = attempt
        about = {"key": "ab" * 8, "account": None, "number": 1, "flags": 0, "why": "", "epoch": 0, "resumed": None}
        self._streams = {rank: SimpleNamespace(**about, source=None) for rank in HOMES}

    def close(self) -> None:
        for one in self._pages.values():
            one.close()
        self._pages.clear()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            for rank, one in self._pages.items():
                one._rank.pace.backwards += 1
                one.note(cast(Any, self._streams[rank]), None, self.step, [1000 * rank + self.step, self.step])

    def save(self, rank: int, *, is_told: bool = True) -> Path:
        path = self.folder / f"step_{self.step}_{rank}.pt"
        path.write_bytes(b"x" * (100 + self.step))
        found = path.stat()
        self._pages[rank].note_save(self.step, self.step, 0, found.st_size, found.st_mtime_ns)
        told = CheckpointSaved(
            attempt=self.attempt,
            global_rank=rank,
            pid=1,
            path=str(path),
            writer="torch.save",
            step=self.step,
            began_ns=0,
            ended_ns=0,
            own_steps=self.step,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
        )
        if is_told:
            (self.head_node if rank == 0 else self.other_node).ingest.on_save(told, [rank])
        return path

    def deliver(self) -> None:
        """All that has been sent, there and back."""
        while self.up or self.down:
            if self.up:
                message = msgspec.msgpack.decode(msgspec.msgpack.encode(self.up.popleft()), type=msg.Up)
                if isinstance(message, msg.DataSaved):
                    self.head.saved("other", message)
                else:
                    assert isinstance(message, msg.DataReported)
                    self.head.answered("other", message)
            else:
                node, order = self.down.popleft()
                order = msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=msg.Down)
                if node == "other":
                    self.other.obey(order)

    def handed_on(self, path: Path, nodes: tuple[str, ...] = ("head", "other")) -> list[dict[str, Any]]:
        """What each node's ranks of attempt 7 find; of those that get anything."""
        for folder in self.folders.values():
            (folder / consumed_name(7)).unlink(missing_ok=True)
        start = StartAttempt(attempt=7, checkpoint=Checkpoint(path=str(path), step=40), nodes=list(nodes))
        self.head.hand_on(start, self.head.find([str(path)]), SIZES)
        self.deliver()
        names = [self.folders[node] / consumed_name(7) for node in nodes]
        return [json.loads(name.read_text()) for name in names if name.exists()]

    def batches(self, path: Path) -> list[int]:
        """As each rank reads it, on its own node; nothing may speak against skipping them."""
        found = self.handed_on(path)
        assert [set(fields["ranks"]) for fields in found] == [{"0"}, {"1"}]
        accounts = [Account(fields["ranks"][str(rank)][0]) for rank, fields in enumerate(found)]
        assert [(fields["acts"], fields["why"]) for fields in found] == [(True, "")] * 2
        assert [account.why for account in accounts] == ["", ""]
        return [account.batches for account in accounts]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Job(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_whichever_node_s_rank_saves_each_node_s_ranks_find_their_account(job: Job, rank: int) -> None:
    job.train(3)
    first = job.save(rank)
    job.deliver()
    job.train(2)
    second = job.save(rank)
    job.train(2)  # a late answer is of the steps that were asked for
    job.deliver()
    assert (job.batches(first), job.batches(second)) == ([3, 3], [5, 5])


def test_ranks_that_each_save_a_part_are_asked_for_once(job: Job) -> None:
    job.train(3)
    paths = [job.save(0), job.save(1)]
    assert [node for node, _ in job.down] == ["other"]
    job.deliver()
    assert [job.batches(path) for path in paths] == [[3, 3], [3, 3]]


def test_what_was_taken_after_a_save_is_told_before_the_attempt_s_end(job: Job) -> None:
    """By that it shows where a script goes on by itself."""
    job.train(3)
    path = job.save(0)
    job.deliver()
    job.train(4)
    job.other.ended()
    job.deliver()
    job.head.refresh(0, [0, 1])
    found = job.handed_on(path)
    assert [max(map(int, fields["ranks"][str(rank)][0]["near"])) for rank, fields in enumerate(found)] == [7, 7]


def test_so_it_is_of_one_that_had_told_of_that_step_unasked(job: Job) -> None:
    job.train(2)
    job.save(0)
    job.deliver()
    job.train(1)
    job.other.sample()
    job.deliver()
    path = job.save(0)
    job.train(4)
    job.deliver()
    job.other.ended()
    job.deliver()
    job.head.refresh(0, [0, 1])
    found = job.handed_on(path)
    assert [max(map(int, fields["ranks"][str(rank)][0]["near"])) for rank, fields in enumerate(found)] == [7, 7]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_save_that_its_rank_did_not_live_to_tell_of(job: Job, rank: int) -> None:
    job.train(3)
    path = job.save(rank, is_told=False)
    job.train(1)
    job.other.ended()
    job.deliver()
    job.head.refresh(0, [0, 1])
    job.deliver()
    assert job.batches(path) == [3, 3]


def test_both_supervisors_may_be_others_by_then(job: Job) -> None:
    job.train(3)
    path = job.save(1)
    job.deliver()
    job.supervisors()
    job.train(2)
    later = job.save(0)
    job.deliver()
    job.other.ended()
    job.deliver()
    assert (job.batches(path), job.batches(later)) == ([3, 3], [5, 5])


def test_of_a_node_that_is_gone_it_is_not_known_and_nothing_is_skipped(job: Job) -> None:
    job.train(3)
    path = job.save(0)
    job.connected.discard("other")
    job.head.poll()
    job.up.clear()
    [here, _] = job.handed_on(path)
    assert here["ranks"]["0"][0]["why"] == "what rank 1 was handed out for these steps is not known"


@pytest.mark.parametrize("has_saved", [True, False])
def test_of_one_that_was_lost_in_a_later_step_it_is_known_where_saves_are_made(job: Job, has_saved: bool) -> None:
    """A rank that is well saves in time what all have done; the other node is gone by then."""
    job.train(3)
    if has_saved:
        job.save(0)
    job.deliver()
    job.train(2)
    job.other.sample()
    job.other.sample()
    assert len(job.up) == has_saved
    job.deliver()
    job.connected.discard("other")
    path = job.folder / "in-time.pt"
    path.write_bytes(b"x")
    job.head.saved_in_time(0, 0, 5, Checkpoint(path=str(path), step=5), [0, 1])
    if has_saved:
        assert job.batches(path) == [5, 5]
    else:
        assert job.handed_on(path)[0]["ranks"]["0"][0]["why"]


def keep(job: Job) -> Record:
    """Both ranks copy their state."""
    path = str(job.folder / f"snapshot_{job.step}.pt")
    record = Record(1, job.step, True, job.step, 80, 1 << 61, HOLDS, 0, path)
    job.kept.append(record)
    return record


def write_out(job: Job, record: Record) -> Path:
    """The attempt is over."""
    path = Path(record.path)
    path.write_bytes(b"x" * record.size_bytes)
    job.head.refresh(0, [0, 1])
    whole = WholeSet((Copy(0, 0, record),))
    job.head.written_from_memory(0, Written(record.step, (str(path),), (1,), 80, 0.1, whole=whole), [0, 1])
    return path


def test_what_is_written_out_of_memory_has_an_account(job: Job) -> None:
    """By its step, which is none of the last; ranks went on after it."""
    job.train(3)
    record = keep(job)
    job.train(4)
    job.other.ended()
    job.deliver()
    assert job.batches(write_out(job, record)) == [3, 3]


def test_so_it_has_where_the_node_was_lost_after_it_had_told_of_that_step(job: Job) -> None:
    job.train(3)
    record = keep(job)
    job.other.sample()
    job.train(4)
    other = keep(job)
    job.deliver()
    job.connected.discard("other")
    assert job.batches(write_out(job, record)) == [3, 3]
    later = job.handed_on(write_out(job, other))
    assert later[0]["ranks"]["0"][0]["why"] == "what rank 1 was handed out for these steps is not known"


def test_one_that_does_not_answer_is_waited_for_no_longer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_sample_ledgers, "ANSWER_S", 0.0)
    job.train(3)
    path = job.save(0)
    job.head.poll()
    [here, _] = job.handed_on(path)
    assert "rank 1" in here["ranks"]["0"][0]["why"]
    job.deliver()  # it was only late
    job.head.refresh(0, [0, 1])
    assert job.batches(path) == [3, 3]


def test_a_node_s_word_counts_for_its_own_ranks_and_of_this_attempt_alone(job: Job) -> None:
    job.train(3)
    path = job.save(0)
    job.deliver()
    places = sample_ledgers.read_places(job.folders["other"], 0, [1], 3)
    lie = {0: [msgspec.structs.replace(places[1][0], batches=2, near={})], **places}
    job.head.answered("other", msg.DataReported(attempt=0, done=3, places=lie))
    job.head.answered("spare", msg.DataReported(attempt=0, done=3, places={1: lie[0]}))
    about = {"own_steps": 2, "step": 2, "began_ns": 0, "size": 103, "mtime_ns": path.stat().st_mtime_ns + 1}
    told = job.head._rounds[0, 3].places
    assert [told[rank][0].batches for rank in (0, 1)] == [3, 3] and told[1][0].near
    job.head.saved("other", msg.DataSaved(attempt=0, global_rank=0, places={}, **about))
    job.head.saved("other", msg.DataSaved(attempt=4, global_rank=1, places={}, **about))
    assert job.batches(path) == [3, 3]
    assert len(job.ledgers._saves) == 1


def test_an_attempt_of_another_size_is_told_that_it_is(job: Job) -> None:
    job.train(3)
    path = job.save(0)
    job.deliver()
    found = job.handed_on(path, ("head",))
    assert [(fields["why"], fields["ranks"]) for fields in found] == [("there were 2 ranks, and now there are 1", {})]
    moved = job.handed_on(path, ("other", "head"))
    assert [set(fields["ranks"]) for fields in moved] == [{"0"}, {"1"}], "by rank, wherever it is now"


def test_a_job_that_takes_nothing_from_loaders_is_told_nothing(job: Job) -> None:
    job.step = 3
    path = job.save(0)
    job.deliver()
    assert job.handed_on(path) == []


def test_of_more_ranks_than_can_agree_nobody_is_asked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_sample_ledgers, "MAX_RANKS", 1)
    job.train(3)
    job.save(0)
    job.save(1)
    job.up.clear()
    assert not job.down and not job.ledgers._saves


def test_of_many_ranks_fewer_saves_are_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_ledgers, "MAX_PLACES", 12)
    paths = []
    for _ in range(8):
        job.train(2)
        paths.append(job.save(0))
        job.deliver()
    assert [len(save.files) for save in job.ledgers._saves] == [1] * 6
    assert job.batches(paths[-1]) == [16, 16] and job.handed_on(paths[0])[0]["why"] == sample_ledgers.NO_ACCOUNT


def test_steps_that_nobody_has_answered_for_make_room_for_later_ones(job: Job) -> None:
    paths = []
    for _ in range(fleet_sample_ledgers.MOST_STEPS + 1):
        job.train(1)
        paths.append(job.save(0))
    first = job.handed_on(paths[0])
    assert "rank 1" in first[0]["ranks"]["0"][0]["why"]
    assert job.batches(paths[-1]) == [job.step, job.step]
