"""Ranks that are asked to examine themselves: who answers, who can't, and that nobody is kept waiting for ever."""

from __future__ import annotations

import gzip
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from guardrun.hooks.examine.examiner import Examiner
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.examinations import (
    MAX_ANSWER_BYTES,
    MAX_TRACE_BYTES,
    RATE,
    SAVE,
    answer_name,
    profile_name,
    read_whole,
    request_name,
    snapshot_name,
    stop_name,
)
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.node import rank_examinations as module
from tests.collect.profiles.device_trace import two_steps
from tests.hooks.bed import Bed, finish
from tests.node.idle_node import ANSWER, Node
from tests.support.waiting import wait_until


def test_both_are_asked_and_answer_together(node: Node) -> None:
    node.ask(4, 5)
    for number in (4, 5):
        assert node.asked(number) == 1
        node.take(number, 1)
    node.give(4, 1)
    node.turn()
    node.turn()
    assert node.told == []
    node.give(5, 1)
    answers, missing = node.wait_for_end()
    assert missing == {} and sorted(answers) == [4, 5]
    assert answers[4]["sites"] == [{**ANSWER["sites"][0], "function": ""}]


def test_real_hooks_on_the_other_side(node: Node, rank: Rank) -> None:
    """Two requests, one after the other; the first is none that these hooks can meet."""
    examiner = Examiner(rank)
    for number, error in ((1, "0.5"), (2, "0.25")):
        node.ask(4, seconds=float(error))
        node.wait(lambda n=number: node.boards[4][Field.EXAMINE_ASKED] == n, "a request")  # type: ignore[misc]
        examiner.on_beat(1)
        answers, missing = node.wait_for_end()
        assert answers == {} and missing == {4: f"from 10 to 600 seconds can be traced, not {error}"}


@pytest.fixture
def rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> Rank:
    monkeypatch.setenv("RANK", "4")
    rank = Rank({"sockets": str(node.sockets)}, 3)
    rank.words = node.boards[4].words
    return rank


def test_a_rank_that_does_not_take_it_is_asked_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GIL is held there: when it is free again, nothing begins."""
    node.ask(4)
    assert node.asked(4) == 1
    monkeypatch.setattr(module, "TAKE_S", 0.3)  # not before: it counts from the question, which a disk may hold up
    answers, missing = node.wait_for_end()
    assert answers == {} and "its hooks have not run for" in missing[4] and "the GIL is held" in missing[4]
    assert node.boards[4][Field.EXAMINE_ASKED] == node.boards[4][Field.EXAMINE_TAKEN] == 0
    path = node.sockets / request_name(3, 4)
    wait_until(lambda: not path.exists(), 20, "the request withdrawn")
    monkeypatch.undo()
    node.take(4, 1)  # it had just read it
    node.ask(4)
    node.wait(lambda: node.boards[4][Field.EXAMINE_ASKED] == 2, "another number")


HOLDER = """
import _tracemalloc, ctypes, time
from guardrun.hooks import step
from guardrun.hooks.rank.rank import active
from guardrun.hooks.wire.board import Field
step(3)
ctypes.PyDLL(None).sleep(200)
heart = active.words[Field.HEART_NS]
while active.words[Field.HEART_NS] == heart: time.sleep(0.01)
time.sleep(1.2)
print(_tracemalloc.is_tracing(), active.words[Field.EXAMINE_TAKEN], active.examination)
"""


def test_a_real_rank_that_holds_its_gil_is_left_alone_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked of it does not begin once the GIL is free, two beats later neither."""
    monkeypatch.setattr(module, "TAKE_S", 2.5)
    with Bed() as bed:
        process = bed.start(["-c", HOLDER])
        signum = bed.wait_until(Field.DUMP_SIGNAL)
        bed.wait_until(Field.STEP, lambda step: step == 3)
        wait_until(lambda: _sleeps(process.pid), 20, "the sleep in C")
        node = Node(tmp_path, process.pid)
        try:
            node.sockets, node.ingest.attempt = bed.sockets, 0
            node.sampler.boards[4] = open_boards(bed.sockets, 0, [0])[0]
            node.ask(4)
            answers, missing = node.wait_for_end()
            assert answers == {} and "the GIL is held" in missing[4]
            os.kill(process.pid, signum)  # which ends the C library's sleep
            done = finish(process)
        finally:
            node.close()
        assert (done.returncode, done.stdout, done.stderr) == (0, "False 0 None\n", "")


