"""guardctl on runs that are over: everything comes from the run directory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.rundir.journal import NAME, Line
from tests.cli.conftest import NODE, STATUS, Ctl, make_run, record_journal
from tests.report.samples import summary, wall
from tests.support.journals import set_version

EXTRA = {"run_dir", "source", "why", "summary"}


def test_status(ctl: Ctl, recorded: Path) -> None:
    out = ctl("status")
    for part in ("vocab-1", "ended", "gave_up", "exit code 1", "checkpoint: step 20", "signal 9", "rank_blocked"):
        assert part in out, part
    assert "twice" in out


def test_status_json_has_the_supervisors_keys(ctl: Ctl, recorded: Path) -> None:
    data = ctl.json("status", "vocab-1")
    assert set(data) == set(STATUS) | EXTRA
    assert set(data["ranks"][0]) == set(STATUS["ranks"][0])
    assert (data["state"], data["source"], data["attempt"], data["world_size"]) == ("ended", "directory", 0, 2)
    assert [(rank["step"], rank["exitcode"]) for rank in data["ranks"]] == [(20, None), (20, -9)]
    assert data["summary"]["outcome"] == "gave_up"
    assert data["checkpoint"] == {"path": "/out/ckpt_20.pt", "step": 20}


def test_a_run_of_several_nodes_names_them(ctl: Ctl, runs: Path) -> None:
    """Not the head alone, on which most ranks are not."""
    run_dir, _ = make_run(runs, "wide-1", launcher_pid=os.getpid(), launcher_start=1)
    record_journal(run_dir, nodes=(NODE, "node-b"))
    where = f"2 nodes ({NODE}, node-b), head {NODE}"
    assert where in " ".join(ctl("status").split())
    told = " ".join(ctl("diagnose", "wide-1", code=4).split())
    assert f"2 ranks on {where}" in told and "Rank Node PID" in told
    ctl("report", "wide-1")
    assert f"run wide-1 on {where}" in (run_dir / "report.html").read_text()


def test_a_run_that_was_killed_is_unfinished(ctl: Ctl, runs: Path) -> None:
    run_dir, _ = make_run(runs, "killed-1", launcher_pid=os.getpid(), launcher_start=1)
    record_journal(run_dir)
    data = ctl.json("status")
    assert data["state"] == "unfinished"
    assert "--guard-run-id continues it" in data["why"]
    assert "unfinished" in ctl("status", "--watch")


def test_a_run_on_another_node(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "far-1", node="node-b")
    data = ctl.json("status")
    assert data["state"] == "unreachable"
    assert data["why"].startswith("node-b leads it, which is another node: ask there (")
    assert data["attempt"] is None
    assert ctl("status")


def test_a_run_that_is_over_says_so_on_every_node(ctl: Ctl, runs: Path) -> None:
    run_dir, run = make_run(runs, "far-1", node="node-b")
    write_summary(run_dir, summary(), run, wall)
    data = ctl.json("status")
    assert (data["state"], data["why"]) == ("ended", "the run is over")


@pytest.mark.parametrize("is_continued", [False, True])
def test_ranks_of_all_nodes_are_counted(ctl: Ctl, runs: Path, is_continued: bool) -> None:
    """What a run is opened with is the head's share."""
    run_dir, _ = make_run(runs, "wide-1", launcher_pid=os.getpid(), launcher_start=1)
    record_journal(run_dir, nodes=(NODE, "node-b"), share=1)
    if is_continued:
        add_event(run_dir, type="run_continued", world_size=1, fleet={"least": 2, "most": 2})
    assert ctl.json("status")["world_size"] == 2
    assert f"2 ranks on 2 nodes ({NODE}, node-b)" in " ".join(ctl("status").split())
    assert ctl.json("diagnose", "wide-1", code=4)["target"]["world_size"] == 2


def test_one_rank_is_no_ranks(ctl: Ctl, runs: Path) -> None:
    run_dir, _ = make_run(runs, "small-1", launcher_pid=os.getpid(), launcher_start=1)
    add_event(run_dir, type="run_opened", world_size=1)
    assert "1 rank on" in ctl("status")


@pytest.mark.parametrize("name", ["ckpt_30.tmp", "unlike"])
def test_a_checkpoint_has_the_name_that_it_was_given_last(ctl: Ctl, recorded: Path, tmp_path: Path, name: str) -> None:
    whole = tmp_path / "ckpt_30.pt"
    whole.write_bytes(b"x")
    (tmp_path / "ckpt_20.pt").write_bytes(b"x")
    told = {"attempt": 0, "global_rank": 0, "step": 30, "duration_s": 0.1, "inode": whole.stat().st_ino}
    add_event(recorded, type="checkpoint_saved", path=str(tmp_path / name), **told)
    assert ctl.json("status")["checkpoint"] == {"path": str(whole), "step": 30}
    whole.unlink()
    gone = ctl.json("status")["checkpoint"]
    assert (gone["step"], gone["path"].startswith(str(tmp_path))) == (30, True)


