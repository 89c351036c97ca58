"""A guarded run, diagnosed while it trains, while it hangs, and after somebody has killed all of guardrun."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from guardrun.supervisor.diagnose.answer import Diagnosis
from tests.diagnose.conftest import Commanded, Said, diagnose, start_commanded
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

WATCHED = """
[policy]
act = false
[hang]
floor_s = 3
sensitivity = "eager"
scale = 0.5
"""


def test_a_run_from_its_first_steps_to_its_violent_end(tmp_path: Path) -> None:
    """Long: one run in each of its states, looked at in each."""
    starter, job = start_commanded(tmp_path, None, config=WATCHED)
    try:
        healthy(job)
        suspicious_then_hang(job)
        without_its_supervisor(job)
        killed(job)
    finally:
        starter.close()


def ask(job: Commanded, *arguments: str) -> Said:
    """The newest run that is alive, of this folder."""
    return diagnose("--gap", "1", "--json", *arguments, cwd=job.folder)


def healthy(job: Commanded) -> None:
    said = wait_until(lambda: (said := ask(job)).code == 0 and said, 60, "a healthy verdict")
    assert said
    told = said.told
    assert told.verdict == "healthy"
    assert told.summary.startswith("Training is healthy: last progress ")
    assert told.confidence > 0.9
    assert (told.target.kind, told.target.source, told.target.attempt) == ("run", "supervisor", 0)
    assert [line.rank for line in told.ranks] == [0, 1]
    assert told.next and not any(step.changes for step in told.next)


def suspicious_then_hang(job: Commanded) -> None:
    job.suffer("block")
    # A suspicion lasts some seconds: on a busy machine a look may come after it.
    told = wait_until(lambda: told_if(job, "suspicious", "hang"), 20, "a suspicion")
    assert [c.pid for c in told.culprits] == [job.pid_of(1)]
    assert told.cause == "rank_blocked"
    if told.verdict == "suspicious":
        assert told.patience_left_s is not None and told.patience_left_s > 0
    assert "fetch_vocabulary_update (commanded.py:" in told.summary and told.onset is not None
    told = wait_until(lambda: told_if(job, "hang"), 40, "a hang")
    assert (told.cause, [c.rank for c in told.culprits], told.patience_left_s) == ("rank_blocked", [1], None)
    assert told.confidence >= 0.9
    assert told.evidence["waits"][0]["op"] == "all_reduce"
    assert told.stacks[0]["ranks"] == "1"
    [incident] = wait_until(lambda: ask(job).told.incidents, 20, "the incident")
    assert incident["cause"] == "rank_blocked"


def told_if(job: Commanded, *verdicts: str) -> Diagnosis | None:
    """With a culprit: a look for which py-spy took too long has none."""
    told = ask(job).told
    return told if told.verdict in verdicts and told.culprits else None


def without_its_supervisor(job: Commanded) -> None:
    """Its socket is gone: guardctl looks itself, at the ranks' boards too."""
    run_dir = job.run.run_dir
    assert run_dir is not None
    control = next(Path(path) for path in sockets_of(job) if path.endswith("/control"))
    control.rename(control.with_name("elsewhere"))

    def told_of_culprits() -> Diagnosis | None:
        told = ask(job, run_dir.name).told
        return told if told.culprits else None

    told = wait_until(told_of_culprits, 60, "a look of guardctl's own that sees a culprit")
    assert told is not None
    control.with_name("elsewhere").rename(control)
    assert told.target.source == "guardctl"
    assert [c.rank for c in told.culprits] == [1]
    assert told.silent_s is not None and told.silent_s > 10, "the boards say since when"
    assert told.unseen[0].what == "supervisor"


def sockets_of(job: Commanded) -> list[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()
    assert job.run.run_dir is not None
    folder = json.loads((job.run.run_dir / "run.json").read_text())["socket_dir"]
    return [line.split()[-1] for line in lines if folder in line]


def killed(job: Commanded) -> None:
    run_dir = job.run.run_dir
    assert run_dir is not None
    ranks = [job.pid_of(0), job.pid_of(1)]
    [supervisor] = job.run.supervisors()
    # Stopped first: of two that are killed one after the other, the one that is left could start another supervisor.
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        os.kill(job.run.pid, signum)
        os.kill(supervisor.pid, signum)
    job.run.process.wait(60)
    wait_until(lambda: not set(ranks) & {process.pid for process in job.run.alive()}, 20, "the ranks' end")
    said = ask(job, run_dir.name)
    told = said.told
    assert (said.code, told.verdict, told.kind, told.cause) == (4, "crashed", "crash", "killed")
    assert "the journal ends without an end" in told.summary
    assert told.evidence["journal_ends"] == told.onset
    assert told.evidence["not_recovered"] == ["001"]
    assert told.evidence["files"]["reports"] and told.evidence["files"]["stacks"]
    [again] = [step for step in told.next if step.command[0] == "guardrun"]
    assert again.command[1:3] == ["--guard-run-id", run_dir.name] and again.changes
    text = diagnose(run_dir.name, cwd=job.folder).out
    assert text.startswith("crashed · crash killed")
    assert "001  hang rank_blocked" in text or "rank_blocked" in text
