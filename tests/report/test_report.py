"""report.html against golden files.

To accept a change: look at the new pages, then run these tests with GUARDRUN_ACCEPT=1 and commit tests/report/golden.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import Stack, stacks_of
from guardrun.supervisor.report.incident import incident_json
from guardrun.supervisor.report.incident_page import report_html
from guardrun.supervisor.report.run_page import run_html
from tests.report.pages import pages, run_data
from tests.report.samples import hang, rank_look, run_file, wall
from tests.report.soundness import check

GOLDEN = Path(__file__).parent / "golden"
ACCEPT = "GUARDRUN_ACCEPT"


@pytest.mark.parametrize("name", ["hang", "crash"])
def test_golden(name: str) -> None:
    path, page = GOLDEN / f"{name}.html", pages()[name]
    if os.environ.get(ACCEPT):
        path.write_text(page)
    golden = path.read_text()
    if page != golden:
        diff = "\n".join(
            difflib.unified_diff(golden.splitlines(), page.splitlines(), "golden", "now", lineterm="", n=1)
        )
        pytest.fail(f"{path.name} has changed; if that is meant, run this test with {ACCEPT}=1\n{diff}", pytrace=False)


def test_nothing_on_a_page_turns_its_text_around_or_steers_a_terminal_that_shows_it() -> None:
    evil = "a\x1b[2J\x9b2J\u202eb\u2066c\x85d\u200e"
    record = incident_json(hang(summary=evil, advice=evil, evidence={"traceback": evil, evil: evil}), run_file(), wall)
    stack = Stack(rank=0, pid=1, kind="main", name=evil, frames=[Frame(evil, evil, 1)], note=evil)
    page = report_html(record, [stack], [f"stacks/{evil}.txt"])
    found = {c for c in page if not c.isprintable() and c != "\n"}
    assert not found and "\\u202eb\\u2066c" in page, found


def test_the_pages_are_sound_and_say_what_matters() -> None:
    text = check(pages()["hang"])
    for part in (
        "7 ranks wait for it in all_reduce.",
        "95% sure",
        "rank 1 (local rank 1) on node-a, pid 4242",
        "step 40",
        "All ranks were stopped and started again, from the checkpoint of step 40.",
        "Give the call a timeout.",
        "0,2-7",
        "waiting in all_reduce",
        "2 frames of requests",
        "This has stopped 2 earlier runs",
        "has been changed since",
        "wait in all_reduce #420 of the default group",
        "/scratch free",
        "1.4 GiB",
        "1024×4096 float32",
        "✖ odd",
        "0.25 s a step as a rule",
        "5.9 s after it was detected",
    ):
        assert part in text, part
    text = check(pages()["crash"])
    for part in ("<script>alert(1)</script> & more", "GPU 3", "stopped by guardrun", "torn: its end is missing"):
        assert part in text, part


def test_the_culprits_stack_is_open_and_first() -> None:
    page = pages()["hang"]
    assert page.index('<details open><summary><span class="bad">✖</span> <strong>Rank 1<') < page.index(
        "<strong>Ranks 0,2-7<"
    )


def test_samples_that_were_left_out_are_named_by_rank() -> None:
    left_out = {"0": [[78, 67], [243, 403]], "1": [[261, 45], [247, 53]]}
    page = report_html(incident_json(hang(evidence={"left_out_batches": left_out}), run_file(), wall), [])
    assert "Batches that were left out" in page and "261, 45; 247, 53" in page
    assert "Batches that were left out" not in report_html(incident_json(hang(), run_file(), wall), [])


def test_a_runs_page_has_its_spike_score() -> None:
    score = {"loss": 0.0002, "losses": 5000, "grad_norm": 0.0115, "grad_norms": 5000}
    text = check(run_html(run_data(spike_score=score), None))
    assert "spike score, loss" in text and "0.02%" in text and "1.15%" in text
    assert "spike score" not in run_html(run_data(spike_score={}), None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_keys = st.sampled_from(
    [
        *("ranks", "exits", "stacks", "looks", "look", "traceback", "tracebacks", "error", "skipped_checkpoints"),
        *("stack", "left_out_batches"),
    ]
)
entry_keys = st.sampled_from(
    ["rank", "ranks", "frames", "stack", "error", "traceback", "pid", "at", "judgement", "step"]
)
entries = st.lists(st.dictionaries(entry_keys, json_values, max_size=4), max_size=3)


@given(st.dictionaries(known_keys | st.text(max_size=8), json_values | entries, max_size=6))
@example({"ranks": [], "stacks": {"¹": None}})
def test_any_evidence_makes_a_sound_page(evidence: dict[str, Any]) -> None:
    check(report_html(incident_json(hang(evidence=evidence), run_file(), wall), []))


MARKUP = st.lists(st.sampled_from(["<b>", "</td>", "<", ">", "&", '"', "'", "x", " "]), max_size=20).map("".join)
"""What no chance would put together."""


@given(st.text(max_size=200) | MARKUP)
def test_any_text_stays_text(text: str) -> None:
    incident = hang(summary=text, advice=text, evidence={"traceback": text, "ranks": [{"rank": 1, "at": text}]})
    look = rank_look(1)
    check(report_html(incident_json(incident, run_file(run_id=text), wall), stacks_of(look), [text.replace("/", "")]))


def test_a_thousand_ranks_stay_readable() -> None:
    evidence = {"ranks": [{"rank": rank, "judgement": "waiting", "at": "f (x.py:1)"} for rank in range(4000)]}
    many = [Stack(rank=rank, frames=rank_look(0).process.threads[0].frames) for rank in range(4000)]
    page = report_html(incident_json(hang(evidence=evidence, culprits=[]), run_file(), wall), many)
    assert "0-3999" in check(page)
    assert len(page) < 30_000