def _sleeps(pid: int) -> bool:
    """Whether its main thread does, by the C library: (clock_)nanosleep."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("35", "230", "115", "101")


def test_a_stopped_rank_is_said_to_be(
    node: Node, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAKE_S", 0.3)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(process.pid)) is not None and stat.state == "T", 20, "the stop")
    node.ask(4)
    assert "it is stopped" in node.wait_for_end()[1][4]


def test_one_that_took_it_and_never_answers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ask(4, seconds=0.0)
    node.asked(4)
    node.take(4, 1)
    monkeypatch.setattr(module, "ANSWER_S", 0.0)
    monkeypatch.setattr(module, "TAKE_S", 0.3)
    assert "its hooks" in node.wait_for_end()[1][4]


def test_only_one_request_at_a_time(node: Node) -> None:
    node.ask(4)
    node.ask(4, 5)
    assert node.asked(5) == 1
    node.take(5, 1)
    node.give(5, 1)
    answers, missing = node.wait_for_end()
    assert list(answers) == [5]
    assert missing[4].startswith("it is busy with an earlier request (allocations), for ")


def test_a_scripts_own_save_is_nobodys_to_ask_for(node: Node) -> None:
    told: list[Any] = []
    node.examinations.ask([4], SAVE, {"step": 3}, 30.0, lambda *both: told.append(both))
    [(answers, missing)] = told
    assert answers == {} and "by nobody else" in missing[4] and node.boards[4][Field.EXAMINE_ASKED] == 0


def test_ranks_that_are_to_agree_are_asked_together_or_not_at_all(node: Node) -> None:
    """The others would wait for the one that is busy, and training with them."""
    node.ask(4)
    told: list[dict[int, str]] = []
    node.examinations.ask([4, 5], RATE, {}, 5.0, lambda answers, missing: told.append(missing))
    (missing,) = told
    assert missing[4].startswith("it is busy with an earlier request (allocations)")
    assert missing[5] == "not asked, for rank 4 is busy"
    assert not node.boards[5].words[Field.EXAMINE_ASKED]


def test_what_ends_while_it_is_asked(node: Node, process: subprocess.Popen[bytes]) -> None:
    node.ask(4, 5)
    for number in (4, 5):
        node.asked(number)
    node.boards[5].words[Field.MILESTONES] |= Milestone.ENDED
    node.turn()
    process.kill()
    process.wait()
    assert node.wait_for_end() == ({}, {4: "it has ended meanwhile", 5: "it has ended meanwhile"})


def test_an_attempt_that_ends(node: Node) -> None:
    node.ask(4)
    node.asked(4)
    node.ingest.attempt = 4
    assert node.wait_for_end() == ({}, {4: "its attempt has ended"})


def test_a_rank_that_has_little_memory_left_is_not_asked(node: Node, process: subprocess.Popen[bytes]) -> None:
    """What the tables take could be what it has not."""
    before = resource.prlimit(process.pid, resource.RLIMIT_DATA)
    status = Path(f"/proc/{process.pid}/status").read_text()
    data = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (data + (100 << 20), before[1]))
    node.ask(4)
    answers, missing = node.wait_for_end()
    said = r"it isn't asked: only (9\d|100)[.\d]* MB of memory are left to it, and it takes up to 192 MB"
    assert answers == {} and re.fullmatch(said, missing[4])
    assert node.boards[4][Field.EXAMINE_ASKED] == 0 and not (node.sockets / request_name(3, 4)).exists()
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (data + (400 << 20), before[1]))
    node.ask(4)
    node.asked(4)


def test_who_cannot_be_asked(node: Node) -> None:
    node.boards[4].words[Field.HEART_NS] = 0
    node.boards[5].words[Field.MILESTONES] = Milestone.ENDED
    node.ask(3, 4, 5)
    assert node.told.pop() == (
        {},
        {3: "there is no such rank", 4: "its hooks are not there to be asked", 5: "its script has ended"},
    )
    node.ask()
    assert node.told == [({}, {})]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"number": 7, "told": {}}', "is not of request 1"),
        (b"[" * 20_000, "answer can't be read"),
        (b"{" + b" " * MAX_ANSWER_BYTES + b"}", "is longer than"),
        (b'{"number": 1}', "its answer is none"),
        (b'{"number": 1, "told": [1]}', "its answer is none"),
        (b'{"number": 1, "error": "no memory"}', "no memory"),
        (b"\xff", "answer can't be read"),
    ],
)
def test_an_answer_that_is_none_is_not_believed(node: Node, content: bytes, why: str) -> None:
    node.ask(4)
    node.asked(4)
    (node.sockets / answer_name(3, 4)).write_bytes(content)
    node.boards[4].words[Field.EXAMINE_GIVEN] = 1
    answers, missing = node.wait_for_end()
    assert answers == {} and why in missing[4]


def test_sites_that_are_none_are_passed_on_as_they_are(node: Node) -> None:
    """Whoever prints them says that they are not understood."""
    node.ask(4)
    node.asked(4)
    odd: list[Any] = [3, {"file": 3}, {"file": "/dev/zero", "line": 1}, {"file": "x\0y", "line": 1}, {"file": "a"}]
    node.give(4, 1, {"told": {"sites": odd}})
    answers, missing = node.wait_for_end()
    assert missing == {} and answers[4]["sites"][2] == {"file": "/dev/zero", "line": 1, "function": ""}


def stop(node: Node, *ranks: int) -> tuple[dict[int, Any], dict[int, str]]:
    told: list[Any] = []
    node.examinations.ask(ranks, "stop", {"what": "allocations"}, 0.0, lambda *one: told.append(one))
    return cast("tuple[dict[int, Any], dict[int, str]]", told.pop())


def test_one_that_goes_on_is_asked_to_end(node: Node) -> None:
    assert stop(node, 4, 9) == ({}, {4: "nothing of the kind goes on there", 9: "there is no such rank"})
    node.ask(4)
    node.take(4, node.asked(4))
    node.turn()
    assert stop(node, 4) == ({4: {"stopped": "allocations"}}, {})
    path = node.sockets / stop_name(3, 4)
    wait_until(path.exists, 20, "the file")
    assert read_whole(str(path), 1, 1000)["what"] == "allocations"
    node.give(4, 1)
    assert list(node.wait_for_end()[0]) == [4], "whoever has asked for it has its answer"


def test_one_that_was_not_taken_yet_is_withdrawn(node: Node) -> None:
    node.ask(4)
    node.asked(4)
    assert stop(node, 4) == ({4: {"stopped": "allocations"}}, {})
    assert node.wait_for_end() == ({}, {4: "it was called off before it began"})
    assert node.boards[4][Field.EXAMINE_ASKED] == 0


def test_one_of_an_earlier_supervisor_is_asked_to_end(node: Node) -> None:
    node.boards[4].words[Field.EXAMINE_ASKED] = node.boards[4].words[Field.EXAMINE_TAKEN] = 7
    assert stop(node, 4)[0] == {4: {"stopped": "allocations"}}
    path = node.sockets / stop_name(3, 4)
    wait_until(path.exists, 20, "the file")
    assert read_whole(str(path), 7, 1000)["what"] == "allocations"


def test_one_of_another_kind_goes_on(node: Node) -> None:
    node.ask(4)
    node.take(4, node.asked(4))
    told: list[Any] = []
    node.examinations.ask([4], "stop", {"what": "modules"}, 0.0, lambda *one: told.append(one))
    assert told == [({}, {4: "it is busy with something else (allocations)"})]
    assert not (node.sockets / stop_name(3, 4)).exists()


def test_rows_of_modules_have_room(node: Node) -> None:
    told: list[Any] = []
    node.examinations.ask([4], "modules", {}, 60.0, lambda *one: told.append(one))
    node.take(4, node.asked(4))
    node.give(4, 1, {"told": {"rows": "1" * (MAX_ANSWER_BYTES + 1)}})
    node.wait(lambda: told, "an end")
    assert len(told.pop()[0][4]["rows"]) == MAX_ANSWER_BYTES + 1
    node.examinations.ask([4], "modules", {}, 60.0, lambda *one: told.append(one))
    node.wait(lambda: node.boards[4][Field.EXAMINE_ASKED] == 2, "a request")
    node.take(4, 2)
    node.give(4, 2, {"told": {"rows": "1" * MAX_TRACE_BYTES}})
    node.wait(lambda: told, "an end")
    assert "is longer than" in told.pop()[1][4]


def test_secrets_of_the_environment_go_no_further(node: Node) -> None:
    node.ask(4)
    node.take(4, node.asked(4))
    variables = {"HF_TOKEN": "abc", "NCCL_DEBUG": "WARN", "HF_ENDPOINT": "https://me:sesame@example.org"}
    node.give(4, 1, {"told": {"environment": variables}})
    told = node.wait_for_end()[0][4]["environment"]
    assert told == {
        "HF_TOKEN": "(not recorded)",
        "NCCL_DEBUG": "WARN",
        "HF_ENDPOINT": "https://me:(not recorded)@example.org",
    }


PROFILED = {"steps": [[7, 1]], "wanted": 1, "plain_ns": 1, "held_ns": [1, 1, 1]}


def test_a_profile_is_read_compressed_and_kept_before_it_is_answered(node: Node) -> None:
    done: list[Any] = []
    arguments = {"steps": 1, "seconds": 5, "number": 2}
    node.examinations.ask([4, 5], "profile", arguments, 35.0, lambda *told: done.append(told))
    for number in (4, 5):
        request = node.asked(number)
        node.take(number, request)
        text = two_steps().text() if number == 4 else "no trace"
        (node.sockets / profile_name(3, number)).write_text(text)
        node.give(number, request, {"told": PROFILED})
    wait_until(lambda: (node.turn(), done)[1], 120, "both answers, by processes that give way to others")
    answers, missing = done[0]
    assert missing == {5: "its trace has no operators, and no kernels"}
    assert answers[4] | PROFILED == answers[4] and answers[4]["breakdown"]["where"] == "device"
    assert answers[4]["trace"] == "profiles/002/rank-4.json.gz"
    kept = node.sockets / answers[4]["trace"]
    assert gzip.decompress(kept.read_bytes()).decode() == two_steps().text()
    assert not list(node.sockets.glob("profile-*"))


def test_a_snapshot_of_a_device_is_moved(node: Node) -> None:
    done: list[Any] = []
    node.examinations.ask([4], "snapshot", {"seconds": 1}, 1.0, lambda *told: done.append(told))
    request = node.asked(4)
    node.take(4, request)
    (node.sockets / snapshot_name(3, 4)).write_bytes(b"\x80")
    node.give(4, request, {"told": {"held": []}})
    node.wait(lambda: done, "the answer")
    assert done[0] == (
        {
            4: {
                "held": [],
                "file": str(node.run_dir / "snapshots" / "001-rank-4.pickle"),
                "file_bytes": 1,
                "file_trouble": "",
            }
        },
        {},
    )
    assert not (node.sockets / snapshot_name(3, 4)).exists()
