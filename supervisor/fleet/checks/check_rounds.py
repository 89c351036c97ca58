"""The head's part in trying nodes together: who is asked what, in which order, and how long answers are waited for.

Pure: orders are collected in `orders`, and answers come by `on_answer`; times are seconds of any one clock. A node that
does not answer is said to have not, and is never faulty for that: the job starts all the same, and shows what it was.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.engine.membership import reachability
from guardrun.supervisor.engine.membership.reachability import AllReduceResult, Judged, ProbeResult, names
from guardrun.supervisor.engine.membership.version_skew import compare
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import CheckNodes
from guardrun.supervisor.fleet.protocol import messages as msg

PROBE_S = 8.0
MEET_S = 6.0
"""Above what a node takes for all its calls (fleet/checks/node_probes.py), and the way there and back."""
WARM_S = 110.0
ADD_S = 40.0
KEEP_S = 30.0
"""How long a listener stays at most, where nobody ends it."""
MOST_RECORDED = 256
"""Nodes whose facts are kept in the record: each has some kilobytes, and what differs is said of all."""
SCHEMA = 1

What = msg.Probe | msg.Meet | msg.Warm | msg.Add
Answer = msg.Probed | msg.Met | msg.Warmed | msg.Added


class Ask(NamedTuple):
    """One step: what each node is asked."""

    whats: Mapping[str, What]
    limit_s: float


Flow = Generator[Ask, dict[str, Any], ev.NodesChecked]
"""Steps out, answers by node in; in the end what the engine is told."""


class FleetChecks:
    """One check at a time."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, msg.CheckStep | msg.EndCheck]] = []
        """Node, order: for the caller to send and clear."""
        self.record: dict[str, Any] = {}
        """What the last check has found, all of it."""
        self._flow: Flow | None = None
        self._check = -1
        self._nodes: list[str] = []
        self._step = 0
        self._ask = Ask({}, 0.0)
        self._answers: dict[str, Answer] = {}
        self._by_s = self._began_s = 0.0
        self._gone: set[str] = set()
        self._waiting: set[str] = set()
        """Whose answers to this step are still to come: there may be thousands."""

    def begin(self, order: CheckNodes, token: bytes, now_s: float) -> None:
        """Have nodes tried. token: what callers bring, 16 bytes that nobody else can guess."""
        self._check, self._step, self._nodes, self._gone = order.check, 0, list(order.nodes), set()
        self._began_s = now_s
        self.record = {"schema": SCHEMA, "level": order.level, "nodes": self._nodes}
        self._flow = _try_together(self._nodes, order.level, token, self.record)
        self._begin_step(next(self._flow), now_s)

    def on_answer(self, node: str, message: msg.CheckAnswer, now_s: float) -> ev.NodesChecked | None:
        """An answer; the event once it was the last one."""
        if self._flow is None or (message.check, message.step) != (self._check, self._step):
            return None
        if node in self._ask.whats:
            self._answers[node] = message.answer
            self._waiting.discard(node)
        return self.tick(now_s)

    def gone(self, node: str) -> None:
        """A node is not there any more: its answer is not waited for."""
        self._gone.add(node)
        self._waiting.discard(node)

    def tick(self, now_s: float) -> ev.NodesChecked | None:
        """Once a second, or when anything has changed."""
        while self._flow is not None:
            if self._waiting and now_s < self._by_s:
                return None
            try:
                self._begin_step(self._flow.send(self._answers), now_s)
            except StopIteration as stop:
                found: ev.NodesChecked = stop.value
                self.end()
                took_s = round(now_s - self._began_s, 3)
                self.record |= {"took_s": took_s, "faulty": found.faulty, "said": found.said}
                return msgspec.structs.replace(found, check=self._check, took_s=took_s)
        return None

    def end(self) -> None:
        """Whatever is going on is of no use any more."""
        if self._flow is not None:
            self._flow.close()
            self._flow = None
            self.orders += [(node, msg.EndCheck()) for node in self._nodes]

    def _begin_step(self, ask: Ask, now_s: float) -> None:
        self._step += 1
        self._ask, self._answers, self._by_s = ask, {}, now_s + ask.limit_s
        self._waiting = set(ask.whats) - self._gone
        self.orders += [
            (node, msg.CheckStep(check=self._check, step=self._step, what=what)) for node, what in ask.whats.items()
        ]


