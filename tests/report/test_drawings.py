"""What is drawn: waits followed to their root, strips, step times; and the user's lines beside the stacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.base.source_files import MAX_SOURCE_BYTES
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import Stack, evidence_groups, group_stacks
from guardrun.supervisor.report import incident_page as rendering
from guardrun.supervisor.report.elements.scales import nice_seconds, nice_step, percent, shorten
from guardrun.supervisor.report.elements.source_lines import CHANGED, files_of, read_sources
from guardrun.supervisor.report.incident import incident_json
from guardrun.supervisor.report.incident_page import report_html
from guardrun.supervisor.report.timeline.step_plot import (
    lay_out_gauge,
    lay_out_plot,
    seconds_words,
    step_times,
    summary,
    thin,
)
from guardrun.supervisor.report.timeline.story import incident_story, lay_out_ranks, lay_out_steps
from guardrun.supervisor.report.timeline.timeline import FrontPoint, Timeline
from guardrun.supervisor.report.timeline.timeline_strips import MAX_ROWS, Scale, make_lines
from guardrun.supervisor.report.wait_graph import MAX_WIDE, describe, lay_out, make_graph, read_waits
from tests.report.pages import HUGE, drawn, huge_page, huge_timeline, shown
from tests.report.samples import (
    WAITING,
    begin_attempt,
    explained,
    hang,
    rank_look,
    run_file,
    story_of,
    told_timeline,
    wall,
)
from tests.report.samples import report as told
from tests.report.soundness import check


def wait(ranks: list[int], awaited: list[int], **changes: Any) -> dict[str, Any]:
    return {"ranks": ranks, "for": awaited, "group": "g", "seq": 7, "op": "all_reduce", "where": "t.py:3", **changes}


def graph(evidence: dict[str, Any], culprits: list[int]) -> Any:
    return make_graph(read_waits(evidence, culprits), evidence, culprits)


def test_waits_are_followed_from_group_to_group() -> None:
    found = graph({"waits": [wait([0, 1], [2], group="dp"), wait([2], [3], group="tp", op="send")]}, [3])
    assert [(node.ranks, node.level, node.is_culprit) for node in found.nodes] == [
        ([3], 0, True),
        ([2], 1, False),
        ([0, 1], 2, False),
    ]
    assert describe(found) == (
        "Ranks 0-1 wait for rank 2 in all_reduce #7 of dp; Rank 2 waits for rank 3 in send #7 of tp"
    )
    drawing = drawn("graph", lay_out(found))
    assert drawing.count('class="arrow"') == 2 and drawing.count("box culprit") == 1


def test_without_waits_the_waiting_ranks_wait_for_the_culprits() -> None:
    found = graph(hang().evidence, [1])
    assert describe(found) == "Ranks 0,2-7 wait for rank 1 in all_reduce"
    assert (found.nodes[0].does, found.nodes[0].where) == ("idle", "fetch_vocabulary_update (train.py:73)")


def test_nobody_to_blame_is_drawn_as_such() -> None:
    found = graph({"waiting": [0, 1], "why_no_culprit": "all are in the same call"}, [])
    assert [(node.title(), node.does) for node in found.nodes] == [
        ("Nobody named", "all are in the same call"),
        ("Ranks 0-1", ""),
    ]
    assert "Nobody named" in drawn("graph", lay_out(found))
    everybody = graph({"waits": [wait([0, 1, 2], [])]}, [])
    assert "somebody who cannot be told" in describe(everybody)


def test_ranks_that_wait_for_each_other() -> None:
    found = graph({"waits": [wait([0], [1]), wait([1], [0])]}, [])
    assert len(found.edges) == 2
    assert drawn("graph", lay_out(found)).count('class="arrow"') == 2


def test_no_waits_no_drawing() -> None:
    assert read_waits({}, []) == []
    nobody = lay_out(graph({"waits": [wait([1], [1])]}, [1]))
    assert nobody is None and drawn("graph", nobody) == ""
    assert read_waits({"waits": "nonsense", "waiting": None}, [1]) == []


def test_many_groups_share_boxes() -> None:
    evidence = {"waits": [wait([n, n + 1], [0], seq=n) for n in range(2, 200, 2)]}
    found = graph(evidence, [0])
    assert len(found.nodes) == MAX_WIDE + 1
    assert sum(len(node.ranks) for node in found.nodes) == 199
    assert max(node.groups for node in found.nodes) > 90


@given(
    st.lists(
        st.builds(wait, st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4)), max_size=12
    ),
    st.lists(st.integers(0, 9), max_size=3, unique=True),
)
def test_any_waits_can_be_drawn(waits: list[dict[str, Any]], culprits: list[int]) -> None:
    found = graph({"waits": waits}, culprits)
    check(f"<html>{drawn('graph', lay_out(found))}</html>")
    ranks = sorted(rank for node in found.nodes for rank in node.ranks)
    assert len(ranks) == len(set(ranks))


def test_steps_times_are_those_of_each_attempt() -> None:
    front = [FrontPoint(float(t), t * 4, 0) for t in range(10)]
    front += [FrontPoint(30.0 + t, 20 + t * 2, 1) for t in range(10)]
    series = step_times(front)
    assert {(round(p.step_s, 3), p.attempt) for p in series} == {(0.25, 0), (0.5, 1)}
    assert all(not 9.0 < p.at_s < 30.0 for p in series), "what lies between two attempts is no step"
    assert step_times([]) == [] and step_times(front[:2]) == []


def test_a_slow_stretch_is_said_and_kept() -> None:
    front = [FrontPoint(float(t + (40 if t > 500 else 0)), t * 4, 0) for t in range(1000)]
    series = step_times(front)
    slow = max(series, key=lambda p: p.step_s)
    assert slow in thin(series) and len(thin(series)) < 400
    assert summary(series).startswith("0.25 s a step as a rule; at most ")
    assert "▲" in drawn("curves", lay_out_plot(series, Scale(0.0, 1040.0, 0.0), []))


def test_figures_and_scales_for_people() -> None:
    assert [seconds_words(s) for s in (0.0021, 0.25, 12.34, 125.0)] == ["2.1 ms", "0.25 s", "12.3 s", "2 min 5 s"]
    assert [nice_step(span, 4) for span in (0.0, 1.0, 7.0, 90.0)] == [1.0, 0.5, 2.0, 50.0]
    assert [nice_seconds(s, 5) for s in (3.0, 70.0, 3000.0, 1e7)] == [1.0, 15.0, 600.0, 86400.0 * 23]
    assert [words for _, words in Scale(-30.0, 100.0, 0.0).ticks(4)] == ["−30 s".replace("−30 s", "0"), "+1 min"]
    assert (percent(-3.0), percent(33.3333), percent(133.0)) == (0.0, 33.33, 100.0)
    assert (shorten("all_reduce", 10), shorten("all_reduce", 9)) == ("all_reduce", "all_redu…")


def test_a_world_of_one_and_a_run_without_steps() -> None:
    for timeline in (told_timeline(ranks=1, stuck=0), Timeline()):
        story = incident_story(timeline, onset_s=10.0, detected_s=43.0, recovered_s=None)
        check(f"<html>{drawn('story_strips', lay_out_ranks(story, [0]))}</html>")
        page = report_html(incident_json(hang(), run_file(), wall), [], [], story)
        check(page)
    assert "too few steps were seen" in page and "guardrun did not see what came before" in page


def test_a_thousand_ranks_are_a_few_rows_and_a_small_page() -> None:
    page, took_s = huge_page()
    text = check(page)
    assert len(page) < 2_000_000
    assert took_s < 2.0, f"{took_s:.2f} s of CPU"  # 0.2 s on an idle core
    assert "✖ rank 1" in text and "Every rank, one thin line each" in text
    lines, left_out = make_lines(huge_timeline().view(3.0, 60.0), [1])
    assert lines[0].ranks == [1] and len(lines) <= MAX_ROWS and left_out == 0
    assert sum(len(line.ranks) for line in lines) == HUGE


def test_the_users_lines_stand_beside_the_frames(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("".join(f"line_{n}()\n" for n in range(1, 21)))
    os.utime(script, (1000.0, 1000.0))
    frames = [WAITING[0], Frame("step", str(script), 7), Frame("main", "train.py", 15)]
    groups = group_stacks([Stack(rank=0, frames=frames)])
    assert files_of(groups) == [str(script), "train.py"]
    text = shown(groups, read_sources(files_of(groups), str(tmp_path), 2000.0))
    assert "line_5()" in text and "line_7()" in text and "line_9()" in text
    assert "line_15()" in text and "line_14()" not in text, "only of the innermost the lines around it"
    assert CHANGED not in text
    assert CHANGED in shown(groups, read_sources(files_of(groups), str(tmp_path), 500.0))


def test_files_that_cannot_be_shown_are_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
    (tmp_path / "latin.py").write_bytes(b"caf\xe9 = 1\r\nb = 2\x0cc = 3\nkey = 'sk-abcdefghijklmnop1234'\n")
    names = ["pipe.py", "large.py", "latin.py", "gone.py", "."]
    found = read_sources(names, str(tmp_path), 2e12)
    assert found["pipe.py"].trouble == "is no file" == found["."].trouble
    assert found["large.py"].trouble == "is too large to be shown"
    assert found["gone.py"].trouble == "could not be read: No such file or directory"
    assert found["latin.py"].lines[:2] == ["caf� = 1", "b = 2\x0cc = 3"], "lines as Python counts them"
    assert "sk-abc" not in found["latin.py"].lines[2]
    groups = group_stacks([Stack(rank=0, frames=[Frame("f", name, 99) for name in names])])
    assert "gone.py: the file could not be read" in check(f"<html>{shown(groups, found)}</html>")


def test_a_section_that_fails_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("of <all> things")

    monkeypatch.setattr(rendering, "lay_out_ranks", fail)
    story = incident_story(told_timeline(), onset_s=10.0, detected_s=43.0, recovered_s=None)
    text = check(report_html(incident_json(hang(evidence=explained()), run_file(), wall), [], [], story))
    assert "This part could not be drawn: ZeroDivisionError: of <all> things" in text
    assert "Collectives" in text and "7 ranks wait for it" in text


@pytest.mark.parametrize("key", sorted(explained()))
@pytest.mark.parametrize("value", [None, 7, "text", [], {}, [None], {"rows": 3, "groups": [4]}, [{"ranks": {}}]])
def test_missing_and_strange_evidence_of_every_kind(key: str, value: Any) -> None:
    evidence = {**explained(), key: value}
    text = check(report_html(incident_json(hang(evidence=evidence), run_file(), wall), []))
    assert "could not be drawn" not in text


def test_what_is_missing_is_said() -> None:
    incident = hang(evidence={"stack_troubles": ["ptrace is refused"]})
    text = check(report_html(incident_json(incident, run_file(), wall), []))
    for part in ("Stacks: ptrace is refused.", "Collectives: no rank told", "What every rank did: guardrun did not"):
        assert part in text, part


def test_stacks_whose_files_are_gone_are_told_by_the_evidence() -> None:
    groups = evidence_groups([rank_look(rank) for rank in range(4)], [1])
    for evidence in ({"stack_groups": groups}, {"stack": ["fetch_vocabulary_update (train.py:73)"]}):
        text = check(report_html(incident_json(hang(evidence=evidence), run_file(), wall), []))
        assert "fetch_vocabulary_update (" in text and "Stacks: none were taken" not in text


# What a node's parts showed -------------------------------------------------------------------------------------------


def throttled_timeline() -> Timeline:
    """Steps of 0.25 s, of 0.6 s from 60 s on, when rank 1's device got hot and its clock was halved."""
    timeline = Timeline()
    begin_attempt(timeline, 0, 2, 0.2)
    step = 0.0
    for at_s in range(1, 140):
        step += 1 / (0.25 if at_s < 60 else 0.6)
        told(timeline, 0, 2, float(at_s), int(step), phase="train")
        if at_s % 5 == 0:
            heat, clock = (62.0, 1.98e9) if at_s < 55 else (min(62 + 2.0 * (at_s - 54), 91), 0.99e9)
            gauges = [
                ev.Gauge(float(at_s), "gpu:GPU-1", "temperature_c", heat),
                ev.Gauge(float(at_s), "gpu:GPU-1", "sm_clock_hz", clock),
            ]
            timeline.feed(ev.NodeFindingsReported(node="node-a", findings=[], gauges=gauges), float(at_s))
    return timeline


def test_a_devices_heat_and_clock_are_drawn_on_the_axis_of_the_steps() -> None:
    incident = hang(kind="slowdown", cause="thermal_throttle", onset_s=55.0, detected_s=90.0, recovered_s=None)
    story = story_of(incident, throttled_timeline())
    page = drawn("story_steps", lay_out_steps(story))
    assert page.count("<polyline") == 3
    assert "Temperature of gpu:GPU-1: 62 °C to 91 °C." in page
    assert "SM clock of gpu:GPU-1: 990 MHz to 1,980 MHz." in page
    ends = {line.split('points="')[1].split('"')[0].split()[-1].split(",")[0] for line in page.split("<polyline")[1:]}
    assert max(map(float, ends)) - min(map(float, ends)) < 60, "one axis of time"


def test_a_gauge_that_stands_still_is_a_line() -> None:
    words, drawing = lay_out_gauge(("gpu:x", "power_w"), [(0.0, 0.0), (5.0, 0.0)], Scale(0, 10, 0), [])
    assert words == "Power of gpu:x: 0 W to 0 W" and "nan" not in drawn("curves", drawing)
