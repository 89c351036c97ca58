"""What a person asks ranks: who is asked, what is refused, and one answer of all nodes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guardrun.hooks.wire.examinations import MAX_TRACE_BYTES
from guardrun.supervisor.daemon import store_room
from guardrun.supervisor.daemon.module_traces import answer_bytes
from guardrun.supervisor.daemon.rank_questions import QuestionsContext, QuestionsNode, RankQuestions
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import OpenFiles
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.fleet.transport.envelopes import MAX_BODY_BYTES
from guardrun.supervisor.rundir.profiles import read_summaries
from guardrun.supervisor.rundir.traces import TraceRow, read_traces
from guardrun.supervisor.wire.control_messages import Answer, Ask
from tests.rundir.profile_answers import PROFILED

GOOD = {"ranks": [1], "what": "allocations", "arguments": {"seconds": 20}, "seconds": 20, "who": "ada"}


class Side:
    """Asks ranks; a test answers for them."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], str, dict[str, Any], float]] = []
        self.done: Any = None

    def ask(self, ranks: Any, what: str, arguments: dict[str, Any], seconds: float, done: Any) -> None:
        numbers = [rank if isinstance(rank, int) else rank.global_rank for rank in ranks]
        self.asked.append((numbers, what, arguments, seconds))
        self.done = done
        if not numbers:
            done({}, {})


class Supervisor:
    """Has ranks 0 and 1; with a fleet, 2 and 3 live on node-b."""

    def __init__(self, has_fleet: bool = False, run_dir: Path = Path("/nowhere")) -> None:
        def rank(number: int, node: str) -> ev.Rank:
            return ev.Rank(global_rank=number, local_rank=number % 2, pid=number, node=node)

        self.here, self.there = Side(), Side()
        self.fed: list[ev.Event] = []
        self.sent: list[Answer] = []
        self.rows: list[Any] = []
        self.ranks = {0: rank(0, "node-a"), 1: rank(1, "node-a")}
        self.state = SimpleNamespace(phase=Phase.RUNNING, attempt=SimpleNamespace(number=2))
        others = [rank(2, "node-b"), rank(3, "node-b")]
        node = SimpleNamespace(
            ingest=SimpleNamespace(ranks=self.ranks, rows=lambda: self.rows),
            examinations=self.here,
            feed=self.fed.append,
            run_dir=run_dir,
            run_file=SimpleNamespace(launcher_pid=os.getpid()),
            clock=SimpleNamespace(now=lambda: 12.5),
            pool=SimpleNamespace(submit=lambda work: work()),
            post=lambda call: call(),
            send_to=lambda peer, answer: self.sent.append(answer),
        )
        fleet = SimpleNamespace(examinations=self.there, other_ranks=lambda: others) if has_fleet else None
        context = SimpleNamespace(fleet=fleet, engine=SimpleNamespace(state=self.state))
        self.questions = RankQuestions(cast(QuestionsNode, node), cast(QuestionsContext, context))

    def ask(self, **changes: object) -> None:
        self.questions.answer(b"peer", Ask(verb="examine", arguments={**GOOD, **changes}))

    def refusal(self, **changes: object) -> str:
        self.ask(**changes)
        answer = self.sent.pop()
        assert not answer.is_ok and self.fed == [] and self.here.asked == []
        return answer.error


def test_a_rank_of_this_node() -> None:
    run = Supervisor()
    run.ask()
    assert run.here.asked == [([1], "allocations", {"seconds": 20}, 20.0)]
    assert run.fed == [ev.ExaminationAsked(attempt=2, global_ranks=[1], what="allocations", seconds=20.0, who="ada")]
    assert run.sent == []
    run.here.done({1: {"sites": []}}, {})
    (answer,) = run.sent
    assert answer == Answer(is_ok=True, data={"ranks": {"1": {"sites": []}}, "missing": {}, "nodes": {"1": "node-a"}})


def test_ranks_of_several_nodes_are_answered_for_together() -> None:
    run = Supervisor(has_fleet=True)
    run.ask(ranks=[3, 0, 3])
    assert (run.here.asked[0][0], run.there.asked[0][0]) == ([0], [3])
    run.there.done({3: {"a": 1}}, {})
    assert run.sent == []
    run.here.done({}, {0: "it is stopped"})
    (answer,) = run.sent
    assert answer.data == {
        "ranks": {"3": {"a": 1}},
        "missing": {"0": "it is stopped"},
        "nodes": {"0": "node-a", "3": "node-b"},
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"ranks": [1, 7, 8]}, "no rank 7-8: there are 0-1"),
        ({"ranks": []}, "not said which ranks"),
        ({"ranks": "1"}, "not said which ranks"),
        ({"ranks": ["1"]}, "not said which ranks"),
        ({"ranks": list(range(65))}, "64 ranks at once"),
        ({"what": None}, "not said what"),
        ({"arguments": [1]}, "not said what"),
        ({"seconds": "60"}, "not said what"),
        ({"seconds": 601}, "for 600 seconds at most"),
        ({"seconds": float("nan")}, "for 600 seconds at most"),
    ],
)
def test_what_is_refused(changes: dict[str, object], error: str) -> None:
    assert error in Supervisor().refusal(**changes)