def _try_together(nodes: Sequence[str], level: str, token: bytes, record: dict[str, Any]) -> Flow:
    probed = yield Ask({node: msg.Probe(token=token, keep_s=KEEP_S) for node in nodes}, PROBE_S)
    said = [f"{node} cannot be tried: {answer.error}" for node, answer in probed.items() if answer.error]
    said += _silent(nodes, probed)
    there = {node: probed[node] for node in nodes if node in probed and not probed[node].error}
    facts = {node: answer.facts for node, answer in there.items()}
    record["facts"] = {node: msgspec.to_builtins(one) for node, one in list(facts.items())[:MOST_RECORDED]}
    places = {node: msg.Place(node=node, address=one.address, port=one.port) for node, one in there.items()}
    plan = {node: others for node, others in reachability.plan_probes(list(there)).items() if others}
    meetings = yield from _meet(plan, places, said)
    judged = reachability.judge_reachability(meetings)
    if judged.faulty:
        # A node is kept out of more than this run for it: what a moment's load or a link that was just coming up made
        # of it counts for nothing.
        again = yield from _meet(reachability.to_try_again(plan, judged.faulty), places, [])
        meetings = reachability.latest(meetings, again)
        judged = reachability.judge_reachability(meetings)
    record["meetings"] = [[one.source, one.target, round(one.took_s * 1000, 3), one.error] for one in meetings]
    faulty, evidence = dict(judged.faulty), dict(judged.evidence)
    said = [*compare(facts), *judged.said, *said]
    if level == "full":
        well = [node for node in there if node not in faulty]
        summed = yield from _sum_together({node: places[node] for node in well}, record)
        faulty |= summed.faulty
        evidence |= summed.evidence
        said += summed.said
    return ev.NodesChecked(check=0, faulty=faulty, evidence=evidence, said=said)


def _meet(
    plan: Mapping[str, Sequence[str]], places: Mapping[str, msg.Place], said: list[str]
) -> Generator[Ask, dict[str, Any], list[ProbeResult]]:
    """Have nodes reach others. said: gets who did not answer."""
    meets = {node: msg.Meet(places=[places[other] for other in others]) for node, others in plan.items()}
    met = yield Ask(meets, MEET_S)
    said += _silent(meets, met)
    return [one for node in meets if node in met for one in met[node].meetings]


def _silent(asked: Sequence[str] | Mapping[str, object], answers: Mapping[str, object]) -> list[str]:
    missing = [node for node in asked if node not in answers]
    return [f"{names(missing)} did not answer in time"] if missing else []


def _sum_together(places: Mapping[str, msg.Place], record: dict[str, Any]) -> Generator[Ask, dict[str, Any], Judged]:
    """Two rounds of all-reduces between two nodes."""
    said: list[str] = []
    warmed = yield Ask({node: msg.Warm() for node in places}, WARM_S)
    ready = [node for node in places if node in warmed and not warmed[node].error]
    said += _silent(places, warmed)
    said += [f"torch does not start on {node}: {one.error}" for node, one in warmed.items() if one.error]
    first = yield from _round("1", reachability.first_round(ready), places)
    second = yield from _round("2", reachability.second_round(ready, first), places)
    record["all_reduces"] = [[*one.nodes, round(one.took_s * 1000, 3), one.error] for one in (*first, *second)]
    judged = reachability.judge_all_reduces(first, second)
    return Judged(faulty=judged.faulty, evidence=judged.evidence, said=said + judged.said)


def _round(
    number: str, waves: Sequence[Sequence[tuple[str, str]]], places: Mapping[str, msg.Place]
) -> Generator[Ask, dict[str, Any], list[AllReduceResult]]:
    done: list[AllReduceResult] = []
    for wave, couples in enumerate(waves):
        # Processes that hung in the wave before were ended: they are there again, or it is said why not.
        warmed = yield Ask({node: msg.Warm() for couple in couples for node in couple}, WARM_S)
        adds: dict[str, What] = {}
        for place, couple in enumerate(couples):
            broken = next((node for node in couple if node not in warmed or warmed[node].error), "")
            if broken:
                why = warmed[broken].error if broken in warmed else "no answer"
                done.append(AllReduceResult(nodes=couple, error=f"torch does not start on {broken}: {why}"))
                continue
            adds |= _adds(couple, warmed, places, f"{number}.{wave}.{place}")
        added = yield Ask(adds, ADD_S)
        done += [_summed(couple, added) for couple in couples if couple[0] in adds]
    return done


def _adds(
    couple: tuple[str, str], warmed: Mapping[str, msg.Warmed], places: Mapping[str, msg.Place], prefix: str
) -> dict[str, What]:
    first, second = couple
    address, port = places[first].address, warmed[first].port
    ranks = warmed[first].devices + warmed[second].devices
    return {
        node: msg.Add(address=address, port=port, prefix=prefix, first_rank=first_rank, ranks=ranks)
        for node, first_rank in ((first, 0), (second, warmed[first].devices))
    }


def _summed(couple: tuple[str, str], added: Mapping[str, msg.Added]) -> AllReduceResult:
    errors = [added[node].error if node in added else f"no answer from {node}" for node in couple]
    error = next((error for error in errors if error), "")
    return AllReduceResult(
        nodes=couple, error=error, took_s=0.0 if error else max(added[node].took_s for node in couple)
    )
