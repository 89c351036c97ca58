"""guardctl diagnose where no ranks are looked at: of runs that are over, elsewhere, or do not answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.cli.base.verb import read_run
from guardrun.supervisor.cli.verbs import diagnose
from guardrun.supervisor.client import supervisor_client
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose import next_steps
from guardrun.supervisor.diagnose.answer import LookAnswer
from guardrun.supervisor.diagnose.hang_finding import Absent
from guardrun.supervisor.diagnose.rank_processes import Job
from guardrun.supervisor.diagnose.scene import Glance
from guardrun.supervisor.diagnose.verdict import at_least
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.engine.model.looks import ProcessLook, RankLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import Attempt, RankState, State
from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.rundir.run_directory import write_run_file
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor, make_run, record_journal
from tests.report.samples import summary, wall

FINISHED = {"outcome": "finished", "exit_code": 0, "reason": "training ended well", "wall_s": 75.0, "restarts": 1}


def test_a_run_that_gave_up(ctl: Ctl, recorded: Path) -> None:
    out = ctl("diagnose", "vocab-1", code=4)
    assert out.startswith("crashed · ")
    assert "guardrun gave up" in out and "guardctl show 002 --run" in out and "Traceback" in out
    told = ctl.json("diagnose", "vocab-1", code=4)
    assert (told["schema"], told["verdict"], told["kind"]) == (1, "crashed", "crash")
    assert told["target"]["source"] == "directory"
    assert [line["rank"] for line in told["ranks"]] == [0, 1]
    assert [incident["id"] for incident in told["incidents"]] == ["001", "002"]
    files = told["evidence"]["files"]
    assert all(Path(path).exists() for paths in files.values() for path in paths)
    assert len(files["reports"]) == 2


@pytest.mark.parametrize(
    ("changes", "verdict", "code", "words"),
    [
        ({}, "finished", 0, "Training ended well at step 80, after 1 min 15 s, with 1 restart."),
        (
            {"outcome": "interrupted", "exit_code": 130, "reason": "signal 2"},
            "finished",
            0,
            "The run was ended from outside (signal 2) at step 80, after 1 min 15 s, with 1 restart.",
        ),
        (
            {"outcome": "failed", "exit_code": 1, "reason": "could not start the ranks: no memory", "restarts": 0},
            "crashed",
            4,
            "The run failed at step 80, after 1 min 15 s: could not start the ranks: no memory.",
        ),
    ],
)
def test_how_a_run_ended(
    ctl: Ctl, runs: Path, *, changes: dict[str, object], verdict: str, code: int, words: str
) -> None:
    run_dir, _ = make_run(runs, "over-1")
    (run_dir / "summary.json").write_text(json.dumps({**FINISHED, "last_step": 80, **changes}))
    told = ctl.json("diagnose", "over-1", code=code)
    assert (told["verdict"], told["summary"]) == (verdict, words)


def test_a_journal_without_an_end(ctl: Ctl, runs: Path) -> None:
    run_dir, run = make_run(runs, "killed-1", launcher_pid=os.getpid(), launcher_start=1)
    record_journal(run_dir)
    told = ctl.json("diagnose", "killed-1", code=4)
    rebooted = told["cause"] == "node_lost"
    assert rebooted == bool(run.boot_id)
    assert "killed" in told["summary"] or "restarted" in told["summary"]
    assert told["step"] == 20 and told["evidence"]["journal_ends"]
    assert [line["exitcode"] for line in told["ranks"]] == [None, -9]


def test_a_machine_that_has_restarted(ctl: Ctl, runs: Path) -> None:
    run_dir, _ = make_run(runs, "rebooted-1", boot_id="another boot")
    record_journal(run_dir)
    told = ctl.json("diagnose", "rebooted-1", code=4)
    assert (told["kind"], told["cause"]) == ("node", "node_lost")
    assert told["summary"].startswith("The machine has restarted under the run")


def test_a_run_that_left_nothing(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "empty-1", launcher_pid=os.getpid(), launcher_start=1)
    told = ctl.json("diagnose", "empty-1", code=4)
    assert "left no journal" in told["summary"] or told["cause"] == "node_lost"
    assert told["ranks"] == []


def test_a_run_on_another_node(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "far-1", node="node-b")
    ctl("diagnose", "far-1", code=1)
    assert "on node node-b: run guardctl diagnose there" in ctl.err


# Where another node leads ------------------------------------------------------------------------------


def on_another_node(runs: Path, run_id: str) -> None:
    run = msgspec.structs.replace(read_run(runs / run_id), node="node-b")
    write_run_file(runs / run_id, run)


@pytest.fixture
def others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's job runs on this machine."""
    job = Job(pid=4242, ranks=2, world_size="2", command="train.py", run_id="")
    monkeypatch.setattr(diagnose, "find_jobs", lambda: [job])


@pytest.mark.usefixtures("others_train")
def test_a_living_run_that_another_node_leads_is_the_newest(ctl: Ctl, runs: Path, live: FakeSupervisor) -> None:
    """Where its supervisor answers, nothing has to be said about which run is meant."""
    on_another_node(runs, "live-1")
    make_run(runs, "far-2", node="node-c")
    live.answers["look"] = look_answer(State(phase=Phase.STARTING))
    told = ctl.json("diagnose")
    assert (told["verdict"], told["target"]["run_id"], told["target"]["source"]) == ("starting", "live-1", "supervisor")