def test_between_attempts_nobody_is_asked() -> None:
    run = Supervisor()
    run.state.phase = Phase.STOPPING
    assert "no attempt runs: it is stopping" in run.refusal()


TRACED: dict[str, Any] = {
    "names": ["", "head"],
    "stages": ["forward", "backward"],
    "rows": "7 1 0 1500000 4096;7 0 0 2000000 -1",
    "steps": [[7, 3_000_000]],
    "left_out": 2,
    "is_cut": False,
    "memory": "host",
    "compiled": [],
    "compiled_count": 0,
    "is_compiled": False,
}


def test_times_of_modules_are_kept(tmp_path: Path) -> None:
    run = Supervisor(run_dir=tmp_path)
    asked = {"what": "modules", "arguments": {"steps": 5, "seconds": 60}, "seconds": 60}
    run.ask(ranks="all", **asked)
    (numbers, what, arguments, seconds) = run.here.asked[0]
    assert (numbers, what, seconds) == ([0, 1], "modules", 60.0)
    assert arguments == {"steps": 5, "seconds": 60, "bytes": answer_bytes(2)}
    run.here.done({0: TRACED, 1: {**TRACED, "rows": "1 9 0 1 1"}}, {})
    (answer,) = run.sent
    kept = {"file": "traces/001-rank-0.json", "rows": 2, "left_out": 2}
    assert (answer.data["number"], answer.data["ranks"]) == (1, {"0": kept})
    assert "none of this version" in answer.data["missing"]["1"]
    (trace,) = read_traces(tmp_path)
    assert trace.rows == [TraceRow(7, "head", "forward", 0.0015, 4096), TraceRow(7, "", "forward", 0.002, -1)]
    assert (trace.node, trace.attempt, trace.at_s, trace.steps) == ("node-a", 2, 12.5, [(7, 0.003)])
    run.ask(ranks=[1], **asked)
    run.here.done({1: TRACED}, {})
    assert run.sent[-1].data["number"] == 2 and len(list(read_traces(tmp_path))) == 2


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("no folder")
    run = Supervisor(run_dir=tmp_path)
    run.ask(what="modules")
    run.here.done({1: TRACED}, {})
    assert run.sent[0].data["ranks"] == {} and "can't be kept" in run.sent[0].data["missing"]["1"]
    run.ask(what="modules")
    run.here.done({}, {1: "it is stopped"})
    assert run.sent[1].data == {"ranks": {}, "missing": {"1": "it is stopped"}, "nodes": {"1": "node-a"}}


def test_an_answer_is_as_long_as_all_of_them_may_be() -> None:
    assert answer_bytes(1) == MAX_TRACE_BYTES
    assert 64 * answer_bytes(64) + 64 * 1024 < MAX_BODY_BYTES


def test_to_stop_is_no_examination() -> None:
    run = Supervisor(has_fleet=True)
    run.ask(ranks="all", what="stop", arguments={"what": "modules"}, seconds=0)
    assert run.fed == [] and run.here.asked == [([0, 1], "stop", {"what": "modules"}, 0.0)]
    assert run.there.asked == [([2, 3], "stop", {"what": "modules"}, 0.0)]


def test_profiles_have_a_number_before_they_are_made(tmp_path: Path) -> None:
    run = Supervisor(has_fleet=True, run_dir=tmp_path)
    asked = {"what": "profile", "arguments": {"steps": 5, "seconds": 60}, "seconds": 90}
    for number in (1, 2):
        run.ask(ranks=[0, 2], **asked)
        arguments = {"steps": 5, "seconds": 60, "number": number}
        assert run.here.asked[-1] == ([0], "profile", arguments, 90.0)
        assert run.there.asked[-1] == ([2], "profile", arguments, 90.0)
        run.here.done({0: {**PROFILED, "trace": f"profiles/{number:03d}/rank-0.json.gz"}}, {})
        run.there.done({}, {2: "it is stopped"})
        answer = run.sent.pop()
        assert answer.data["number"] == number and answer.data["missing"] == {"2": "it is stopped"}
        assert answer.data["ranks"] == {"0": {"trace": f"profiles/{number:03d}/rank-0.json.gz", "bytes": 9}}
        assert [one.rank for one in read_summaries(tmp_path, number)] == [0]


