"""Crashes that say no more than that ranks lost each other: what they had called last says why."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.failures.mismatch_report import explain, last_calls
from guardrun.supervisor.engine.failures.root_cause import Fall, blame
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import ErrorRecord, ExitTrace
from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook
from guardrun.supervisor.engine.observation.collective_waits import match
from tests.engine.conftest import Told

LINE = Frame("train", "/home/me/train.py", 60)
PEER_LOST = ErrorRecord(
    error="RuntimeError", message="Connection closed by peer [127.0.0.1]:1", traceback="torch/distributed/x.py"
)


def trace(rank: int, *calls: Call, error: ErrorRecord | None = None) -> ExitTrace:
    group = GroupLook(name="0", desc="default_pg", backend="gloo", ranks=[0, 1, 2], calls=list(calls))
    group = msgspec.structs.replace(group, issued=max(c.seq for c in calls))
    return ExitTrace(global_rank=rank, groups=[group], error=error)


def call(seq: int, size: int = 9, *, done: bool = True, op: str = "all_gather") -> Call:
    return Call(seq, op, [[size]], "float32", "completed" if done else "issued", float(seq), LINE)


def test_an_abort_in_calls_of_other_sizes_is_a_mismatch() -> None:
    found = blame([Fall(global_rank=1, exitcode=-6, at_s=5.0), Fall(global_rank=0, exitcode=-6, at_s=5.1)])
    assert found.cause == "abort"
    traces = [trace(r, call(7), call(8, 3 if r == 1 else 9, done=False)) for r in range(3)]
    told = explain(found, match(last_calls(traces)), ended=[])
    assert (told.cause, told.culprits) == ("collective_mismatch", [1])
    assert told.what == (
        "was in all_gather of [3] float32 (train.py:60) while ranks 0,2 were in all_gather of [9] float32 (train.py:60)"
        ", as call 8 of the default group"
    )


GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 5548 vs 4. Received"
    " data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
)


def test_who_received_a_call_of_another_size_is_not_the_one_that_sent_it() -> None:
    """Rank 1 has left an all_reduce out, and goes on with one that only torch knows of; rank 0 tells of it."""
    found = blame([Fall(global_rank=0, exitcode=-6, at_s=5.0, stderr_tail=GLOO)])
    assert (found.cause, found.culprits) == ("collective_mismatch", [0])
    traces = [trace(0, call(7), call(9, done=False)), trace(1, call(7)), trace(2, call(7), call(9, done=False))]
    told = explain(found, match(last_calls(traces)), ended=[])
    assert (told.cause, told.culprits) == ("collective_mismatch", [1])
    assert told.what == ("was not in call 9 of the default group, all_gather (train.py:60), in which ranks 0,2 waited")
    later = trace(1, call(7))
    later.groups[0] = msgspec.structs.replace(later.groups[0], issued=9)  # and has issued one more of these since
    assert explain(found, match(last_calls([traces[0], later, traces[2]])), ended=[]) == told
    two = explain(found, match(last_calls(traces[:2])), ended=[])
    assert two.culprits == [] and "one too many or one too few" in two.why_nobody
    assert explain(found, match(last_calls([traces[0], traces[2]])), ended=[]) is found, "nothing tells who sent it"


def test_its_words_stay_in_the_evidence(told: Told) -> None:
    told.running(3)
    told.exits(0, -6, 20.0)
    told.tick()
    traces = [trace(0, call(7), call(9, done=False)), trace(1, call(7)), trace(2, call(7), call(9, done=False))]
    traces[0] = msgspec.structs.replace(traces[0], stderr_tail=GLOO)
    told.tell(ev.ExitsRead(attempt=0, traces=traces), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, [one.rank for one in incident.culprits]) == ("collective_mismatch", [1])
    assert "op.preamble.length" in incident.evidence["stderr"]


def test_what_a_rank_says_itself_comes_first() -> None:
    error = ErrorRecord(error="ValueError", message="bad", frames=[("/home/me/train.py", "train", 60)])
    found = blame([Fall(global_rank=0, exitcode=1, at_s=5.0, error=error)])
    traces = [trace(r, call(8, 3 if r == 1 else 9, done=False)) for r in range(3)]
    assert explain(found, match(last_calls(traces)), ended=[]) is found


def test_a_rank_that_ended_a_call_short_is_named_by_the_many() -> None:
    found = blame([Fall(global_rank=r, exitcode=1, at_s=5.0, error=PEER_LOST) for r in (0, 2)])
    assert found.culprits == []
    traces = [trace(0, call(8), call(9, done=False)), trace(1, call(8)), trace(2, call(8), call(9, done=False))]
    told = explain(found, match(last_calls(traces)), ended=[1])
    assert (told.cause, told.culprits) == ("collective_mismatch", [1])
    assert told.what == "ended without call 9 of the default group, all_gather (train.py:60), in which ranks 0,2 waited"


def test_of_two_neither_is_named() -> None:
    found = blame([Fall(global_rank=0, exitcode=1, at_s=5.0, error=PEER_LOST)])
    told = explain(found, match(last_calls([trace(0, call(9, done=False)), trace(1, call(8))])), ended=[1])
    assert (told.cause, told.culprits) == ("collective_mismatch", [])
    assert "one too many or one too few" in told.why_nobody


def test_ranks_that_agree_change_nothing() -> None:
    found = blame([Fall(global_rank=1, exitcode=-6, at_s=5.0)])
    assert explain(found, match(last_calls([trace(r, call(8, done=False)) for r in range(3)])), ended=[]) is found
    assert explain(found, match([]), ended=[]) is found


def test_a_whole_crash_is_told_with_its_calls(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    traces = [trace(r, call(7), call(8, 3 if r == 1 else 9, done=False)) for r in range(3)]
    told.tell(ev.ExitsRead(attempt=0, traces=traces), 20.5)
    incident = told.incidents["001"]
    assert (incident.kind, incident.cause, [c.rank for c in incident.culprits]) == ("crash", "collective_mismatch", [1])
    assert incident.summary.startswith(
        "Rank 1 on node-a was in all_gather of [3] float32 (train.py:60) while ranks 0,2"
    )
    assert [row["ranks"] for row in incident.evidence["collectives"]["rows"] if row["is_odd"]] == ["0,2", "1"]