@pytest.mark.usefixtures("others_train")
def test_a_run_that_cannot_be_seen_from_here_is_not_called_over(ctl: Ctl, runs: Path) -> None:
    run_dir, run = make_run(runs, "far-1", node="node-b")
    ctl("diagnose", code=1)
    assert f"no run in {runs} answers from here; say which of these is meant:" in ctl.err
    assert "guardctl diagnose --pid 4242 " in ctl.err
    assert "guardctl diagnose far-1    the newest run here, to be asked on node-b, which leads it" in ctl.err
    write_summary(run_dir, summary(), run, wall)
    ctl("diagnose", code=1)
    assert f"no run in {runs} is alive; " in ctl.err
    assert "guardctl diagnose far-1    the newest run here, which is over" in ctl.err


def test_nothing_else_trains_here_and_the_run_is_another_nodes(
    ctl: Ctl, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "find_jobs", lambda: [])
    make_run(runs, "far-1", node="node-b")
    ctl("diagnose", code=1)
    assert "run far-1 is on node node-b: run guardctl diagnose there" in ctl.err


def test_a_run_that_does_not_exist(ctl: Ctl, recorded: Path) -> None:
    ctl("diagnose", "vocab-2", code=1)
    assert "there are: vocab-1" in ctl.err


def look_answer(state: State, ranks: list[RankLook] | None = None) -> Answer:
    told = LookAnswer(state=state, ranks=ranks or [], now_s=50.0, wall_s=1795000050.0)
    return Answer(is_ok=True, data=msgspec.to_builtins(told))


@pytest.mark.parametrize(
    ("state", "verdict", "code", "words"),
    [
        (State(phase=Phase.STARTING), "starting", 0, "Attempt 0 is being started."),
        (State(phase=Phase.ENDING, signum=15), "finished", 0, "The run is being ended: signal 15."),
        (State(phase=Phase.RUNNING, attempt=Attempt(number=0, started_s=1.0)), "unknown", 1, "No rank of attempt 0 "),
        (State(phase=Phase.CHOOSING, attempt=Attempt(number=0, started_s=1.0)), "starting", 0, "Attempt 1 is being"),
    ],
)
def test_what_the_supervisor_says_while_no_ranks_run(
    ctl: Ctl, live: FakeSupervisor, *, state: State, verdict: str, code: int, words: str
) -> None:
    live.answers["look"] = look_answer(state)
    told = ctl.json("diagnose", code=code)
    assert (told["verdict"], told["target"]["source"]) == (verdict, "supervisor")
    assert told["summary"].startswith(words)


def test_a_supervisor_of_another_version(ctl: Ctl, live: FakeSupervisor) -> None:
    """It is looked at without it: the launcher, this process, has no ranks."""
    for answer in (Answer(is_ok=False, error="no verb 'look'"), Answer(is_ok=True, data={"strange": 1})):
        live.answers["look"] = answer
        ctl("diagnose", "live-1", code=1)
        assert "no verb" in ctl.err or "not one of this version" in ctl.err
        assert "no rank of it is alive" in ctl.err


def test_a_supervisor_that_says_nothing(ctl: Ctl, live: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_client.ask, "__defaults__", (None, 0.2))
    live.answers.clear()
    ctl("diagnose", "live-1", code=1)
    assert "did not answer within 0.2 s" in ctl.err


def test_stacks_that_are_refused_are_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    monkeypatch.setattr(next_steps, "PTRACE_SCOPE", str(scope))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    rank = Rank(global_rank=0, local_rank=0, pid=42, node="n")
    process = ProcessLook(pid=42, state="S", trouble="ptrace refused")
    state = State(phase=Phase.RUNNING, attempt=Attempt(number=0, started_s=1.0, ranks={0: RankState(rank=rank)}))
    glance = Glance(state, {0: RankLook(global_rank=0, at_s=1.0, process=process)}, {}, 2.0, 3.0)
    line = an.RankLine(rank=0, local_rank=0, node="n", pid=42, doing="unseen", reason="")
    target = an.Target(kind="processes", source="guardctl", node="n")
    told = an.Diagnosis(target=target, verdict="unknown", summary="", ranks=[line])
    next_steps.tell_unseen(told, [glance, glance], Absent())
    [item] = told.unseen
    assert item.what == "stacks of rank 0"
    assert "Yama ptrace_scope 1" in item.why and "sudo guardctl diagnose" in item.why
    assert told.next[0].command == ["sudo", "guardctl", "diagnose", "--pid", "42"]


def test_a_lower_bound_is_told_as_one() -> None:
    assert at_least("Rank 1 has waited 6 s in f (a.py:6 s)", 6.0) == "Rank 1 has waited at least 6 s in f (a.py:6 s)"
    assert at_least("No rank has advanced for 3 s: 2 wait", 3.0) == "No rank has advanced for at least 3 s: 2 wait"


def test_the_documentation_names_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    structs = (an.Diagnosis, an.Target, an.RankLine, an.Next, an.Unseen)
    missing = [name for struct in structs for name in struct.__struct_fields__ if f"`{name}`" not in page]
    assert missing == []
    assert [verdict for verdict in an.VERDICTS if f"| `{verdict}` |" not in page] == []
