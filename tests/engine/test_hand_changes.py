"""What people change by hand is said, kept, and named in incidents that follow."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.state import hand_changes
from guardrun.supervisor.engine.state.hand_changes import HandChange
from guardrun.supervisor.report.incident_page import report_html
from guardrun.supervisor.report.timeline.timeline import Timeline
from tests.engine.conftest import ERROR, Told
from tests.engine.detectors.numeric.curves import plain, poisoned
from tests.engine.detectors.numeric.training import Training, only, resume

CHANGE = "learning rate × 10 (0.01 → 0.1) in AdamW"
SAID = f"{CHANGE} by scale at step 430"


def change(
    told: Told, at_s: float, *, changes: list[str], step: int | None, verb: str = "scale", **more: str
) -> list[ac.Action]:
    asked = ev.HandChangeAsked(
        attempt=told.attempt, id=f"{verb}{at_s}", global_ranks=[0, 1], verb=verb, text="lr 10", seconds=9.0, who="ada"
    )
    outcome = more.get("outcome", "done")
    ended = ev.HandChangeEnded(attempt=told.attempt, id=asked.id, outcome=outcome, step=step, changes=changes)
    return [*told.tell(asked, at_s), *told.tell(ended, at_s + 3)]


def test_an_explosion_after_it_names_it(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(plain(7), 430)
    (said,) = change(told, training.now_s, changes=[CHANGE], step=430)
    assert isinstance(said, ac.Say) and said.text == f"changed by hand: {SAID} (ada)"
    training.go(poisoned(plain(7), 1, 450), 60)
    incident = only(told)
    assert incident.step == 450
    assert incident.summary.endswith(f" Changed by hand before: {SAID}, 20 steps before.")
    (one,) = incident.evidence["changed_by_hand"]
    assert (one["said"], one["who"], one["step"], one["changes"], one["code"]) == (SAID, "ada", 430, [CHANGE], "")
    told.tell(ev.CheckpointSaved(attempt=told.attempt, global_rank=0, path="/out/a.pt", step=500, duration_s=0.1))
    assert only(told).evidence["poisoned_checkpoints"] and only(told).evidence["changed_by_hand"] == [one]
    assert only(told).summary.count("Changed by hand before") == 1


def test_an_explosion_that_is_told_before_the_change_is_known_to_be_done(told: Told) -> None:
    """All ranks have to say so first, after one step more; the loss may be faster."""
    told.running(ranks=2)
    training = Training(told, 2).go(plain(7), 200)
    change(told, training.now_s, changes=["learning rate × 2 (0.005 → 0.01) in AdamW"], step=200)
    training.go(plain(7), 230)
    asked = ev.HandChangeAsked(
        attempt=told.attempt, id="late", global_ranks=[0, 1], verb="scale", text="lr 10", seconds=9.0, who="ada"
    )
    told.tell(asked, training.now_s)
    training.go(poisoned(plain(7), 1, 432), 60)
    before = only(told)
    assert before.summary.endswith("by scale at step 200, 232 steps before.")
    assert [one["said"] for one in before.evidence["changed_by_hand"]][1] == "`lr 10` by scale"
    actions = told.tell(
        ev.HandChangeEnded(attempt=told.attempt, id="late", outcome="done", step=430, changes=[CHANGE]), training.now_s
    )
    assert [type(one) for one in actions] == [ac.Say, ac.WriteIncident]
    after = only(told)
    assert after.summary == f"{before.summary.partition(' Changed')[0]} Changed by hand before: {SAID}, 2 steps before."
    assert [one["changes"] for one in after.evidence["changed_by_hand"]][1] == [CHANGE]
    told.tell(ev.CheckpointSaved(attempt=told.attempt, global_rank=0, path="/out/a.pt", step=500, duration_s=0.1))
    assert only(told).summary == after.summary


def test_without_one_nothing_is_named(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(plain(7), 430)
    assert change(told, training.now_s, changes=[], step=None, outcome="not run") == []
    training.go(poisoned(plain(7), 1, 450), 60)
    assert "changed_by_hand" not in only(told).evidence and "by hand" not in only(told).summary


def test_code_that_was_run_is_evidence_and_no_cause(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(plain(7), 430)
    said = change(told, training.now_s, changes=[], step=430, verb="eval")
    assert [one.text for one in said if isinstance(one, ac.Say)] == ["ada runs code in ranks 0-1 (guardctl eval)"]
    training.go(poisoned(plain(7), 1, 450), 60)
    (one,) = only(told).evidence["changed_by_hand"]
    assert one["said"] == "`lr 10` by eval in rank 0-1 at step 430" and one["code"] == "lr 10"
    assert "by hand" not in only(told).summary


@pytest.mark.parametrize(("step", "is_named"), [(440, True), (420, False)])
def test_what_a_checkpoint_holds_is_named_in_the_next_attempt_as_well(told: Told, step: int, is_named: bool) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(plain(7), 430)
    change(told, training.now_s, changes=[CHANGE], step=430)
    told.crashed(error=ERROR)
    crash = only(told)
    assert crash.evidence["changed_by_hand"] and "by hand" not in crash.summary
    resume(told, step)
    Training(told, 2, step=step).go(poisoned(plain(7), 1, step + 20), 100)
    _, incident = told.incidents.values()
    assert ("changed_by_hand" in incident.evidence) is is_named


def test_an_attempt_that_begins_without_it_says_so_once(told: Told) -> None:
    def undone(step: int) -> list[str]:
        told.step(445 + told.attempt, told.now_s + 9)
        told.crashed()
        told.chosen(ev.Checkpoint(path="/out/ckpt.pt", step=step) if step else None)
        actions = told.started(told.state.next_attempt)
        return [one.text for one in actions if isinstance(one, ac.Say) and "undone" in one.text]

    told.running(ranks=2, max_no_progress=99)
    training = Training(told, 2).go(plain(7), 430)
    change(told, training.now_s, changes=["learning rate × 2 (0.005 → 0.01) in AdamW"], step=410)
    change(told, training.now_s + 4, changes=[CHANGE], step=430)
    change(told, training.now_s + 8, changes=[], step=430, verb="eval")
    assert undone(430) == []
    assert undone(420) == [f"attempt 2 resumes from step 420, so what was changed by hand after it is undone: {SAID}"]
    assert undone(440) == []
    told.crashed()
    *_, crash = told.incidents.values()
    assert [one["step"] for one in crash.evidence["changed_by_hand"]] == [410]
    (said,) = undone(0)
    assert said.startswith("attempt 4 was given no checkpoint, so unless the script takes up a later one by itself")
    assert said.endswith("by scale at step 410") and undone(0) == []


def test_no_more_is_kept_than_is_of_use() -> None:
    kept: list[HandChange] = []
    for number in range(200):
        asked = ev.HandChangeAsked(
            attempt=0, id=str(number), global_ranks=[0], verb="eval", text="x" * 5000, seconds=1.0, who="ada"
        )
        kept = hand_changes.begin(kept, asked, float(number))
    assert len(kept) == hand_changes.MAX_KEPT and len(kept[-1].text) == 300
    assert len(hand_changes.before(kept, 0, None)) == 8 and hand_changes.before(kept, 1, 999) == []
    assert hand_changes.end(kept, ev.HandChangeEnded(attempt=0, id="7", outcome="done")) == (kept, None)


def test_it_stands_on_the_page_and_in_the_timeline() -> None:
    one = HandChange(
        id="a", at_s=1.0, attempt=0, global_ranks=[3], verb="eval", text="<b>code</b>", who="ada", outcome="done",
        step=430, changes=[CHANGE],
    )  # fmt: skip
    moment = "2026-11-20T23:53:01.250Z"
    record = {
        "id": "001", "run_id": "r", "attempt": 0, "kind": "numeric", "cause": "nan_loss", "confidence": 0.9,
        "summary": "s", "culprits": [], "onset": moment, "detected": moment, "step": 450, "advice": "",
        "action": "none", "resumed_from": None, "recovered": None,
        "evidence": {"changed_by_hand": hand_changes.evidence([one], 61.0)},
    }  # fmt: skip
    page = report_html(record, [])
    assert "Changed by hand before it" in page and f"{CHANGE} by eval in rank 3 at step 430" in page
    assert "&lt;b&gt;code&lt;/b&gt;" in page and "<b>code" not in page
    timeline = Timeline()
    timeline.feed(ev.HandChangeEnded(attempt=0, id="a", outcome="done", step=430, changes=[CHANGE]), 61.0)
    (mark,) = timeline.view(0.0, 99.0).marks
    assert (mark.kind, mark.text, mark.at_s) == ("changed", CHANGE, 61.0)
