"""What looks show of the process groups of two real ranks over gloo, stuck in one way after another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import HookFailed
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.collect.ranks.look import take_look
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.engine.model.looks import Call, GroupLook, RankLook
from tests.hooks.bed import Bed, finish
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[1] / "ranks_in_groups.py"

pytestmark = pytest.mark.real("py-spy")


class Job:
    """Two ranks, and looks at them."""

    def __init__(self, bed: Bed, signs: Path) -> None:
        [port] = free_ports(1)
        self.bed = bed
        self.signs = signs
        more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.processes = [bed.start([str(SCRIPT), str(signs)], rank=rank, more=more) for rank in range(2)]
        self.clock = EngineClock(100.0, time.monotonic())

    def state_of(self, rank: int) -> str:
        stat = read_stat(self.processes[rank].pid)
        return stat.state if stat is not None else ""

    def sign(self, name: str) -> None:
        (self.signs / name).touch()

    def look(self) -> list[RankLook]:
        boards = open_boards(self.bed.sockets, 0, range(2))
        pids = [process.pid for process in self.processes]
        ranks = [Rank(global_rank=rank, local_rank=rank, pid=pid, node="n") for rank, pid in enumerate(pids)]
        try:
            taken = take_look(
                0, ranks, boards=boards, clock=self.clock, sockets_dir=self.bed.sockets, folder=None, samples=1
            )
        finally:
            for board in boards.values():
                board.close()
        return taken.ranks

    def look_until(self, test: Callable[[list[RankLook]], bool], what: str) -> list[RankLook]:
        last: list[RankLook] = []

        def is_so() -> bool:
            last[:] = self.look()
            return len(last) == 2 and test(last)

        try:
            wait_until(is_so, 60, what)
        except TimeoutError as error:
            raise AssertionError([look.groups for look in last]) from error
        return last


def group(look: RankLook, desc: str) -> GroupLook:
    return next(each for each in look.groups if each.desc == desc)


def pending(look: RankLook) -> list[tuple[str, Call]]:
    return [(each.desc, call) for each in look.groups for call in each.calls if call.state != "completed"]


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line)


def sources(looks: list[RankLook]) -> list[str]:
    return [each.source for look in looks for each in look.groups if each.desc == "pair"]


def holds_gil(look: RankLook) -> bool:
    return any(thread.is_main and thread.owns_gil for thread in look.process.threads)


@pytest.fixture(scope="module", autouse=True)
def long_limits() -> Iterator[None]:
    """Looks have time for a py-spy that starts slowly, and a rank that answers slowly, as on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guardrun.supervisor.collect.ranks.look.TIMEOUT_S", 20.0)
        patch.setattr("guardrun.supervisor.collect.ranks.look.limit_s", lambda *_: 60.0)
        patch.setattr("guardrun.supervisor.collect.collectives.recorder_reader.FETCH_S", 20.0)
        yield


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[RankLook]]]:
    """Looks, by what the ranks were stuck in; the job has come to its end."""
    seen: dict[str, list[RankLook]] = {}
    with Bed(world_size=2) as bed:
        job = Job(bed, tmp_path_factory.mktemp("signs"))
        wait_until((job.signs / "missing").exists, 60, "a rank that doesn't come")
        seen["asleep"] = job.look_until(
            lambda looks: any(d == "pair" for d, _ in pending(looks[0])) and sources(looks) == ["both", "both"],
            "rank 0's wait",
        )
        job.sign("hold")
        wait_until((job.signs / "holding").exists, 60, "a call that holds the GIL")
        seen["gil held"] = job.look_until(
            lambda looks: holds_gil(looks[1]) and sources(looks) == ["both", "both"], "the GIL to be held"
        )
        os.kill(job.processes[1].pid, signal.SIGSTOP)
        seen["stopped"] = job.look_until(
            lambda looks: looks[1].process.state == "T" and sources(looks) == ["both", "hooks"], "a stop"
        )
        os.kill(job.processes[1].pid, signal.SIGCONT)
        # A thread that still stands takes no signal: another one of its process would.
        wait_until(lambda: job.state_of(1) == "S", 60, "the stopped rank to go on")
        os.kill(job.processes[1].pid, signal.SIGUSR1)
        job.sign("come")
        for sign, rank, ops in (
            ("send", 1, ["recv"]),
            ("send again", 1, ["irecv"]),
            ("scatter", 0, ["reduce_scatter"] * 2),
        ):
            seen[ops[0]] = job.look_until(
                lambda looks, rank=rank, ops=ops: [call.op for _, call in pending(looks[rank])] == ops,  # type: ignore[misc]
                ops[0],
            )
            job.sign(sign)
        wait_until((job.signs / "closed").exists, 20, "a closed socket")
        seen["closed"] = job.look_until(lambda looks: "closed" in looks[1].groups_trouble, "that to be seen")
        job.sign("end")
        done = [finish(process) for process in job.processes]
        assert [(rank.returncode, rank.stdout, rank.stderr) for rank in done] == [(0, "", "")] * 2
        assert bed.hear_all(HookFailed) == []
        yield seen