def test_where_nothing_can_be_kept_no_rank_is_profiled() -> None:
    run = Supervisor()
    run.ask(what="profile")
    (answer,) = run.sent
    assert "nothing can be kept in /nowhere" in answer.error and run.here.asked == []


def test_code_is_not_asked_by_way_of_the_head() -> None:
    for ranks in ([1], [0, 3]):
        run = Supervisor(has_fleet=True)
        refused = run.refusal(what="eval", ranks=ranks, arguments={"code": "1"})
        assert refused == "code is run only for who asks on the rank's own node: guardctl eval there"
        assert run.there.asked == []


def test_rates_are_changed_on_all_ranks_at_a_step_to_come() -> None:
    run = Supervisor()
    run.state.world_size = 2
    run.state.attempt.step = 40
    run.state.attempt.ranks = {0: SimpleNamespace(step=50), 1: SimpleNamespace(step=51)}
    run.rows = [SimpleNamespace(step_time_s=0.5), SimpleNamespace(step_time_s=None)]
    run.ask(ranks="all", what="rate", arguments={"mode": "scale", "value": 0.1}, seconds=0)
    ((numbers, what, arguments, seconds),) = run.here.asked
    assert (numbers, what, arguments["mode"], arguments["at_step"]) == ([0, 1], "rate", "scale", 51 + 13)
    assert arguments["seconds"] == seconds == 30 + 15 * 0.5 and len(arguments["id"]) == 8
    (asked,) = run.fed
    assert isinstance(asked, ev.HandChangeAsked) and (asked.verb, asked.text, asked.who) == ("scale", "lr 0.1", "ada")
    run.here.done({0: {"step": 64, "changes": ["a"]}, 1: {"step": 64, "changes": ["a"]}}, {})
    ended = run.fed[1]
    assert isinstance(ended, ev.HandChangeEnded) and (ended.id, ended.outcome) == (asked.id, "done")
    assert (ended.step, ended.changes) == (64, ["a"])


@pytest.mark.parametrize(("free", "most"), [(10, 256), (600, 344), (None, 999_744)])
def test_as_many_ranks_change_rates_as_the_process_with_the_store_has_room_for(
    free: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {os.getpid(): OpenFiles(5000, 5000 + free if free else 0), 0: OpenFiles(1, 1_000_001)}
    monkeypatch.setattr(store_room, "read_open_files", limits.get)
    run = Supervisor()
    run.state.attempt.step = 40
    run.ranks |= {number: ev.Rank(global_rank=number, local_rank=0, pid=0, node="node-a") for number in range(2, 300)}
    run.state.world_size, run.state.attempt.ranks = len(run.ranks), {}
    if most < len(run.ranks):
        assert f"300 ranks would have to agree: the process that has torch's store may have room for {most} more" in (
            run.refusal(ranks="all", what="rate", seconds=0)
        )
        return
    run.ask(ranks="all", what="rate", arguments={"mode": "set", "value": 0.1}, seconds=0)
    ((numbers, _, arguments, _),) = run.here.asked
    assert (len(numbers), arguments["most"]) == (300, min(most, 999_744))


def test_of_many_ranks_the_first_are_asked_which_is_said() -> None:
    run = Supervisor()
    run.ranks |= {number: ev.Rank(global_rank=number, local_rank=0, pid=0, node="node-a") for number in range(2, 300)}
    run.ask(ranks="all")
    ((numbers, *_),) = run.here.asked
    run.here.done({}, dict.fromkeys(numbers, "it is stopped"))
    assert numbers == list(range(64)) and run.sent[0].data["left_out"] == 236


def test_where_nobody_can_see_that_process_few_ranks_do() -> None:
    assert store_room.count_room([]) == store_room.count_room([os.getpid(), 2**30]) == store_room.UNSEEN
    assert store_room.count_room([os.getpid()]) >= store_room.UNSEEN


def test_rates_that_are_not_changed_and_ranks_that_are_missing() -> None:
    run = Supervisor()
    run.state.world_size = 3
    assert "2 of 3 ranks: rates are changed on all of them" in run.refusal(ranks="all", what="rate", seconds=0)
    run.state.world_size = 2
    run.state.attempt.ranks, run.state.attempt.step = {}, 7
    run.ask(ranks="all", what="rate", arguments={"mode": "set", "value": 0.1}, seconds=0)
    run.here.done({}, {0: "it was late", 1: "another rank said no"})
    ended = run.fed[1]
    assert isinstance(ended, ev.HandChangeEnded) and (ended.outcome, ended.why) == ("not run", "it was late")
