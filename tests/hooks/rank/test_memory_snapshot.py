"""What hooks.snapshot() keeps: what torch.save would have written, whole at every moment."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import guardrun.hooks
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.rank.memory_snapshot import MemorySnapshots
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import SIZE_BYTES, Field, board_name
from guardrun.hooks.wire.snapshot_index import NAME
from guardrun.supervisor.saving.snapshot_memory import Held
from guardrun.supervisor.saving.snapshot_sets import Copy

KILLS = 60


class Keeping:
    """A rank that keeps its state, and whoever opens its memory and grants what it wants."""

    def __init__(self, rank: Rank, folder: Path, every: int = 1) -> None:
        self.rank, self.words = rank, rank.words
        rank.settings["snapshots"] = {"steps": every, "dir": str(folder)}
        rank.sockets = str(folder)
        self.said: list[str] = []
        rank.note = lambda topic, text: self.said.extend([text] if text else [])  # type: ignore[method-assign]
        rank.snapshots = self.snapshots = MemorySnapshots(rank)
        self._held: Held | None = None

    def take(self, state: object, step: int, path: object = "out/step_{step}.pt") -> None:
        self.words[Field.STEP] = step
        self.snapshots.keep_due(state, path)

    def grant(self) -> None:
        self.words[Field.SNAPSHOT_GRANTED] = self.words[Field.SNAPSHOT_WANTED]

    def keep(self, state: object, step: int, path: object = "out/step_{step}.pt") -> bytes:
        """What is kept, the first time: after the rehearsal at the step before."""
        self.take(state, step - 1, path)
        self.grant()
        self.take(state, step, path)
        return self.newest()[1]

    @property
    def held(self) -> Held:
        self._held = self._held or Held(os.getpid(), self.words[Field.SNAPSHOT_INDEX] - 1, f"{NAME}-0-{self.number}")
        return self._held

    @property
    def number(self) -> int:
        return self.rank.global_rank

    def copies(self) -> list[Copy]:
        return sorted(self.held.copies(self.number), key=lambda copy: copy.record.generation)

    def steps(self) -> list[int]:
        return [copy.record.at for copy in self.copies()]

    def newest(self) -> tuple[Copy, bytes]:
        copy = self.copies()[-1]
        return copy, self.held.read(copy.slot, copy.record.size_bytes, 0)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        self.snapshots.in_child()  # lets go of its own descriptors


@pytest.fixture
def keeping(rank: Rank, tmp_path: Path) -> Iterator[Keeping]:
    keeping = Keeping(rank, tmp_path)
    yield keeping
    keeping.close()


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def saved(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


class Plain:
    """A script's own class, at module level: pickle finds it."""


