"""What the pairs of nodes say: who is faulty, and who never is."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.membership.reachability import (
    ALL_PAIRS,
    AllReduceResult,
    Judged,
    ProbeResult,
    first_round,
    judge_all_reduces,
    judge_reachability,
    plan_probes,
    second_round,
)

QUICK_S = 0.0004
SIZES = st.integers(3, 12) | st.integers(ALL_PAIRS + 1, 150)


def nodes_of(count: int) -> list[str]:
    return [f"n{number:03d}" for number in range(count)]


def met(nodes: list[str], bad: set[frozenset[str]], slow: dict[str, float] | None = None) -> Judged:
    """All meetings as planned; bad: pairs that do not reach each other; slow: what an echo takes with these."""
    slow = slow or {}
    return judge_reachability(
        ProbeResult(source=source, target=target, error="timed out")
        if frozenset((source, target)) in bad
        else ProbeResult(source=source, target=target, took_s=max(slow.get(source, QUICK_S), slow.get(target, QUICK_S)))
        for source, targets in plan_probes(nodes).items()
        for target in targets
    )


def links(ones: list[str], others: list[str]) -> set[frozenset[str]]:
    return {frozenset((a, b)) for a in ones for b in others if a != b}


@given(st.integers(2, 300))
def test_every_node_is_tried_by_several_and_by_boundedly_many(count: int) -> None:
    plan = plan_probes(nodes_of(count))
    tries = {node: len(targets) for node, targets in plan.items()}
    tried = {node: sum(node in targets for targets in plan.values()) for node in plan}
    assert all(node not in targets for node, targets in plan.items())
    if count <= ALL_PAIRS:
        assert set(tries.values()) == set(tried.values()) == {count - 1}
    else:
        assert set(tries.values()) == set(tried.values()) == {(count - 1).bit_length()}


@given(SIZES, st.data())
def test_one_dead_node_is_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    dead = data.draw(st.sampled_from(nodes))
    judged = met(nodes, links([dead], nodes))
    assert set(judged.faulty) == {dead} and not judged.said
    assert "timed out" in judged.faulty[dead]


@given(st.integers(4, 12), st.data())
def test_several_dead_nodes_are_named_while_most_are_well(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    dead = data.draw(st.lists(st.sampled_from(nodes), unique=True, min_size=1, max_size=count - 2))
    judged = met(nodes, links(dead, nodes))
    assert set(judged.faulty) == set(dead) and not judged.said


@given(SIZES, st.data())
def test_one_dead_link_is_the_pairs(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    source = data.draw(st.sampled_from(nodes))
    target = data.draw(st.sampled_from(plan_probes(nodes)[source]))
    judged = met(nodes, {frozenset((source, target))})
    assert not judged.faulty
    assert len(judged.said) == 1 and source in judged.said[0] and target in judged.said[0]


@given(st.integers(1, 8))
def test_two_halves_are_nobodys_fault(half: int) -> None:
    nodes = nodes_of(2 * half)
    judged = met(nodes, links(nodes[:half], nodes[half:]))
    assert not judged.faulty and len(judged.said) == 1
    if half > 1:
        assert "2 parts" in judged.said[0]


@given(st.integers(2, 80))
def test_what_nobody_passes_evicts_nobody(count: int) -> None:
    nodes = nodes_of(count)
    judged = met(nodes, links(nodes, nodes))
    assert not judged.faulty and len(judged.said) == 1


@given(st.integers(3, 10), st.data())
def test_any_links_at_all_evict_only_who_fails_with_most(count: int, data: st.DataObject) -> None:
    """Whatever fails: whoever is put out fails with most of those that others reach, and they are not half of all."""
    nodes = nodes_of(count)
    pairs = [frozenset(pair) for pair in permutations(nodes, 2)]
    bad = data.draw(st.sets(st.sampled_from(pairs)))
    judged = met(nodes, bad)
    reached = [n for n in nodes if any(frozenset((n, m)) not in bad for m in nodes if m != n)]
    for node in judged.faulty:
        others = [m for m in reached if m != node]
        assert 2 * sum(frozenset((node, m)) in bad for m in others) > len(others)
    assert 2 * len(set(judged.faulty) & set(reached)) < max(len(reached), 1)


@given(SIZES, st.data())
def test_a_slow_node_is_said(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    slow = data.draw(st.sampled_from(nodes))
    judged = met(nodes, set(), {slow: 0.05})
    assert not judged.faulty
    assert [line for line in judged.said if line.startswith(f"{slow} is slow")] == judged.said


def test_a_slow_pair_is_said() -> None:
    nodes = nodes_of(4)
    judged = judge_reachability(
        ProbeResult(source=a, target=b, took_s=0.08 if {a, b} == {"n000", "n002"} else QUICK_S)
        for a, b in permutations(nodes, 2)
    )
    assert judged.said == ["n000 and n002 are slow to each other: 80 ms an echo, most 0.4 ms"]


def test_a_one_way_wall_is_told_with_its_way() -> None:
    nodes = nodes_of(3)
    judged = judge_reachability(
        ProbeResult(source=a, target=b, error="no answer" if b == "n001" else "") for a, b in permutations(nodes, 2)
    )
    assert judged.faulty == {"n001": "is not reached by any of 2 others (n000, n002; n000 to n001: no answer)"}


# All-reduces ----------------------------------------------------------------------------------------------


def summed(nodes: list[str], bad: set[str], slow: dict[str, float] | None = None) -> Judged:
    slow = slow or {}

    def run(waves: list[list[tuple[str, str]]]) -> list[AllReduceResult]:
        for wave in waves:
            taking_part = [node for pair in wave for node in pair]
            assert len(taking_part) == len(set(taking_part)), "no node twice at a time"
        return [
            AllReduceResult(nodes=pair, error="timed out")
            if set(pair) & bad
            else AllReduceResult(nodes=pair, took_s=max(slow.get(node, 0.01) for node in pair))
            for wave in waves
            for pair in wave
        ]

    first = run(first_round(nodes))
    second = run(second_round(nodes, first))
    for done in (first, second):
        assert {node for one in done for node in one.nodes} == set(nodes), "everybody in each round"
    return judge_all_reduces(first, second)


@given(st.integers(3, 40), st.data())
def test_a_node_that_fails_both_rounds_is_named(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    bad = data.draw(st.sampled_from(nodes))
    judged = summed(nodes, {bad})
    assert set(judged.faulty) == {bad} and not judged.said


@given(st.integers(2, 20), st.data())
def test_no_innocent_is_named_however_many_fail(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    bad = data.draw(st.sets(st.sampled_from(nodes)))
    judged = summed(nodes, bad)
    assert set(judged.faulty) <= bad
    if len(bad) >= count - 1:
        assert not judged.faulty and (judged.said or not bad), "nobody is shown to be well"


@given(st.integers(3, 40), st.data())
def test_a_straggler_is_said(count: int, data: st.DataObject) -> None:
    nodes = nodes_of(count)
    slow = data.draw(st.sampled_from(nodes))
    judged = summed(nodes, set(), {slow: 0.05})
    assert not judged.faulty and len(judged.said) == 1 and judged.said[0].startswith(f"{slow} is slow")


def test_two_nodes_that_fail_together_are_told_together() -> None:
    judged = summed(nodes_of(2), {"n000"})
    assert not judged.faulty
    assert judged.said == ["the all-reduce of n000 and n001 fails (timed out)"]
