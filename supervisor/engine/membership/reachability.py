"""Which nodes see which others, and what follows: who is faulty, which pair it is, who is slow. Pure.

A node is faulty where it fails with most of those that others reach; a single pair that fails is the pair's, and two
halves that do not see each other are nobody's own. So one bad cable never evicts two nodes, and a check that nobody
passes evicts none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

ALL_PAIRS = 64
"""Up to so many nodes every pair is tried, both ways; beyond, each tries those at distance 1, 2, 4, … in a ring."""
SLOW = 4.0
"""Times the others' median echo: a node that is slower is said to be."""
SLOW_LEAST_S = 0.005
"""Below this an echo is quick, whatever the others' are: a busy host's scheduling takes as long."""
MAX_NAMED = 4
MAX_SHOWN = 16
"""Failures in the evidence of one node."""
STRAGGLES = 2.0
"""Times the median all-reduce of a pair (DLRover's node check)."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one node met another."""

    source: str
    target: str
    took_s: float = 0.0
    """The quickest echo."""
    error: str = ""
    """Why it did not; empty: it did."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What meetings say."""

    faulty: dict[str, str] = {}
    """Node → what it fails at, with whom: a clause for `NODE …`."""
    evidence: dict[str, dict[str, Any]] = {}
    """Of each of those: what was measured of it."""
    said: list[str] = []
    """What is odd, and stops nobody."""


def plan_probes(nodes: Sequence[str]) -> dict[str, list[str]]:
    """Who tries to reach whom."""
    count = len(nodes)
    if count <= ALL_PAIRS:
        return {node: [other for other in nodes if other != node] for node in nodes}
    steps = [1 << power for power in range((count - 1).bit_length())]
    return {
        node: list(dict.fromkeys(nodes[(place + step) % count] for step in steps)) for place, node in enumerate(nodes)
    }


def judge_reachability(meetings: Iterable[ProbeResult]) -> Judged:
    """meetings: one each way that was tried."""
    tried: dict[str, dict[str, str]] = {}
    seen = list(meetings)
    for one in seen:
        for node, other in ((one.source, one.target), (one.target, one.source)):
            known = tried.setdefault(node, {})
            known[other] = known.get(other, "") or one.error
    faulty = _find_faulty(tried)
    said = _odd_pairs(tried, faulty)
    return Judged(
        faulty={node: _why(node, tried[node], seen) for node in sorted(faulty)},
        evidence={node: _evidence(node, tried[node], seen) for node in sorted(faulty)},
        said=said + _slow(seen, faulty),
    )


def _find_faulty(tried: Mapping[str, Mapping[str, str]]) -> set[str]:
    reached = {node for node, others in tried.items() if any(not error for error in others.values())}

    def fails_with_most(node: str, others: Mapping[str, str]) -> bool:
        counted = [bool(error) for other, error in others.items() if other in reached]
        return sum(counted) * 2 > len(counted)

    failing = {node for node, others in tried.items() if fails_with_most(node, others)}
    # Where half of all fail, it is no node's own: what lies between them, or the check itself.
    if len(failing & reached) * 2 >= len(reached):
        return set()
    return failing


def _why(node: str, others: Mapping[str, str], seen: Sequence[ProbeResult]) -> str:
    bad = [other for other, error in others.items() if error]
    from_it = [one for one in seen if one.source == node and one.error]
    to_it = [one for one in seen if one.target == node and one.error]
    way = (
        "neither reaches nor is reached by"
        if from_it and to_it
        else "does not reach"
        if from_it
        else "is not reached by"
    )
    of = f"any of {len(bad)} others" if len(bad) == len(others) else f"{len(bad)} of {len(others)} others"
    example = (from_it or to_it)[0]
    return f"{way} {of} ({names(bad)}; {example.source} to {example.target}: {example.error})"


def _evidence(node: str, others: Mapping[str, str], seen: Sequence[ProbeResult]) -> dict[str, Any]:
    failed = [one for one in seen if one.error and node in (one.source, one.target)]
    return {
        "check": "reach",
        "others": len(others),
        "failed_with": [other for other, error in others.items() if error][:MAX_SHOWN],
        "failed": [f"{one.source} to {one.target}: {one.error}" for one in failed[:MAX_SHOWN]],
    }


def to_try_again(plan: Mapping[str, Sequence[str]], faulty: Iterable[str]) -> dict[str, list[str]]:
    """Of those who meet whom, only what these nodes have a part in."""
    bad = set(faulty)
    tried = {node: [other for other in others if node in bad or other in bad] for node, others in plan.items()}
    return {node: others for node, others in tried.items() if others}


def latest(before: Iterable[ProbeResult], again: Iterable[ProbeResult]) -> list[ProbeResult]:
    """Each meeting as it went the last time."""
    return list({(one.source, one.target): one for one in (*before, *again)}.values())


def _odd_pairs(tried: Mapping[str, Mapping[str, str]], faulty: set[str]) -> list[str]:
    order = list(tried)
    bad = [
        (node, other, error)
        for node, others in tried.items()
        for other, error in others.items()
        if error and not {node, other} & faulty and order.index(node) < order.index(other)
    ]
    if not bad:
        return []
    if len(bad) == 1:
        node, other, error = bad[0]
        rest = "; with others both do: it is their pair" if len(tried) > 2 else ""
        return [f"{node} and {other} do not reach each other ({error}){rest}"]
    total = sum(map(len, tried.values())) // 2
    pairs = ", ".join(f"{node} and {other}" for node, other, _ in bad[:MAX_NAMED])
    more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
    parts = split(tried)
    is_split = 1 < len(parts) < len(tried)
    halves = f": they fall into {len(parts)} parts, {' | '.join(map(names, parts[:3]))}" if is_split else ""
    return [f"{len(bad)} of {total} pairs of nodes do not reach each other{halves} ({pairs}{more}: {bad[0][2]})"]