large = torch.arange(100_000.0)
STATES: dict[str, Callable[[], object]] = {
    "training": lambda: {"model": torch.nn.Linear(3, 4).state_dict(), "step": 7, "raw": b"\0\1"},
    "views of one storage": lambda: [large[:10], large[10:], large.view(100, -1)],
    "not contiguous": lambda: {"t": torch.arange(12).reshape(3, 4).t(), "s": large[::3]},
    "of size zero": lambda: {"empty": torch.empty(0, 5), "none": None, "nothing": {}},
    "meta": lambda: {"meta": torch.empty(4, device="meta")},
    "quantised": lambda: torch.quantize_per_tensor(torch.rand(8), 0.1, 3, torch.quint8),
    "sparse": lambda: torch.eye(5).to_sparse(),
    "complex, half, bool": lambda: [
        torch.ones(3, dtype=kind) for kind in (torch.complex64, torch.bfloat16, torch.bool)
    ],
    "an object": lambda: {"object": Plain(), "set": {1, 2}},
    "many": lambda: [torch.full((7,), float(n)) for n in range(300)],
    "a module": lambda: torch.nn.Linear(2, 2),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", STATES)
def test_what_is_kept_is_what_torch_save_writes(name: str, keeping: Keeping) -> None:
    state = STATES[name]()
    assert keeping.keep(state, 2) == saved(state), keeping.said
    assert keeping.steps() == [2] and keeping.said == []


def test_sharded_tensors_need_a_path_of_each_rank(keeping: Keeping, group: Any) -> None:
    state = {"weight": distribute_tensor(torch.rand(4, 4), group, [Shard(0)])}
    assert isinstance(state["weight"], DTensor)
    data = keeping.keep(state, 2, "out/step_{step}_rank{rank}.pt")
    content = torch.load(io.BytesIO(data), weights_only=False)
    assert torch.equal(content["weight"].to_local(), state["weight"].to_local())
    assert keeping.copies()[-1].record.is_sharded
    keeping.take(state, 3, "out/step_{step}.pt")
    assert keeping.steps() == [], "half a checkpoint is none"
    assert len(keeping.said) == 1 and "{rank}" in keeping.said[0]


def test_without_a_path_it_goes_where_checkpoints_go(keeping: Keeping, group: Any, tmp_path: Path) -> None:
    state = {"weight": distribute_tensor(torch.rand(4), group, [Replicate()])}
    keeping.keep(state, 2, None)
    assert keeping.copies()[-1].record.path == str(tmp_path / "snapshot_step_2.pt"), "replicated: it is whole"


def test_a_shard_without_a_path_names_its_rank(keeping: Keeping, group: Any, tmp_path: Path) -> None:
    keeping.keep({"weight": distribute_tensor(torch.rand(4), group, [Shard(0)])}, 2, None)
    assert keeping.copies()[-1].record.path == str(tmp_path / "snapshot_step_2_rank0.pt")


def test_a_copy_goes_over_the_older_one_every_so_many_steps(rank: Rank, tmp_path: Path) -> None:
    keeping = Keeping(rank, tmp_path, every=3)
    made: list[int] = []

    def state() -> object:
        made.append(keeping.words[Field.STEP])
        return {"a": 1}

    for step in range(1, 14):
        keeping.take(state, step)
        keeping.grant()
    assert made == [1, 3, 6, 9, 12], "the first call is a rehearsal; a function is only called when it is due"
    assert keeping.steps() == [9, 12]
    assert [copy.record.step for copy in keeping.copies()] == [9, 12]
    keeping.close()


def test_calls_are_counted_where_no_step_is(keeping: Keeping) -> None:
    for _ in range(3):
        keeping.take({"a": 1}, 0)
        keeping.grant()
    assert keeping.steps() == [2, 3] and not keeping.copies()[0].record.is_counted


def test_a_state_that_grows_asks_for_more_and_the_older_copy_stays(keeping: Keeping) -> None:
    keeping.keep({"t": torch.zeros(1000)}, 2)
    keeping.take({"t": torch.zeros(1000)}, 3)
    before = keeping.words[Field.SNAPSHOT_WANTED]
    keeping.take({"t": torch.zeros(2_000_000)}, 4)
    assert keeping.steps() == [3] and keeping.words[Field.SNAPSHOT_WANTED] > before + 16_000_000
    keeping.take({"t": torch.ones(2_000_000)}, 5)
    assert keeping.steps() == [3], "nothing is taken that is not granted"
    keeping.grant()
    keeping.take({"t": torch.ones(2_000_000)}, 6)
    assert keeping.steps() == [3, 6]
    keeping.take({"t": torch.ones(5)}, 7)
    assert keeping.newest()[1] == saved({"t": torch.ones(5)}), "and smaller ones fit"
    assert keeping.said == []


class Changes:
    """Changes a tensor while it is pickled, as another thread would."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.tensor.add_(1)
        return Plain, ()


def test_what_can_not_be_kept_is_told_once_and_the_script_goes_on(keeping: Keeping) -> None:
    keeping.keep({"a": 1}, 2)
    states: list[object] = [lambda: 1 / 0, {"lock": threading.Lock()}, {"function": lambda: 1}]
    for step, state in enumerate(states):
        keeping.take(state, step + 3)
        assert keeping.steps() == [2], "the copy before stays"
    assert len(keeping.said) == 1 and "ZeroDivisionError" in keeping.said[0]
    keeping.take({"a": 1}, 6)
    assert keeping.steps()[-1] == 6, "and it is tried again"


def test_tensors_that_something_changes_meanwhile_are_not_kept(keeping: Keeping) -> None:
    keeping.keep({"a": 1}, 2)
    tensor = torch.ones(3)
    keeping.take({"tensor": tensor, "changes": Changes(tensor)}, 3)
    assert keeping.steps() == [2]
    assert keeping.said == ["no copy of the state could be made: something has changed it meanwhile"]


def test_a_call_of_another_thread_is_none(keeping: Keeping) -> None:
    keeping.keep({"a": 1}, 2)
    thread = threading.Thread(target=keeping.take, args=({"a": 2}, 3))
    thread.start()
    thread.join()
    assert keeping.steps() == [2] and len(keeping.said) == 1


def test_two_paths_in_a_step_are_half_a_checkpoint_each(keeping: Keeping) -> None:
    keeping.keep({"model": 1}, 2, "model_{step}.pt")
    keeping.take({"model": 1}, 2, "model_{step}.pt")
    assert keeping.steps() == [2], "the same once more is the same"
    keeping.take({"optimizer": 1}, 2, "optimizer_{step}.pt")
    keeping.take({"model": 1}, 3, "model_{step}.pt")
    assert keeping.steps() == [] and len(keeping.said) == 1


def test_a_script_that_goes_back_leaves_nothing_of_what_came_after(keeping: Keeping) -> None:
    keeping.keep({"a": 1}, 8)
    keeping.take({"a": 1}, 9)
    keeping.take({"a": 1}, 5)
    assert keeping.steps() == [5]


def test_paths_that_are_none_are_told(keeping: Keeping) -> None:
    for step, path in enumerate((7, "", "a" * 5000, "a\0b")):
        keeping.take({"a": 1}, step + 1, path)
    assert len(keeping.said) == 1 and "TypeError" in keeping.said[0]


def test_a_handlers_exception_is_the_scripts(keeping: Keeping) -> None:
    def raise_here(signum: int, frame: object) -> None:
        raise ValueError("the job ends")

    class Interrupts:
        def __reduce__(self) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return Plain, ()

    before = signal.signal(signal.SIGUSR1, raise_here)
    try:
        with pytest.raises(ValueError, match="the job ends"):
            keeping.take({"interrupts": Interrupts()}, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert keeping.words[Field.SAVE_SINCE_NS] == 0 and keeping.said == []


def test_memory_that_is_taken_back_stays_so(keeping: Keeping) -> None:
    keeping.keep({"t": torch.zeros(1_000_000)}, 2)
    keeping.words[Field.SNAPSHOT_GRANTED] = -1
    keeping.held.empty()
    for step in (3, 4):
        keeping.take({"t": torch.zeros(1_000_000)}, step)
    assert keeping.copies() == [] and keeping.held.read(0, 1, 0) == keeping.held.read(1, 1, 0) == b""
    assert keeping.words[Field.SNAPSHOT_HELD] == 0


def test_descriptors_that_the_script_has_closed_are_not_written_to(keeping: Keeping, tmp_path: Path) -> None:
    keeping.keep({"a": 1}, 2)
    held = keeping.held
    for fd, _ in keeping.snapshots._fds:
        os.close(fd)
    others = [os.open(tmp_path / "script's", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    (tmp_path / "script's").write_bytes(b"its own")
    keeping.take({"a": 2}, 2, "other.pt")  # switches off, which lets go of memory
    keeping.take({"a": 2}, 3)
    assert (tmp_path / "script's").read_bytes() == b"its own"
    assert [copy.record.at for copy in held.copies(0)] == [2] and len(keeping.said) == 1
    for fd in others:
        os.close(fd)


@pytest.mark.parametrize(
    ("lower", "is_kept"), [("not yet", False), ("has one", False), ("has none", True), ("never calls", True)]
)
def test_replicas_keep_one_copy(lower: str, is_kept: bool, rank: Rank, tmp_path: Path) -> None:
    """That of the lowest rank of a node which calls with a state: rank 1 looks at rank 0's board."""
    rank.global_rank = rank.local_rank = 1
    keeping = Keeping(rank, tmp_path)
    board = memoryview(bytearray(SIZE_BYTES)).cast("q")
    board[Field.SNAPSHOT_INDEX] = 5 if lower in ("has one", "has none") else 0
    board[Field.SNAPSHOT_WANTED] = 1 if lower == "has one" else 0
    board[Field.STEP] = 2 if lower == "never calls" else 1
    (tmp_path / board_name(0, 0)).write_bytes(bytes(board.cast("B")))
    for step in (1, 2):
        keeping.take({"a": 1}, step)
        keeping.grant()
    [*_, last] = keeping.copies()
    assert (last.record.at, last.record.holds) == (2, is_kept)
    assert last.record.path.endswith("/out/step_2.pt"), "so that others' paths can be compared"
    keeping.close()


@pytest.mark.parametrize(("node", "is_kept"), [(1, True), (2, False)])
def test_two_nodes_keep_a_copy(node: int, is_kept: bool, rank: Rank, tmp_path: Path) -> None:
    rank.global_rank = rank.group_rank = node
    keeping = Keeping(rank, tmp_path)
    for step in (1, 2):
        keeping.take({"a": 1}, step)
        keeping.grant()
    [*_, last] = keeping.copies()
    keeping.close()
    assert (last.record.at, last.record.holds) == (2, is_kept)


def test_outside_guardrun_and_in_children_it_does_nothing(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    guardrun.hooks.snapshot(lambda: 1 / 0, 7)
    monkeypatch.setattr(ranks, "active", keeping.rank)
    monkeypatch.setattr(keeping.rank, "settings", {"snapshots": {}})
    guardrun.hooks.snapshot(lambda: 1 / 0, 7)
    monkeypatch.setattr(keeping.rank, "settings", {"snapshots": {"steps": 1, "dir": "/"}})
    keeping.keep({"a": 1}, 2)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            keeping.rank.become_child()
            guardrun.hooks.snapshot(lambda: os._exit(2), "a.pt")
            open_here = os.listdir("/proc/self/fd")
            links = [os.readlink(f"/proc/self/fd/{fd}") for fd in open_here if os.path.lexists(f"/proc/self/fd/{fd}")]
            status = 3 if sum(NAME in link for link in links) > 3 else 0  # those opened as the supervisor's are left
        finally:
            os._exit(status)
    assert keeping.held.copies(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_killed_at_any_moment_a_whole_copy_is_left(keeping: Keeping) -> None:
    """Many times: what is left is what was written, and at most one older than the last that was finished."""
    keeping.take({"step": 1, "t": torch.full((400_000,), 1.0)}, 1)
    keeping.grant()
    keeping.take({"step": 2, "t": torch.full((400_000,), 2.0)}, 2)
    chance = random.Random(7)
    at, seen = 2, set()
    for _ in range(KILLS):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)
                for step in range(at + 1, at + 10_000):
                    keeping.rank.pid = os.getpid()
                    keeping.words[Field.STEP] = step
                    keeping.snapshots.keep_due(
                        {"step": step, "t": torch.full((400_000,), float(step))}, "out/{step}.pt"
                    )
                    os.write(write, step.to_bytes(8, "little"))
            finally:
                os._exit(1)
        os.close(write)
        os.read(read, 8)
        time.sleep(chance.random() * 0.01)  # nothing is waited for: this is the moment
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told = b""
        while part := os.read(read, 65536):
            told += part
        os.close(read)
        copy, data = keeping.newest()
        finished = int.from_bytes(told[-8:], "little") if told else at + 1
        assert finished <= copy.record.at <= finished + 1
        content = torch.load(io.BytesIO(data), weights_only=True)
        assert content["step"] == copy.record.at and bool((content["t"] == copy.record.at).all())
        seen.add(len(keeping.copies()))
        at = copy.record.at
        keeping.snapshots._newest, keeping.snapshots._generation = copy.slot, copy.record.generation
        keeping.snapshots._at = at
    assert 1 in seen, "some were killed in the middle of a copy"


@pytest.mark.parametrize("how", ["a barrier", "an object", "functional"])
def test_a_function_that_waits_for_other_ranks_is_not_called_through(how: str, keeping: Keeping, group: Any) -> None:
    """They may not call theirs: all would wait for ever."""
    reached: list[int] = []

    def gather() -> object:
        if how == "a barrier":
            dist.barrier()
        elif how == "an object":
            dist.all_gather_object([None], "mine")
        else:
            all_reduce(torch.ones(2), "sum", group).sum()
        reached.append(1)
        return {"a": 1}

    for step in (1, 2):
        keeping.take(gather, step)
    assert reached == [] and len(keeping.said) == 1 and "communicates" in keeping.said[0], keeping.said