@pytest.mark.parametrize("when", ["asleep", "gil held", "stopped"])
def test_a_rank_that_does_not_come_has_issued_one_less(seen: dict[str, list[RankLook]], when: str) -> None:
    waiting, missing = (group(look, "pair") for look in seen[when])
    assert (waiting.issued, waiting.completed, waiting.ranks, waiting.backend) == (4, 3, [0, 1], "gloo")
    assert (missing.issued, missing.completed, missing.ranks, missing.backend) == (3, 3, [0, 1], "gloo")
    assert not pending(seen[when][1])
    [(_, call)] = pending(seen[when][0])
    assert (call.seq, call.op, call.sizes, call.dtype) == (4, "all_reduce", [[4, 5]], "float32")
    assert call.frame is not None
    assert (call.frame.function, call.frame.line) == ("reduce_in_pairs", line_of("# in pairs"))
    assert call.frame.file == str(SCRIPT)


def test_where_they_are_from_is_said(seen: dict[str, list[RankLook]]) -> None:
    assert [group(look, "pair").source for look in seen["gil held"]] == ["both", "both"]
    assert [group(look, "pair").source for look in seen["stopped"]] == ["both", "hooks"]
    assert [look.groups_trouble for look in seen["gil held"]] == ["", ""]
    assert "stopped" in seen["stopped"][1].groups_trouble
    assert "closed the flight recorder's socket" in seen["closed"][1].groups_trouble


def test_what_ddp_issues_is_seen_without_a_line(seen: dict[str, list[RankLook]]) -> None:
    told = group(seen["asleep"][0], "default_pg")
    buckets = [(call.op, call.state, call.frame) for call in told.calls if call.sizes == [[12]]]
    assert buckets == [("broadcast", "completed", None)] + [("all_reduce", "completed", None)] * 3


def test_numbers_agree_between_ranks_and_sources(seen: dict[str, list[RankLook]]) -> None:
    """A stopped rank's come from the hooks alone, after sends, receives and a monitored barrier."""
    for when in ("asleep", "stopped", "reduce_scatter"):
        first, second = (group(look, "default_pg") for look in seen[when])
        assert first.issued - second.issued == (2 if when == "reduce_scatter" else 0), when
    alone = [each for each in seen["asleep"][0].groups if each.ranks == [0]]
    assert [(each.issued, each.completed) for each in alone] == [(1, 1)]


def test_a_receive_that_waits_shows_its_peer(seen: dict[str, list[RankLook]]) -> None:
    for name, number, text in (("recv", 2, "# waits"), ("irecv", 3, "# waits again")):
        [(_, call)] = pending(seen[name][1])
        assert (call.op, call.peer, call.seq, call.sizes) == (name, 0, number, [[2]])
        assert call.frame is not None
        assert call.frame.line == line_of(text)


def test_what_gloo_makes_of_a_call_keeps_its_name(seen: dict[str, list[RankLook]]) -> None:
    calls = [call for _, call in pending(seen["reduce_scatter"][0])]
    assert [(call.op, call.sizes) for call in calls] == [("reduce_scatter", [[3], [3]])] * 2


def test_a_rank_that_dies_while_it_is_looked_at_costs_no_more_than_itself(tmp_path: Path) -> None:
    with Bed(world_size=2) as bed:
        job = Job(bed, tmp_path)
        job.look_until(lambda looks: bool(pending(looks[0])), "rank 0's wait")
        os.kill(job.processes[1].pid, signal.SIGKILL)
        looks = job.look()
        assert looks[0].global_rank == 0
        assert looks[0].groups
