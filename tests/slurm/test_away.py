"""Slurm that is away for a while: what is wanted of it is asked again, and said where nothing comes of it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from guardrun.slurm.client.commands import (
    FIRST_WAIT_S,
    MOST_WAIT_S,
    Patience,
    Slurm,
    ask_again,
)
from guardrun.slurm.client.drain import DrainState, lift_drain, undrain
from guardrun.slurm.client.requeue import RequeueState, requeue, rescue_job, rescue_run
from guardrun.supervisor.daemon.slurm_schedule import Asker, begin_requeue
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Isolate
from guardrun.supervisor.node import slurm_drain
from guardrun.supervisor.node.slurm_drain import Drains
from tests.slurm.client.fake_slurm import JOB, FakeSlurm
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

AWAY = "echo 'slurm_update error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NODE = "NodeName=n3 State=IDLE Partitions=main"
ISOLATE = Isolate(node="n3", incident="003", cause="gpu_ecc", summary="GPU 2 of n3 is bad.", evidence_s=1.0)
BY_HAND = "scontrol update nodename=n3 state=drain 'reason=guardrun: run incident 003 gpu_ecc: GPU 2 of n3 is bad'"


class Answer(NamedTuple):
    is_silent: bool


class Clock:
    """Pauses that take no time."""

    def __init__(self, is_over_at: float = 1e9) -> None:
        self.now_s, self.pauses, self._is_over_at = 100.0, list[float](), is_over_at

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now_s += seconds
        return self.now_s >= self._is_over_at

    def patience(self, seconds: float) -> Patience:
        return Patience(self.now_s + seconds, self.wait, lambda: self.now_s)


# Asking again ----------------------------------------------------------------------------------------------------


def test_pauses_grow_and_the_last_question_comes_at_the_end() -> None:
    clock, told = Clock(), list[Answer]()
    asked: list[float] = []

    def ask() -> Answer:
        asked.append(clock.now_s)
        return Answer(True)

    assert ask_again(ask, clock.patience(100.0), told.append).is_silent
    assert clock.pauses[:5] == [FIRST_WAIT_S, 4.0, 8.0, 16.0, MOST_WAIT_S] and max(clock.pauses) == MOST_WAIT_S
    assert (asked[-1], told) == (200.0, [Answer(True)]), "to the very end, and it is said once"


def test_an_answer_ends_it_and_so_does_the_end_of_the_run() -> None:
    clock, answers = Clock(), iter([Answer(True), Answer(True), Answer(False)])
    assert not ask_again(lambda: next(answers), clock.patience(100.0)).is_silent
    assert len(clock.pauses) == 2
    clock, count = Clock(is_over_at=104.0), list[int]()

    def ask() -> Answer:
        count.append(1)
        return Answer(True)

    ask_again(ask, clock.patience(100.0))
    assert (len(count), len(clock.pauses)) == (3, 2), "one last question after the pause that was cut short"


# Drain -----------------------------------------------------------------------------------------------------------


class Bed:
    """Drains against a scontrol of our own, and what is said."""

    def __init__(self, slurm: Slurm) -> None:
        self.said: list[str] = []
        self.settled: list[str] = []
        environ = {**slurm.environ, "SLURM_JOB_ID": "5"}
        self.how: list[str] = []
        self.drains = Drains("run", lambda text, level: self.said.append(text), self._settle, environ)

    def _settle(self, action: Isolate, how: str) -> None:
        self.settled.append(action.node)
        self.how.append(how)


def away_until(path: Path, node: str = NODE) -> str:
    """A scontrol that is away while there is no such file; then it takes drains."""
    drained = f"{node.replace('IDLE', 'IDLE+DRAIN')} Reason=$(cat {path}.reason) [root@1]"
    return (
        f"[ -e {path} ] || {{ {AWAY}; }}\n"
        f'if [ "$1" = update ]; then echo "${{4#reason=}}" > {path}.reason; exit 0; fi\n'
        f'[ -e {path}.reason ] && echo "{drained}" || echo "{node}"'
    )


def test_a_drain_is_made_once_slurm_is_back(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardrun.slurm.client.commands.FIRST_WAIT_S", 0.05)
    there = tmp_path / "there"
    bed = Bed(fake_slurm(scontrol=away_until(there)))
    text = bed.drains.drain(ISOLATE)
    assert "Unable to contact slurm controller" in text and "asked again for 15 minutes" in text
    assert bed.settled == []
    there.touch()
    wait_until(lambda: bed.settled == ["n3"], 10, "the drain")
    wait_until(lambda: bed.said, 10, "that it is said")
    bed.drains.close()
    assert bed.said == ["n3 is drained: guardrun: run incident 003 gpu_ecc: GPU 2 of n3 is bad"]


@pytest.mark.parametrize("how", ["", "under quarantine"])
def test_a_node_that_is_back_before_slurm_is_is_not_drained(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("guardrun.slurm.client.commands.FIRST_WAIT_S", 0.05)
    there = tmp_path / "there"
    bed = Bed(fake_slurm(scontrol=f'echo "$*" >> {tmp_path}/calls\n{away_until(there)}'))
    bed.drains.drain(ISOLATE, how)
    bed.drains.withdraw("n3", "002")
    assert bed.said == [], "that was for another incident"
    bed.drains.withdraw("n3", "003")
    assert bed.said == ["n3 is back before it was drained: it is not"]
    assert bed.how == ([how] if how else []), "what has been done stands, and is told"
    there.touch()
    wait_until(lambda: not any(thread.name == "drain" for thread in threading.enumerate()), 10, "nobody to ask again")
    assert bed.drains.drain(ISOLATE) == "n3 is back: it is not drained", "not by one that was late, either"
    bed.drains.close()
    assert "update" not in (tmp_path / "calls").read_text() and len(bed.said) == 1


def drained_meanwhile(fake_slurm: FakeSlurm, folder: Path, undrain: str, drain: str = "") -> tuple[Bed, str]:
    """The order to drain is on its way, and can't be called back, when the node comes back; what is said of it.

    drain and undrain: what Slurm does upon these; empty: as it should.
    """
    there, asked, go_on = folder / "there", folder / "asked", folder / "go-on"
    there.touch()
    script = (
        f'case "$1 $3" in\n'
        f'"update state=drain") touch {asked}; while [ ! -e {go_on} ]; do sleep 0.02; done; {drain or ":"};;\n'
        f'"update state=undrain") {undrain};;\nesac\n'
    )
    bed = Bed(fake_slurm(scontrol=script + away_until(there)))
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(bed.drains.drain(ISOLATE)))
    thread.start()
    wait_until(asked.exists, 10, "the order")
    bed.drains.withdraw("n3", "003")
    go_on.touch()
    thread.join(60)
    return bed, said[0]


def test_a_drain_that_was_made_as_the_node_came_back_is_undone(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    bed, said = drained_meanwhile(fake_slurm, tmp_path, f"rm {tmp_path}/there.reason; exit 0")
    assert said == "n3 is back: its drain, which was under way, is undone"
    assert (bed.settled, bed.said) == ([], []), "nobody is told that it was not done when it was"
    assert not (tmp_path / "there.reason").exists()


def test_one_that_cannot_be_undone_is_told(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    bed, said = drained_meanwhile(fake_slurm, tmp_path, "echo 'Invalid user id' >&2; exit 1")
    assert "n3 could not be returned to service" in said
    assert (bed.settled, bed.how, bed.said) == (["n3"], ["drained"], [])


def test_one_that_slurm_refused_meanwhile_was_not_made(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    bed, said = drained_meanwhile(fake_slurm, tmp_path, "exit 1", drain="echo 'Invalid user id' >&2; exit 1")
    assert (said, bed.settled, bed.said) == ("n3 is back before it was drained: it is not", [], [])


def test_an_order_that_slurm_took_and_did_not_answer_is_undone(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order was taken, its answer came too late; the node is back before guardrun asks again."""
    monkeypatch.setattr("guardrun.slurm.client.commands.FIRST_WAIT_S", 0.05)
    reason = tmp_path / "there.reason"
    late = f'echo "${{4#reason=}}" > {reason}; {AWAY}'
    bed, said = drained_meanwhile(fake_slurm, tmp_path, f"rm {reason}; exit 0", drain=late)
    assert "it is asked again" in said
    wait_until(lambda: bed.said, 10, "that it is said")
    assert (bed.said, reason.exists()) == (["n3 is back: its drain, which was under way, is undone"], False)
    bed.drains.close()


