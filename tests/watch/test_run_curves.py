"""Curves, marks and nodes of a run, as a page has them."""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.watch.node_view import MAX_NODES, fold_nodes
from guardrun.supervisor.watch.rank_oddness import BAD, FINE, WARN
from guardrun.supervisor.watch.run_curves import COLUMNS, curve_columns, newer_columns
from guardrun.supervisor.watch.run_series import Span
from guardrun.supervisor.watch.run_status import parse_status
from tests.watch.stories import GB, entry_of, series_of, status, story


def test_every_curve_is_a_column() -> None:
    columns = dict(zip(COLUMNS, curve_columns(series_of(story(4)).spans), strict=True))
    assert {len(column) for column in columns.values()} == {60}
    assert columns["at_s"][0] == 5.0 and columns["learning_rate"][-1] == 3e-4
    assert columns["grad_norm"][0] > columns["grad_norm"][-1] > 0.5
    # Read now and then, of the rank with most, on the host and on its device.
    assert columns["resident"][5] == 13 * GB + 3000 and columns["allocated"][5] == 61 * GB + 3
    assert columns["resident"][4] is None
    assert curve_columns([]) == [[] for _ in COLUMNS]


def test_what_is_new_begins_with_the_span_that_may_have_grown() -> None:
    columns = curve_columns([Span(at_s, at_s) for at_s in (1.0, 3.0, 5.0)])
    assert newer_columns(columns, 3.0)[0] == [3.0, 5.0]
    assert newer_columns(columns, 0.0)[0] == [1.0, 3.0, 5.0]
    assert newer_columns(columns, 6.0)[0] == []


def test_spans_that_are_put_together_keep_the_last_and_the_most() -> None:
    first = Span(0.0, 1.0, loss=3.0, grad_norm=1.0, learning_rate=0.1, resident=7)
    first.add(Span(2.0, 3.0, grad_norm=2.0, resident=5, allocated=1))
    assert curve_columns([first]) == [[0.0], [None], [3.0], [2.0], [0.1], [7], [1]]


def test_moments_of_a_run_are_marked() -> None:
    marks = series_of(story(2)).marks
    assert [(mark.at_s, mark.kind) for mark in marks] == [
        (1.0, "attempt_started"),
        (81.1, "checkpoint_saved"),
        (161.1, "checkpoint_saved"),
        (241.1, "checkpoint_saved"),
    ]


def test_nodes_of_note_come_first() -> None:
    told = status(32, nodes=[{"node": "node-3", "standing": "lost", "why": "not heard for 40 s"}, {"node": "node-9"}])
    nodes = fold_nodes(parse_status(told), series_of(story(32, 60)))
    assert (nodes.total, nodes.odd) == (5, 2)
    # node-0 has the rank that holds the run up, and the slow one; node-9 has no rank.
    assert {row.node: (row.tone, row.ranks, row.odd) for row in nodes.rows} == {
        "node-0": (BAD, 8, 2),
        "node-3": (BAD, 8, 0),
        "node-1": (FINE, 8, 0),
        "node-2": (FINE, 8, 0),
        "node-9": (FINE, 0, 0),
    }
    assert [row.node for row in nodes.rows[:2]] == ["node-0", "node-3"]
    assert (nodes.rows[0].temp_c, nodes.rows[1].why) == (71.0, "not heard for 40 s")


def test_what_was_found_of_a_node_is_told_and_many_nodes_are_bounded() -> None:
    ranks = 8 * (MAX_NODES + 20)
    series = series_of(story(ranks, 10))
    found = Finding(id="disk", cause="disk", subject="/scratch", since_s=1.0, told_s=1.0, summary="/scratch is full")
    told = ev.NodeFindingsReported(node="node-140", findings=[found], devices={}, gauges=[])
    series.feed([entry_of(99, 50.0, told)])
    nodes = fold_nodes(parse_status(status(ranks)), series)
    assert (nodes.total, len(nodes.rows)) == (MAX_NODES + 20, MAX_NODES)
    assert (nodes.rows[1].node, nodes.rows[1].findings, nodes.rows[1].tone) == ("node-140", ["/scratch is full"], WARN)
