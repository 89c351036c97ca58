"""Copies of ranks' states in memory: which belong together, who may have how much, and what is written out."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.snapshot_index import (
    HOLDS,
    NAME,
    PAGE_BYTES,
    SHARDED,
    SIZE_BYTES,
    Record,
    pack_header,
    pack_record,
    parse_record,
    record_offset,
)
from guardrun.supervisor.collect.host.memory_limits import Limit
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.saving import snapshot_files
from guardrun.supervisor.saving.snapshot_files import Written, write_here, write_newest
from guardrun.supervisor.saving.snapshot_memory import GB, Asked, Held, decide_grants
from guardrun.supervisor.saving.snapshot_sets import Copy, find_whole
from guardrun.supervisor.saving.snapshots import newest_step

DATA = b"what torch.save wrote" * 100_000


def record(at: int, path: str = "/out/a.pt", flags: int = HOLDS, data: bytes = DATA) -> Record:
    return Record(at, at, True, at + 100, len(data), at * 1_000_000_000, flags, zlib.crc32(data), path)


# The index ------------------------------------------------------------------------------------------------------------


def test_a_record_is_whole_or_none() -> None:
    known = record(7, "/out/ä €.pt", HOLDS | SHARDED)
    page = pack_record(known).ljust(PAGE_BYTES, b"\0")
    assert parse_record(page) == known
    assert parse_record(bytes(16) + page[16:]) is None, "wiped"
    assert [parse_record(page[:cut]) for cut in range(0, 80, 7)] == [None] * 12
    for at in range(60):
        assert parse_record(page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :]) is None
    assert parse_record(b"\xff" * PAGE_BYTES) is None and parse_record(bytes(PAGE_BYTES)) is None


# Which belong together ------------------------------------------------------------------------------------------------


def sets(
    told: dict[int, dict[int, tuple[str, int]]], ranks: int = 2, steps: dict[int, int] | None = None
) -> tuple[list[tuple[int, list[int]]], str]:
    """told: by rank and step, path and flags. Back come steps with the ranks whose copies are written."""
    copies = [
        Copy(rank, n, record(at, path, flags))
        for rank, its in told.items()
        for n, (at, (path, flags)) in enumerate(its.items())
    ]
    found, why = find_whole(copies, range(ranks), steps or {})
    return [(one.at, [copy.global_rank for copy in one.copies]) for one in found], why


SHARD = HOLDS | SHARDED


def shard(rank: int, at: int) -> tuple[str, int]:
    return f"/out/{at}_{rank}.pt", SHARD


def test_shards_are_whole_where_all_are_of_one_step() -> None:
    both = {rank: {8: shard(rank, 8), 9: shard(rank, 9)} for rank in (0, 1)}
    assert sets(both) == ([(9, [0, 1]), (8, [0, 1])], "")
    behind = {0: {8: shard(0, 8), 9: shard(0, 9)}, 1: {7: shard(1, 7), 8: shard(1, 8)}}
    assert sets(behind) == ([(8, [0, 1])], "no copy of step 109 is known of rank 1")
    assert sets({0: {9: shard(0, 9)}, 1: {8: shard(1, 8)}})[0] == []
    assert sets({0: both[0]}) == ([], "no copy of step 109 is known of rank 1")
    assert sets({**both, 1: {8: ("/x", SHARDED), 9: ("/x", SHARDED)}})[0] == [(9, [0]), (8, [0])], "it has said None"
    assert sets({0: {9: ("/a", SHARD)}, 1: {9: ("/a", SHARD)}}) == ([], "two ranks named the same path")
    assert sets({0: {9: ("/a", SHARD)}, 1: {9: ("/b", HOLDS)}}) == ([], "some paths name the rank and some don't")


def test_of_replicas_one_copy_will_do() -> None:
    told = {0: {8: ("/8", HOLDS), 9: ("/9", HOLDS)}, 1: {8: ("/8", 0), 9: ("/9", 0)}}
    assert sets(told) == ([(9, [0]), (8, [0])], "")
    assert sets({**told, 1: {7: ("/7", 0), 8: ("/8", 0)}})[0] == [(9, [0]), (8, [0])], "it died within step 9"
    assert sets({**told, 1: {6: ("/6", 0), 7: ("/7", 0)}})[0] == [], "nobody knows that it names the same"
    by_rank = {0: {9: ("/9_0", HOLDS)}, 1: {9: ("/9_1", 0)}}
    assert sets(by_rank) == ([], "rank 1 named another path than rank 0: shards need {rank} in it")
    assert sets({0: {9: ("/9", 0)}, 1: {9: ("/9", HOLDS)}})[0] == [(9, [1])]


def test_a_rank_that_never_calls_is_known_by_its_next_step() -> None:
    told = {0: {8: ("/8", HOLDS), 9: ("/9", HOLDS)}}
    assert sets(told, steps={0: 9, 1: 9})[0] == [(8, [0])]
    assert sets(told, steps={0: 9, 1: 10})[0] == [(9, [0]), (8, [0])]
    assert sets(told, steps={0: 9, 1: 0})[0] == [], "it may be about to call for the first time"
    assert sets({}) == ([], "")


def test_a_script_that_has_gone_back_goes_on_from_there() -> None:
    later = record(5)._replace(written_ns=99_000_000_000)
    found, _ = find_whole([Copy(0, 0, record(9)), Copy(0, 1, later)], [0], {})
    assert [one.at for one in found] == [5, 9]


# How much -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "limit", "grants", "why"),
    [
        ([Asked(0, 3 * GB, 0, 0)], Limit(100 * GB, 50 * GB), {0: 3 * GB}, ""),
        ([Asked(0, 3 * GB, 3 * GB, 3 * GB)], Limit(100 * GB, 50 * GB), {}, ""),
        ([Asked(0, 3 * GB, -1, 0)], Limit(100 * GB, 50 * GB), {}, ""),
        ([Asked(0, 5 * GB, 3 * GB, 3 * GB)], Limit(100 * GB, 50 * GB), {0: 5 * GB}, ""),
        ([Asked(n, 3 * GB, 0, 0) for n in (0, 1)], Limit(100 * GB, 50 * GB), {0: 3 * GB, 1: 3 * GB}, ""),
        ([Asked(n, 3 * GB, 0, 0) for n in (0, 1, 2)], Limit(100 * GB, 50 * GB), {0: 3 * GB, 1: 3 * GB}, "need 9 GB"),
        ([Asked(n, 3 * GB, 0, 0) for n in (0, 1)], Limit(100 * GB, 85 * GB), {0: 3 * GB}, "12 GB are free"),
        ([Asked(0, 3 * GB, 3 * GB, 0), Asked(1, 3 * GB, 0, 0)], Limit(100 * GB, 85 * GB), {}, "12 GB are free"),
        ([Asked(0, 3 * GB, 0, 0)], None, {}, "not known what is free"),
        ([Asked(0, 1 << 62, 0, 0)], Limit(100 * GB, 0), {}, "snapshot_gb = 8"),
    ],
)  # fmt: skip
def test_a_tenth_of_each_limit_stays_free(asked: list[Asked], limit: Limit | None, grants: object, why: str) -> None:
    found, said = decide_grants(asked, 8 * GB, limit)
    assert found == grants and (why in said if why else not said)


# What is written ------------------------------------------------------------------------------------------------------


class Memory:
    """A rank's, as it has left it."""

    def __init__(self, rank: int = 0) -> None:
        names = (f"{NAME}-0-{rank}-{part}" for part in ("index", "0", "1"))
        self.fds = [os.memfd_create(name, os.MFD_CLOEXEC) for name in names]
        os.ftruncate(self.fds[0], SIZE_BYTES)
        os.pwrite(self.fds[0], pack_header((self.fds[1], self.fds[2])), 0)
        self.held = Held(os.getpid(), self.fds[0], f"{NAME}-0-{rank}")

    def keep(self, slot: int, known: Record, data: bytes = DATA) -> None:
        os.pwrite(self.fds[1 + slot], data, 0)
        os.pwrite(self.fds[0], pack_record(known), record_offset(slot))

    def close(self) -> None:
        self.held.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory()
    yield memory
    memory.close()


