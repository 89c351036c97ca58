"""The calls page, written by the hooks and read as the supervisor reads it; torch is played by a few lines."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.hooks.calls import call_places
from guardrun.hooks.calls.collective_calls import CallsPage, Signature
from guardrun.hooks.wire import calls_page
from guardrun.hooks.wire.board import OPS
from guardrun.hooks.wire.calls_page import MAX_RECORDS, SIZE_BYTES, calls_name, pack_ranks
from guardrun.supervisor.collect.collectives.calls_page import CallsPage as Read
from guardrun.supervisor.collect.collectives.calls_page import PageCall, parse_calls, parse_ranks, read_calls
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation import frames

PARAMETERS = {
    "all_reduce": ["tensor", "op", "group", "async_op"],
    "all_gather": ["tensor_list", "tensor", "group", "async_op"],
    "reduce_scatter": ["output", "input_list", "op", "group", "async_op"],
    "barrier": ["group", "async_op", "device_ids"],
    "monitored_barrier": ["group", "timeout", "wait_all_ranks"],
    "send": ["tensor", "dst", "group", "tag", "group_dst"],
    "recv": ["tensor", "src", "group", "tag", "group_src"],
    "isend": ["tensor", "dst", "group", "tag", "group_dst"],
    "irecv": ["tensor", "src", "group", "tag", "group_src"],
    "batch_isend_irecv": ["p2p_op_list"],
}


class Tensor:
    def __init__(self, *shape: int, dtype: str = "torch.float32") -> None:
        self.shape = shape
        self.dtype = dtype


class Work:
    pass


class FakeGroup:
    def __init__(self, name: str, desc: str, ranks: list[int], counts: bool = True) -> None:
        self.group_name, self.group_desc, self.ranks, self.counts = name, desc, ranks, counts
        self.seq = 0

    def _get_sequence_number_for_group(self) -> int:
        if not self.counts:
            raise RuntimeError("this backend doesn't count")
        return self.seq


class Bench:
    """A page, and a torch.distributed of its own that calls go to."""

    def __init__(self, folder: Path) -> None:
        self.failed: list[str] = []
        self.world = SimpleNamespace(default_pg=None, pg_map={}, pg_names={}, pg_group_ranks={}, pg_backend_config={})
        self.module = SimpleNamespace(_world=self.world, Work=Work)
        rank: Any = SimpleNamespace(
            sockets=str(folder),
            attempt=0,
            global_rank=3,
            pid=77,
            fail=lambda hook, error: self.failed.append(str(error)),
        )
        self.path = str(folder / calls_name(0, 3))
        self.page = CallsPage(rank, self.module)
        self.default = self.add("0", "default_pg", [0, 1, 2, 3])

    def add(self, name: str, desc: str, ranks: list[int], counts: bool = True, since_ns: int = 5) -> FakeGroup:
        group = FakeGroup(name, desc, ranks, counts)
        if self.world.default_pg is None:
            self.world.default_pg = group
        self.world.pg_map[group] = ("gloo", None)
        self.world.pg_names[group] = name
        self.world.pg_group_ranks[group] = {rank: member for member, rank in enumerate(ranks)}
        self.world.pg_backend_config[group] = "cpu:gloo"
        self.page.note_groups(since_ns)
        return group

    def remove(self, group: FakeGroup) -> None:
        for table in (self.world.pg_map, self.world.pg_names, self.world.pg_group_ranks):
            del table[group]
        self.page.note_groups()

    def enter(self, op: str, *args: Any, **kwargs: Any) -> int:
        return self._enter(op, args, kwargs)

    def _enter(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        # As the hooks' wrapper does: two frames between the page and who called.
        return self.page.enter(OPS.index(op), Signature(op, PARAMETERS[op]), args, kwargs, 1000)

    def call(self, op: str, *args: Any, result: object = None, adds: int = 1, **kwargs: Any) -> None:
        """A call that returns; adds: what torch's count of the group grows by."""
        group = kwargs.get("group") or self.world.default_pg
        at = self._enter(op, args, kwargs)
        if isinstance(group, FakeGroup):
            group.seq += adds
        if at >= 0:
            self.page.leave(at, result, False, 2000)

    def read(self) -> Read:
        return read_calls(self.path)

    def calls(self) -> list[PageCall]:
        return self.read().calls

    def last(self) -> PageCall:
        return self.calls()[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.page.close()
    assert bench.failed == []


def test_a_call_is_seen_while_it_lasts_and_after(bench: Bench) -> None:
    at = bench.enter("all_reduce", Tensor(4, 3))
    call = bench.last()
    assert (call.op, call.group.name, call.before, call.after) == ("all_reduce", "0", 0, -1)
    assert (call.sizes, call.dtype, call.at_ns, call.done_ns) == ([[4, 3]], "float32", 1000, 0)
    assert (call.has_returned, call.is_async, call.peer, call.p2p_number) == (False, False, -1, 0)
    bench.default.seq = 1
    bench.page.leave(at, None, False, 2000)
    call = bench.last()
    assert (call.before, call.after, call.done_ns, call.has_returned, call.has_raised) == (0, 1, 2000, True, False)
    assert bench.read().groups[0].issued == 1


def test_groups_are_described(bench: Bench) -> None:
    bench.add("7", "tp", [0, 2, 4, 6])
    read = bench.read()
    assert [(group.name, group.desc, group.ranks, group.backend) for group in read.groups] == [
        ("0", "default_pg", [0, 1, 2, 3], "cpu:gloo"), ("7", "tp", [0, 2, 4, 6], "cpu:gloo")
    ]  # fmt: skip
    assert read.pid == 77
    bench.page.note_seqs({"7": 12, "unknown": 3})
    assert [group.issued_by_heart for group in bench.read().groups] == [0, 12]


def test_a_group_is_found_by_place_and_by_name(bench: Bench) -> None:
    pair = bench.add("1", "pair", [0, 3])
    bench.call("all_reduce", Tensor(1), "sum", pair)
    bench.call("all_reduce", Tensor(1), group=pair)
    bench.call("barrier", pair)
    bench.call("all_reduce", Tensor(1), group=None)
    assert [call.group.name for call in bench.calls()] == ["1", "1", "1", "0"]


@pytest.mark.parametrize("group", [-100, "other", object()])
def test_a_rank_that_is_no_member_has_no_call(bench: Bench, group: object) -> None:
    bench.call("all_reduce", Tensor(1), group=group, adds=0)
    assert bench.calls() == []


def test_a_destroyed_group_and_its_calls_are_gone(bench: Bench) -> None:
    old = bench.add("1", "old", [0, 3])
    bench.call("all_reduce", Tensor(1), group=old, adds=5)
    bench.remove(old)
    assert [group.name for group in bench.read().groups] == ["0"]
    assert bench.calls() == []
    new = bench.add("1", "new", [0, 3], since_ns=900)
    bench.call("all_reduce", Tensor(2), group=new)
    [call] = bench.calls()
    assert (call.group.desc, call.group.issued, call.before, call.after) == ("new", 1, 0, 1)
    assert (call.group.made_ns, call.group.is_anew) == (900, True)


def test_more_groups_than_there_is_room_for_are_left_out(bench: Bench) -> None:
    groups = [bench.add(str(number), "", [3]) for number in range(1, 80)]
    bench.call("all_reduce", Tensor(1), group=groups[-1])
    assert len(bench.read().groups) == calls_page.MAX_GROUPS
    assert bench.calls() == []


def test_an_asynchronous_call_is_done_when_it_was_waited_for(bench: Bench) -> None:
    works = [Work(), Work()]
    for work in works:
        bench.call("all_reduce", Tensor(1), async_op=True, result=work)
    assert [(call.is_async, call.has_returned, call.done_ns) for call in bench.calls()] == [(True, True, 0)] * 2
    bench.page.wait_begins(works[1])
    assert [call.is_waited_for for call in bench.calls()] == [False, True]
    bench.page.wait_ends(works[1], False, 3000)
    assert [(call.is_waited_for, call.done_ns) for call in bench.calls()] == [(False, 0), (False, 3000)]
    other = Work()
    bench.page.wait_begins(other)
    bench.page.wait_ends(other, True, 4000)
    assert [call.done_ns for call in bench.calls()] == [0, 3000]


def test_a_call_that_raised_is_over(bench: Bench) -> None:
    at = bench.enter("all_reduce", Tensor(1))
    bench.page.leave(at, None, True, 2000)
    call = bench.last()
    assert (call.has_raised, call.has_returned, call.after) == (True, True, 0)


def test_sends_and_receives_don_t_count_as_collectives(bench: Bench) -> None:
    """Over gloo torch's own number counts them, too."""
    bench.call("all_reduce", Tensor(1))
    bench.call("send", Tensor(7), 1)
    bench.call("recv", Tensor(7), src=1)
    bench.call("recv", Tensor(7))
    bench.call("send", Tensor(7), group_dst=2)
    bench.call("send", Tensor(7), 1)
    bench.call("all_reduce", Tensor(1))
    calls = bench.calls()
    assert [(call.op, call.peer, call.p2p_number) for call in calls] == [
        ("all_reduce", -1, 0), ("send", 1, 1), ("recv", 1, 1), ("recv", -1, 1), ("send", 2, 1), ("send", 1, 2),
        ("all_reduce", -1, 0),
    ]  # fmt: skip
    assert (calls[-1].before, calls[-1].after) == (1, 2)
    assert bench.read().groups[0].issued == 2


def test_a_monitored_barrier_counts_the_same_for_every_rank(bench: Bench) -> None:
    bench.call("monitored_barrier", adds=6)
    bench.call("all_reduce", Tensor(1))
    assert [(call.before, call.after) for call in bench.calls()] == [(0, 2), (2, 3)]


def test_a_batch_is_its_sends_and_receives(bench: Bench) -> None:
    def isend() -> None: ...
    def irecv() -> None: ...

    ops = [
        SimpleNamespace(op=isend, tensor=Tensor(2), peer=1, group=None),
        SimpleNamespace(op=irecv, tensor=Tensor(5), peer=2, group=None),
    ]
    works = [Work(), Work()]
    bench.call("batch_isend_irecv", ops, result=works, adds=2)
    bench.page.wait_begins(works[1])
    assert [(call.op, call.peer, call.sizes, call.is_waited_for) for call in bench.calls()] == [
        ("isend", 1, [[2]], False), ("irecv", 2, [[5]], True)
    ]  # fmt: skip
    bench.page.wait_ends(works[1], False, 3000)
    bench.call("all_reduce", Tensor(1))
    assert [(call.done_ns, call.is_async) for call in bench.calls()] == [(0, True), (3000, True), (2000, False)]
    assert bench.last().before == 0


@pytest.mark.parametrize(
    ("op", "args", "sizes"),
    [
        ("all_reduce", [Tensor()], [[]]),
        ("all_reduce", [Tensor(*range(11))], [list(range(11))]),
        ("all_reduce", [Tensor(*range(12))], []),
        ("all_gather", [[Tensor(9), Tensor(9)], Tensor(4, 3)], [[4, 3]]),
        ("reduce_scatter", [Tensor(9), [Tensor(4, 3), Tensor(), Tensor(2)]], [[4, 3], [], [2]]),
        ("reduce_scatter", [Tensor(9), [Tensor(4)] * 6], [[4]] * 6),
        ("reduce_scatter", [Tensor(9), [Tensor(4)] * 7], []),
        ("reduce_scatter", [Tensor(9), [1, 2]], []),
        ("all_reduce", [object()], []),
        ("all_reduce", [None], []),
        ("barrier", [], []),
    ],
)
def test_shapes(bench: Bench, op: str, args: list[Any], sizes: list[list[int]]) -> None:
    bench.call(op, *args)
    assert bench.last().sizes == sizes


def through(paths: list[str], inner: Callable[[], int]) -> Callable[[], int]:
    """Have inner called by code of these files, the innermost first."""
    for path in paths:
        names: dict[str, Any] = {}
        exec(compile("def call(inner):\n    return inner()\n", path, "exec"), names)
        inner = partial(names["call"], inner)
    return inner


HOOK, TORCH = "/x/site-packages/guardrun/hooks/collectives.py", "/x/torch/distributed/fsdp/api.py"
PACKAGE, USER = "/x/site-packages/deepspeed/comm.py", "/home/u/train.py"


@pytest.mark.parametrize(
    ("paths", "file"),
    [
        ([USER], USER),
        ([TORCH, PACKAGE, USER, "/home/u/main.py"], USER),
        (["<string>", TORCH, USER], USER),
        ([TORCH, PACKAGE] + [TORCH] * call_places.MAX_FRAMES, PACKAGE),
        ([TORCH] * call_places.MAX_FRAMES, ""),
    ],
)
def test_the_line_that_called_is_the_user_s(bench: Bench, paths: list[str], file: str) -> None:
    signature = Signature("all_reduce", PARAMETERS["all_reduce"])
    enter = partial(bench.page.enter, OPS.index("all_reduce"), signature, (Tensor(1),), {}, 1000)
    through([HOOK, *paths], enter)()
    assert bench.last().frame == (Frame("call", file, 2) if file else None)


def test_whose_code_is_the_user_s_is_as_the_core_has_it() -> None:
    assert call_places._NOT_THE_USERS == frames._NOT_THE_USERS


def test_the_ring_keeps_the_last(bench: Bench) -> None:
    for _ in range(MAX_RECORDS * 2 + 10):
        bench.call("all_reduce", Tensor(1))
    calls = bench.calls()
    assert [call.number for call in calls] == list(range(MAX_RECORDS + 11, MAX_RECORDS * 2 + 11))
    assert calls[-1].after == MAX_RECORDS * 2 + 10


def test_strings_without_room_are_empty(bench: Bench) -> None:
    for number in range(500):
        bench.call("all_reduce", Tensor(1, dtype=f"torch.{'x' * 200}{number}"))
    assert bench.last().dtype == ""
    assert bench.last().op == "all_reduce"


def test_a_backend_that_doesn_t_count_still_shows_its_calls(bench: Bench) -> None:
    group = bench.add("mpi", "", [0, 3], counts=False)
    bench.call("all_reduce", Tensor(1), group=group)
    call = bench.last()
    assert (call.before, call.after, call.has_returned) == (-1, -1, True)


def test_trouble_is_said_once_and_the_call_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.call("batch_isend_irecv", [SimpleNamespace(op=print, tensor=Tensor(1), peer=1, group=None)])
    assert bench.failed
    bench.call("all_reduce", Tensor(1))
    assert bench.last().op == "all_reduce"
    del bench.module._world
    bench.call("all_reduce", Tensor(1), group=bench.default)
    bench.page.note_groups()
    bench.page.close()


def test_a_page_read_while_it_is_written_is_whole_or_left_out(bench: Bench) -> None:
    """Records say the same thing three times: torn ones would not."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            bench.call("all_reduce", Tensor(number, number, number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = 0
        for _ in range(200):
            for call in bench.calls():
                assert len(set(call.sizes[0])) == 1
                seen += 1
    finally:
        stop.set()
        thread.join()
    assert seen > 1000


def test_an_earlier_python_s_page_is_replaced(bench: Bench) -> None:
    bench.call("all_reduce", Tensor(1))
    again = Bench(Path(bench.path).parent)
    assert again.calls() == []
    assert os.stat(again.path).st_mode & 0o777 == 0o600
    again.page.close()


@given(st.data())
def test_no_page_makes_the_reader_raise(data: st.DataObject) -> None:
    page = bytearray(PAGE)
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(1, SIZE_BYTES // 8 - 1)) * 8
        page[at : at + 8] = data.draw(st.integers(-(2**63), 2**63 - 1)).to_bytes(8, "little", signed=True)
    parse_calls(bytes(page))


@pytest.mark.parametrize("data", [b"", b"x" * SIZE_BYTES, bytes(SIZE_BYTES), bytes(SIZE_BYTES + 1)])
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no calls page"):
        parse_calls(data)


@given(st.lists(st.integers(0, 10**5), max_size=300, unique=True))
def test_members_survive_the_page(ranks: list[int]) -> None:
    text = pack_ranks(ranks)
    assert parse_ranks(text) == (ranks if text else [])


@pytest.mark.parametrize("ranks", [[], [5], [1, 9], list(range(1024)), list(range(3, 1024, 8)), [4, 3, 2]])
def test_members_of_regular_groups_are_short(ranks: list[int]) -> None:
    assert parse_ranks(pack_ranks(ranks)) == ranks
    assert len(pack_ranks(ranks)) < 12


@pytest.mark.parametrize("text", ["a", "1,b", "1:2", "0:1:99999999999", "1:2:3:4", "-1,2"])
def test_what_is_no_list_of_members_is_unknown(text: str) -> None:
    assert parse_ranks(text) == []


def _page(folder: Path) -> bytes:
    bench = Bench(folder)
    for number in range(200):
        bench.call("all_reduce", Tensor(number, 3))
    bench.page.close()
    return Path(bench.path).read_bytes()


@pytest.fixture(scope="module", autouse=True)
def _some_page(tmp_path_factory: pytest.TempPathFactory) -> None:
    global PAGE
    PAGE = _page(tmp_path_factory.mktemp("page"))


PAGE = b""