def split(tried: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Nodes that reach each other, by way of others too; the largest group first."""
    left, parts = dict.fromkeys(tried), []
    while left:
        part = [next(iter(left))]
        del left[part[0]]
        for node in part:
            for other, error in tried[node].items():
                if not error and other in left:
                    part.append(other)
                    del left[other]
        parts.append(part)
    return sorted(parts, key=len, reverse=True)


def _slow(seen: Sequence[ProbeResult], faulty: set[str]) -> list[str]:
    """A node all of whose echoes are slow, or a pair."""
    took_s: dict[str, dict[str, float]] = {}
    for one in seen:
        if one.error or {one.source, one.target} & faulty:
            continue
        for node, other in ((one.source, one.target), (one.target, one.source)):
            known = took_s.setdefault(node, {})
            known[other] = max(known.get(other, 0.0), one.took_s)
    usual_s = {node: median(others.values()) for node, others in took_s.items()}
    if len(usual_s) < 3:
        return []
    said, slow = [], set()
    for node, own_s in usual_s.items():
        rest_s = median(s for other, s in usual_s.items() if other != node)
        if own_s > max(SLOW * rest_s, SLOW_LEAST_S):
            slow.add(node)
            said.append(f"{node} is slow to answer: {_ms(own_s)} an echo, the others {_ms(rest_s)}")
    typical_s = median(usual_s.values())
    for node, others in took_s.items():
        for other, pair_s in others.items():
            if node < other and not {node, other} & slow and pair_s > max(SLOW * typical_s, SLOW_LEAST_S):
                said.append(f"{node} and {other} are slow to each other: {_ms(pair_s)} an echo, most {_ms(typical_s)}")
    return said[:MAX_NAMED]


# All-reduces between two nodes --------------------------------------------------------------------------


class AllReduceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How two nodes summed together."""

    nodes: tuple[str, str]
    took_s: float = 0.0
    error: str = ""


def first_round(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Neighbours. Waves of pairs, no node twice in one: an odd last node takes its turn with the first."""
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    if len(nodes) % 2 and len(nodes) > 1:
        return [pairs, [(nodes[-1], nodes[0])]]
    return [pairs] if pairs else []


def second_round(nodes: Sequence[str], done: Sequence[AllReduceResult]) -> list[list[tuple[str, str]]]:
    """The fastest with the slowest; those that failed are the slowest of all.

    Nobody meets the same again if it can be helped. done: of the first round.
    """
    took_s = {node: min((s.took_s for s in done if node in s.nodes and not s.error), default=1e9) for node in nodes}
    met = {frozenset(one.nodes) for one in done}
    left = sorted(nodes, key=lambda node: took_s[node])
    pairs: list[tuple[str, str]] = []
    while len(left) > 1:
        slowest = left.pop()
        partner = next((node for node in left if frozenset((node, slowest)) not in met), left[0])
        left.remove(partner)
        pairs.append((partner, slowest))
    if not left or not pairs:
        return [pairs] if pairs else []
    others = [node for node in nodes if node != left[0]]
    partner = min(others, key=lambda node: (frozenset((node, left[0])) in met, took_s[node]))
    return [pairs, [(partner, left[0])]]


def judge_all_reduces(first: Sequence[AllReduceResult], second: Sequence[AllReduceResult]) -> Judged:
    """A node that fails both rounds is faulty, where whom it failed with is shown to be well by another pair."""
    well = {node for one in (*first, *second) if not one.error for node in one.nodes}
    faulty: dict[str, str] = {}
    evidence: dict[str, dict[str, Any]] = {}
    for node in dict.fromkeys(node for one in (*first, *second) for node in one.nodes):
        mine = [one for one in (*first, *second) if node in one.nodes]
        partners = [other for one in mine for other in one.nodes if other != node]
        if node not in well and set(partners) & well and all(any(node in s.nodes for s in r) for r in (first, second)):
            told = next(one.error for one in mine if one.error)
            faulty[node] = f"fails in an all-reduce with each of {names(list(dict.fromkeys(partners)))} ({told})"
            failed = [f"{one.nodes[0]} with {one.nodes[1]}: {one.error}" for one in mine if one.error]
            evidence[node] = {"check": "all_reduce", "failed_with": partners, "failed": failed}
    said = [
        f"the all-reduce of {one.nodes[0]} and {one.nodes[1]} fails ({one.error})"
        for one in (*first, *second)
        if one.error and not set(one.nodes) & set(faulty)
    ]
    odd = list(dict.fromkeys(said))[:MAX_NAMED]
    return Judged(faulty=faulty, evidence=evidence, said=odd + _stragglers(first, second))


def _stragglers(first: Sequence[AllReduceResult], second: Sequence[AllReduceResult]) -> list[str]:
    best_s: dict[str, float] = {}
    for one in (*first, *second):
        for node in one.nodes if not one.error else ():
            best_s[node] = min(best_s.get(node, one.took_s), one.took_s)
    if len(best_s) < 3:
        return []
    usual_s = median(best_s.values())
    return [
        f"{node} is slow in all-reduces with two others: {_ms(own_s)}, the median is {_ms(usual_s)}"
        for node, own_s in best_s.items()
        if own_s > STRAGGLES * usual_s
    ]


def names(nodes: Sequence[str]) -> str:
    """`n1, n2, n3, n4 and 12 more`."""
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return ", ".join(nodes[:MAX_NAMED]) + more


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