def test_a_chosen_checkpoint_is_the_newest(ctl: Ctl, recorded: Path) -> None:
    chosen = {"path": "/out/ckpt_10.pt", "step": 10}
    add_event(recorded, type="checkpoint_chosen", choice=1, checkpoint={**chosen, "format": "pt"})
    assert ctl.json("status")["checkpoint"] == chosen
    add_event(recorded, type="checkpoint_chosen", choice=2, checkpoint=None)
    assert ctl.json("status")["checkpoint"] == chosen


def add_event(run_dir: Path, **event: object) -> None:
    """One more line of the journal."""
    with (run_dir / NAME).open("ab") as file:
        file.write(json.dumps({"n": 99, "t": 7.0, "event": event}).encode() + b"\n")


def test_a_torn_or_strange_journal_still_tells_what_it_can(ctl: Ctl, recorded: Path) -> None:
    with (recorded / NAME).open("ab") as file:
        file.write(b'{"n":9,"t":7,"event":{"type":"node_report","ranks":[{"global_rank":"x"}]}}\n[1]\n\xff\n')
        file.write(b'{"n":10,"t":8,"event":{"type":"from_the_future"}}\n{"n":11,"t":9,"ev')
    assert [rank["step"] for rank in ctl.json("status")["ranks"]] == [20, 20]


def test_incidents(ctl: Ctl, recorded: Path) -> None:
    out = ctl("incidents")
    assert "001" in out and "hang rank_blocked" in out and "give up" in out
    data = ctl.json("incidents")
    assert [record["id"] for record in data["incidents"]] == ["001", "002"]
    assert "evidence" not in data["incidents"][0]
    assert Path(data["incidents"][0]["folder"]) == recorded / "incidents" / "001-rank_blocked"


def test_no_incidents(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "quiet-1")
    assert "no incidents in run quiet-1" in ctl("incidents")
    assert ctl.json("incidents")["incidents"] == []


@pytest.mark.parametrize("name", ["1", "001", "001-rank_blocked"])
def test_show(ctl: Ctl, recorded: Path, name: str) -> None:
    out = ctl("show", name)
    for part in (
        "7 ranks wait for it in all_reduce.",
        "rank 1 on node-a, pid 4242",
        "Give the call a timeout.",
        "0,2-7",
        "fetch_vocabulary_update (train.py:73)",
        "… 2 frames of requests",
        "report.html",
    ):
        assert part in out, part
    assert "requests/api.py" not in out
    assert "requests/api.py" in ctl("show", name, "--full")


def test_show_by_folder_and_last(ctl: Ctl, recorded: Path) -> None:
    folder = recorded / "incidents" / "001-rank_blocked"
    record = ctl.json("show", str(folder))
    assert record["schema"] == 1 and record["cause"] == "rank_blocked" and record["evidence"]["silent_s"] == 33.1
    assert record["folder"] == str(folder)
    assert ctl.json("show", str(folder / "incident.json")) == record
    assert ctl.json("show", "last")["id"] == "002"
    assert "Traceback" in ctl("show", "2")


def test_show_what_is_not_there(ctl: Ctl, recorded: Path) -> None:
    ctl("show", "7", code=1)
    assert ctl.err == "guardctl: no incident 7 in run vocab-1; there are: 001, 002\n"
    ctl("show", "./nothing", code=1)
    assert "no incident in" in ctl.err


def test_replay(ctl: Ctl, recorded: Path) -> None:
    assert "5 events replayed" in ctl("replay")
    data = ctl.json("replay")
    assert (data["events"], data["mismatches"], data["set_aside"]) == (5, [], 0)


def test_replay_of_other_decisions_fails(ctl: Ctl, recorded: Path) -> None:
    path = recorded / NAME
    lines = path.read_text().splitlines()
    told = json.loads(lines[2]) | {"actions": [{"type": "stop_attempt", "attempt": 0, "grace_s": 1.0}]}
    path.write_text("\n".join([*lines[:2], json.dumps(told), *lines[3:]]) + "\n")
    out = ctl("replay", code=1)
    assert "differs: line 2: NodeReport" in out and "StopAttempt" in out
    assert len(ctl.json("replay", code=1)["mismatches"]) == 1