def test_somebody_else_s_drain_is_never_undone(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """An administrator's, in the moment between guardrun's order and its own look at what is there."""
    reason = tmp_path / "there.reason"
    reason.write_text("guardrun: other incident 001 gpu_ecc")
    environ = {**fake_slurm(scontrol=away_until(tmp_path / "there")).environ}
    (tmp_path / "there").touch()
    for there in ("guardrun: other incident 001 gpu_ecc", "bad DIMM"):
        reason.write_text(there)
        kept = undrain("n3", Slurm(environ), reason="guardrun: run incident 003 gpu_ecc")
        assert (kept.state, reason.read_text()) == (DrainState.OTHERS, there)


def test_at_the_run_s_end_it_is_tried_once_more(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_drain, "LAST_CALL_S", 60.0)
    monkeypatch.setattr(slurm_drain, "LAST_S", 60.0)
    there = tmp_path / "there"
    bed = Bed(fake_slurm(scontrol=away_until(there)))
    bed.drains.drain(ISOLATE)
    there.touch()
    bed.drains.close()
    assert (bed.settled, len(bed.said)) == (["n3"], 1) and "n3 is drained: " in bed.said[0]


@pytest.mark.parametrize("scontrol", [AWAY, "exec sleep 60"], ids=["away", "hanging"])
def test_what_could_not_be_drained_is_said_with_what_to_type(
    fake_slurm: FakeSlurm, scontrol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardrun.slurm.client.commands.TIMEOUT_S", 0.2)
    monkeypatch.setattr(slurm_drain, "LAST_CALL_S", 0.1)
    monkeypatch.setattr(slurm_drain, "LAST_S", 0.5)
    bed = Bed(fake_slurm(scontrol=scontrol))
    bed.drains.drain(ISOLATE)
    began_s = time.monotonic()
    bed.drains.close()
    assert time.monotonic() - began_s < 30
    assert bed.settled == [], "who goes on with the run tries again"
    assert [text.partition("by hand: ")[2] for text in bed.said] == [BY_HAND]


def test_a_node_that_may_not_be_drained_is_asked_for_once(fake_slurm: FakeSlurm) -> None:
    no = f"[ $1 = show ] && echo '{NODE}' || {{ echo 'slurm_update error: Invalid user id' >&2; exit 1; }}"
    bed = Bed(fake_slurm(scontrol=no))
    assert "this user may not" in bed.drains.drain(ISOLATE)
    assert bed.settled == ["n3"]
    bed.drains.close()
    assert bed.said == []


def test_outside_of_slurm_an_isolation_is_done_at_once() -> None:
    settled: list[Isolate] = []
    drains = Drains("run", lambda text, level: None, lambda action, how: settled.append(action), {})
    assert (drains.drain(ISOLATE), settled) == ("", [ISOLATE])
    drains.close()


def test_a_node_that_a_person_has_released_meanwhile_is_not_drained(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isolated by a run's last start, released, and isolated again by its next."""
    from guardrun.supervisor.fleet.coordinator.node_isolation import _isolate
    from guardrun.supervisor.quarantine.record_places import find_places
    from guardrun.supervisor.quarantine.records import release_node

    monkeypatch.setenv("GUARDRUN_NODE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "there").touch()
    bed = Bed(fake_slurm(scontrol=away_until(tmp_path / "there")))
    run = SimpleNamespace(run_id="run", cwd=str(tmp_path), config={"node": {"shared_dir": str(tmp_path / "shared")}})
    (tmp_path / "shared").mkdir()
    daemon: Any = SimpleNamespace(
        run_file=run,
        clock=SimpleNamespace(now=lambda: 1.0),
        drains=bed.drains,
    )
    assert "n3 is drained: " in _isolate(daemon, ISOLATE, is_told=False)
    assert "n3 is drained already: " in _isolate(daemon, ISOLATE, is_told=False), "that it holds is no reason"
    shared = [place for place in find_places("", str(tmp_path / "shared"), {}, "n3") if place.is_shared]
    release_node(shared, "n3", "ada", time.time() + 1.0, is_overriding=True)
    assert "ada" in _isolate(daemon, ISOLATE, is_told=False)
    assert bed.settled == ["n3", "n3", "n3"]


def test_a_release_that_slurm_does_not_hear_of_is_said(fake_slurm: FakeSlurm) -> None:
    text = lift_drain("n3", fake_slurm(scontrol=AWAY).environ).text
    assert "Unable to contact" in text and "scontrol update nodename=n3 state=undrain" in text


# Requeue ---------------------------------------------------------------------------------------------------------


def requeued(slurm: Slurm, patience_s: float, wait: float = 0.02) -> tuple[ev.Requeued, list[str]]:
    """What begin_requeue tells, and says."""
    told: list[ev.Requeued] = []
    said: list[str] = []
    is_told = threading.Event()

    def answered(event: ev.Requeued) -> None:
        told.append(event)
        is_told.set()

    def pause(seconds: float) -> bool:
        time.sleep(wait)
        return False

    environ = {**slurm.environ, "SLURM_JOB_ID": "2", "SLURM_RESTART_COUNT": "1"}
    begin_requeue(environ, ["n2"], patience_s, Asker(lambda text, level: said.append(text), pause, answered))
    assert is_told.wait(60)
    return told[0], said


def test_a_requeue_is_made_once_slurm_is_back(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    there = tmp_path / "there"
    calls = f'echo "$*" >> {tmp_path}/calls\n'
    slurm = fake_slurm(
        scontrol=f"{calls}[ -e {there} ] || {{ touch {there}; {AWAY}; }}\n[ $1 = show ] && echo '{JOB}'; true"
    )
    event, said = requeued(slurm, 60.0)
    assert event.is_done and "without n4, n2" in event.why
    [once] = said
    assert "asked again for 60 s. By hand: scontrol requeue 2" in once
    assert "requeue 2_7\nupdate jobid=2_7 excnodelist=n4,n2\n" in (tmp_path / "calls").read_text()


def test_a_requeue_that_nobody_answered_is_said_with_what_to_type(fake_slurm: FakeSlurm) -> None:
    event, said = requeued(fake_slurm(scontrol=AWAY), 4.0, wait=4.0)
    assert (event.is_done, event.is_silent, len(said)) == (False, True, 1)
    assert event.why.endswith("; by hand: scontrol requeue 2")


def test_an_order_whose_answer_was_lost_is_found_done_and_its_list_of_nodes_made_good(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    again = JOB.replace("Restarts=1", "Restarts=2").replace("JobState=RUNNING Reason", "JobState=PENDING Reason")
    slurm = fake_slurm(scontrol=f'echo "$*" >> {tmp_path}/calls\n[ $1 = show ] && echo "{again}"; true')
    done = requeue("2_7", ["n2"], slurm, own_restarts=1)
    assert done.state is RequeueState.DONE and done.excluded == ("n4", "n2")
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["update jobid=2_7 excnodelist=n4,n2"]


def test_a_job_that_is_cancelled_meanwhile_is_not_started_again(fake_slurm: FakeSlurm) -> None:
    ending = JOB.replace("JobState=RUNNING Reason", "JobState=COMPLETING Reason")
    done = requeue("2_7", [], fake_slurm(scontrol=f"[ $1 = show ] && echo '{ending}'"), own_restarts=1)
    assert (done.state, done.text) == (RequeueState.IMPOSSIBLE, "job 2_7 was cancelled")


# Rescue ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "is_done"),
    [
        ({"outcome": "preempted", "requeue": "unanswered"}, True),
        ({"outcome": "interrupted", "requeue": "asked"}, True),
        ({"outcome": "preempted", "requeue": "refused"}, False),
        ({"outcome": "interrupted"}, False),
        ({"outcome": "finished"}, False),
        ([], False),
    ],
)
def test_a_batch_script_makes_the_requeue_that_was_still_wanted(
    fake_slurm: FakeSlurm, tmp_path: Path, ended: object, is_done: bool
) -> None:
    slurm = fake_slurm(scontrol=f"[ $1 = show ] && echo '{JOB}'; true")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "summary.json").write_text(json.dumps(ended))
    done = rescue_run(tmp_path, "2_7", 1, slurm, 1e9)
    assert done.is_done is is_done
    assert ("still to be made: job 2_7 is back in the queue" in done.text) is is_done


def test_a_batch_script_asks_a_silent_slurm_again(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    there = tmp_path / "there"
    slurm = fake_slurm(scontrol=f"[ -e {there} ] || {{ {AWAY}; }}\n[ $1 = show ] && echo '{JOB}'; true")
    (tmp_path / "run.json").write_text("{}")
    said: list[str] = []
    done = rescue_run(tmp_path, "2_7", 1, slurm, 1e9, wait=lambda seconds: there.touch(), silent=said.append)
    assert done.is_done and "Unable to contact" in said[0] and "asked again for 10 minutes" in said[0]
    there.unlink()
    given_up = rescue_run(tmp_path, "2_7", 1, slurm, 1e9, wait=lambda seconds: True)
    assert not given_up.is_done and given_up.text.endswith("by hand: scontrol requeue 2_7")


def test_another_node_s_requeue_is_tried_until_slurm_answers(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    there = tmp_path / "there"
    job = JOB.replace("NodeList=n[1-2]", "BatchHost=n9 NodeList=n[1-2]")
    answers = f"case $1$2 in showjob) echo '{job}';; shownode) echo 'NodeName=n9 State=DOWN';; esac"
    slurm = fake_slurm(scontrol=f"[ $1 != requeue -o -e {there} ] || {{ {AWAY}; }}\n{answers}")
    done = rescue_job("2_7", 1, slurm=slurm, sleep=lambda seconds: there.touch())
    assert done is not None and done.is_done and there.exists()


# A real one ------------------------------------------------------------------------------------------------------


@pytest.mark.real("slurm")
def test_a_controller_that_is_started_anew(slurm_lab: SlurmLab, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    settled: list[str] = []
    environ = {**slurm.environ, "SLURM_JOB_ID": "1"}
    drains = Drains("run", lambda text, level: said.append(text), lambda a, how: settled.append(a.node), environ)
    with monkeypatch.context() as patch:
        patch.setattr("guardrun.slurm.client.commands.TIMEOUT_S", 1.0)  # its own words come after ten
        slurm_lab.stop_controller()
        assert "asked again" in drains.drain(ISOLATE)
    slurm_lab.start_controller()
    wait_until(lambda: settled, 40, "the drain", every_s=0.1)
    drains.close()
    assert said == ["n3 is drained: guardrun: run incident 003 gpu_ecc: GPU 2 of n3 is bad"]
    assert slurm_lab.node("n3")["Reason"] == "guardrun: run incident 003 gpu_ecc: GPU 2 of n3 is bad"