def write(memory: Memory, past_step: int = 0, spoiled: tuple[Spoiled, ...] = (), limit_s: float = 60.0) -> Written:
    copies = memory.held.copies(0)
    return write_newest(
        find_whole(copies, [0], {0: 50}),
        newest_step(copies),
        write_here({0: memory.held}),
        attempt=0,
        past_step=past_step,
        spoiled=spoiled,
        wall_s=lambda at_ns: at_ns / 1e9,
        limit_s=limit_s,
    )


def test_the_newest_is_written_where_no_checkpoint_is_as_new(memory: Memory, tmp_path: Path) -> None:
    memory.keep(0, record(8, str(tmp_path / "new" / "step_8.pt")))
    memory.keep(1, record(9, str(tmp_path / "new" / "step_9.pt")))
    assert write(memory, past_step=109) == Written() and not (tmp_path / "new").exists()
    written = write(memory, past_step=108)
    assert (written.step, written.paths, written.why) == (109, (str(tmp_path / "new" / "step_9.pt"),), "")
    assert Path(written.paths[0]).read_bytes() == DATA and written.inodes == (Path(written.paths[0]).stat().st_ino,)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["step_9.pt"]


def test_no_file_is_written_over(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_bytes(b"the script's")
    (tmp_path / "ckpt.guardrun.pt").symlink_to(tmp_path / "nowhere")
    (tmp_path / ".ckpt.pt.guardrun.tmp").write_bytes(b"what a killed supervisor has left")
    memory.keep(0, record(9, str(tmp_path / "ckpt.pt")))
    assert write(memory).paths == (str(tmp_path / "ckpt.guardrun-2.pt"),)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt.guardrun-2.pt", "ckpt.guardrun.pt", "ckpt.pt"]
    assert (tmp_path / "ckpt.pt").read_bytes() == b"the script's" and not (tmp_path / "nowhere").exists()


def test_what_is_damaged_or_has_no_place_leaves_the_one_before(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory.keep(0, record(8, str(tmp_path / "step_8.pt")))
    memory.keep(1, record(9, str(tmp_path / "file" / "step_9.pt")))
    written = write(memory)
    assert written.step == 108 and written.why.startswith("step 109: [Errno 17]" if os.getuid() else "step 109: [Errno")
    os.pwrite(memory.fds[1], b"!", 1000)
    assert "rank 0 is damaged" in write(memory, past_step=107).why or (tmp_path / "step_8.pt").exists()
    assert write(memory).paths == () and [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []
    os.ftruncate(memory.fds[1], 10)
    assert write(memory).paths == ()


def test_too_little_room_or_time_is_told(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.keep(0, record(9, str(tmp_path / "step_9.pt")))
    assert write(memory, limit_s=0.0).why == "step 109: the disk is too slow"
    monkeypatch.setattr(snapshot_files, "SPARE_BYTES", 1 << 62)
    assert "too much for the disk" in write(memory).why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoiled", "step"),
    [
        (Spoiled(attempt=0, from_step=109, since_s=0, until_s=99), 108),
        (Spoiled(attempt=0, from_step=108, since_s=0, until_s=99), 0),
        (Spoiled(attempt=1, from_step=110, since_s=50, until_s=99), 109),
        (Spoiled(since_s=8.5, until_s=99, why="a save that failed"), 108),
        (Spoiled(since_s=13.5, until_s=99), 108),
    ],
)
def test_what_is_of_training_gone_wrong_is_passed_over(
    spoiled: Spoiled, step: int, memory: Memory, tmp_path: Path
) -> None:
    memory.keep(0, record(8, str(tmp_path / "step_8.pt")))
    memory.keep(1, record(9, str(tmp_path / "step_9.pt")))
    assert write(memory, spoiled=(spoiled,)).step == step


def test_shards_get_their_names_together_or_not_at_all(tmp_path: Path) -> None:
    ranks = {rank: Memory(rank) for rank in (0, 1)}
    try:
        for rank, memory in ranks.items():
            memory.keep(0, record(9, str(tmp_path / f"step_9_rank{rank}.pt"), SHARD))
        (tmp_path / "step_9_rank1.pt").write_bytes(b"of a save that was cut short")
        held = {rank: memory.held for rank, memory in ranks.items()}

        def write() -> Written:
            copies = [copy for rank, memory in ranks.items() for copy in memory.held.copies(rank)]
            found = find_whole(copies, [0, 1], {})
            return write_newest(found, 109, write_here(held), attempt=0, past_step=0, spoiled=(), wall_s=float)

        written = write()
        assert written.paths == tuple(str(tmp_path / f"step_9_rank{rank}.guardrun.pt") for rank in (0, 1))
        os.pwrite(ranks[1].fds[1], b"!", 5)
        for path in written.paths:
            os.unlink(path)
        assert not write().paths
        assert [path.name for path in tmp_path.iterdir()] == ["step_9_rank1.pt"]
    finally:
        for memory in ranks.values():
            memory.close()


def test_what_is_no_snapshot_is_not_opened_as_one(memory: Memory, tmp_path: Path) -> None:
    """A rank may show anything: a FIFO, another's file, descriptors that are none."""
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    fake = os.memfd_create(f"{NAME}-0-0-index", os.MFD_CLOEXEC)
    try:
        before = len(os.listdir("/proc/self/fd"))
        for number, name in ((fifo, f"{NAME}-0-0"), (memory.fds[0], f"{NAME}-0-1"), (fake, f"{NAME}-0-0"), (9999, "x")):
            with pytest.raises((OSError, ValueError)):
                Held(os.getpid(), number, name)
        os.pwrite(fake, pack_header((fifo, memory.fds[1])), 0)
        with pytest.raises((OSError, ValueError)):
            Held(os.getpid(), fake, f"{NAME}-0-0")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(fifo)
        os.close(fake)