@pytest.mark.parametrize(("version", "theirs"), [(0, "has no version"), (9, "has version 9")])
def test_replay_of_another_versions_journal(ctl: Ctl, recorded: Path, version: int, theirs: str) -> None:
    set_version(recorded / NAME, version)
    ctl("replay", code=1)
    said = f"events.jsonl: the journal {theirs}, and this guardrun reads version 2: replay it with the guardrun that "
    assert said + "wrote it" in ctl.err
    assert theirs in ctl.json("replay", code=1)["error"]


def test_replay_of_what_was_gone_on_with_by_another_version(ctl: Ctl, recorded: Path) -> None:
    set_version(recorded / NAME, 9)
    record_journal(recorded)
    out = ctl("replay")
    assert "5 events replayed" in out
    assert "the journal has version 9, and this guardrun reads version 2: 5 lines are left out" in out
    data = ctl.json("replay")
    assert (data["events"], data["left_out"], data["mismatches"]) == (5, 5, [])


def test_replay_of_what_is_no_journal(ctl: Ctl, recorded: Path) -> None:
    (recorded / "events.jsonl").write_bytes(b"\x00\xffnothing\n{}\n[1]\n")
    ctl("replay", code=1)
    assert "events.jsonl: not one line can be read" in ctl.err
    assert "events.jsonl" in ctl.json("replay", code=1)["error"]


def test_replay_without_a_journal(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "empty-1")
    ctl("replay", code=1)
    assert "events.jsonl" in ctl.err


@pytest.mark.parametrize("verb", ["stacks", "hold", "unhold", "checkpoint"])
def test_what_needs_a_living_run_says_so(ctl: Ctl, recorded: Path, verb: str) -> None:
    ctl(verb, code=1)
    assert ctl.err == "guardctl: run vocab-1 is over: nobody is there to ask\n"
    assert "is over" in ctl.json(verb, code=1)["error"]


def test_runs_are_found_by_id_folder_and_latest(ctl: Ctl, runs: Path, tmp_path: Path) -> None:
    make_run(runs, "one")
    make_run(runs, "two")
    assert ctl.json("status")["run_id"] == "two"
    assert ctl.json("status", "one")["run_id"] == "one"
    assert ctl.json("status", str(runs / "one"))["run_id"] == "one"
    (runs / "latest").unlink()
    os.utime(runs / "one" / "run.json", (2e9, 2e9))
    assert ctl.json("status")["run_id"] == "one"
    shutil.move(runs, tmp_path / "elsewhere")
    assert ctl.json("status", "two", "--guard-dir", "elsewhere")["run_id"] == "two"


def test_the_guard_dir_of_the_environment(ctl: Ctl, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(runs, "one")
    monkeypatch.setenv("GUARDRUN_DIR", str(runs))
    monkeypatch.chdir("/")
    assert ctl.json("status")["run_id"] == "one"


def test_a_missing_run_names_those_there_are(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "one")
    ctl("status", "three", code=1)
    assert ctl.err == f"guardctl: no run three in {runs}; there are: one\n"
    assert "there are: one" in ctl.json("incidents", "three", code=1)["error"]
    ctl("status", "./three", code=1)
    assert "there is no such folder" in ctl.err


@pytest.mark.parametrize("verb", ["status", "incidents", "replay", "stacks", "hold", "unhold", "checkpoint"])
def test_guardctl_on_nothing(ctl: Ctl, runs: Path, verb: str) -> None:
    ctl(verb, code=1)
    assert ctl.err.startswith(f"guardctl: no runs in {runs} (")
    runs.rmdir()
    ctl(verb, code=1)
    assert f"{runs} does not exist" in ctl.err


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense"])
def test_a_run_file_that_is_none(ctl: Ctl, runs: Path, data: bytes) -> None:
    run_dir, _ = make_run(runs, "odd")
    (run_dir / "run.json").write_bytes(data)
    ctl("status", code=1)
    assert "not a run of this version of guardrun" in ctl.err


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["show"], ["stacks", "one"], ["status", "--every", "x"], ["status", "a", "b"]]
)
def test_wrong_command_lines(ctl: Ctl, arguments: list[str]) -> None:
    ctl(*arguments, code=2)
    assert "usage: guardctl" in ctl.err


def test_every_line_of_the_journal_here_is_real(recorded: Path) -> None:
    """The recorded run must stay what the journal's own reader takes."""
    lines = (recorded / NAME).read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Line).n for line in lines] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "", "[]", '{"id": \xff'])
def test_an_incident_file_that_is_none_is_passed_over(ctl: Ctl, recorded: Path, text: str) -> None:
    known = [one["id"] for one in ctl.json("incidents")["incidents"]]
    folder = recorded / "incidents" / "099-unknown"
    folder.mkdir()
    (folder / "incident.json").write_text(text, encoding="latin-1")
    assert known and [one["id"] for one in ctl.json("incidents")["incidents"]] == known
    ctl("status")
