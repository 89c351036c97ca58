"""Jobs: who may register one, and what becomes of what a dead one left; with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.agent.jobs import MAX_OF_ONE_USER, Job, Jobs, Left, NotAllowedError, sweep
from guardrun.supervisor.agent.orphan_reaper import find_held
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.client.agent_client import AgentClient
from guardrun.supervisor.collect.host.procfs import read_boot_id
from guardrun.supervisor.health.base.readings import Readout, Sample, write_holders
from guardrun.supervisor.wire.agent_messages import Facts, RegisterJob
from tests.agent.bed import AgentBed, start_time
from tests.support.waiting import wait_until

Start = Callable[..., "subprocess.Popen[bytes]"]
MARK = f"mark-{os.getpid()}"
"""Others' tests may look for marks on this machine at the same time."""
LEAVES_A_PROCESS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes with a run's mark, and ends what is left of them."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(code: str, *arguments: str, token: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({"GUARDRUN_TOKEN": token} if token else {})}
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def registration(process: subprocess.Popen[bytes], run_id: str = "r1", token: str = MARK) -> RegisterJob:
    return RegisterJob(
        run_id=run_id,
        run_dir="/tmp/r1",
        launcher_pid=process.pid,
        launcher_start=start_time(process.pid),
        token=token,
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_a_killed_launcher_left_is_ended_and_told(agent: AgentBed, start: Start, tmp_path: Path) -> None:
    agent.start("--patience", "0.5")
    launcher = start(LEAVES_A_PROCESS, str(tmp_path / "pid"), token=MARK)
    decoy = start("import time; time.sleep(600)", token="mark-2")
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20, "the launcher's child")
    child = int((tmp_path / "pid").read_text())
    client = AgentClient(registration(launcher), agent.socket)
    try:
        wait_until(lambda: [n for n in client.read() if isinstance(n, Facts)], 20, "an answer")
        assert agent.ask("jobs")["jobs"][0]["run_id"] == "r1"
        assert "token" not in agent.ask("jobs")["jobs"][0]
        launcher.kill()
        launcher.wait(60)
        entry = agent.wait_for_entry("leftovers_ended", what="job")
        assert entry["data"]["pids"] == [child]
        assert entry["subject"] == "job:r1"
        assert not is_running(child)
        assert decoy.poll() is None
        wait_until(lambda: agent.ask("jobs")["jobs"] == [], 20, "the job to be forgotten")
    finally:
        client.close()


def test_a_launcher_that_dies_while_no_agent_is_there_is_buried_all_the_same(
    agent: AgentBed, start: Start, tmp_path: Path
) -> None:
    """Long on a busy machine: two agents are started, one after the other."""
    first = agent.start("--patience", "0.5")
    launcher = start(LEAVES_A_PROCESS, str(tmp_path / "pid"), token=MARK)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20, "the launcher's child")
    child = int((tmp_path / "pid").read_text())
    client = AgentClient(registration(launcher), agent.socket)
    try:
        wait_until(lambda: [n for n in client.read() if isinstance(n, Facts)], 20, "an answer")
        book = agent.state / "jobs.json"
        wait_until(lambda: book.exists() and MARK in book.read_text(), 20, "the job in the book")
    finally:
        client.close()
    agent.end(first, signal.SIGKILL)
    launcher.kill()
    launcher.wait(60)
    agent.start("--patience", "0.5")
    agent.wait_for_entry("leftovers_ended")
    assert not is_running(child)


def test_policy_act_false_only_tells(agent: AgentBed, start: Start, tmp_path: Path) -> None:
    agent.start("--patience", "0.2", env={"GUARDRUN_POLICY_ACT": "false"})
    launcher = start(LEAVES_A_PROCESS, str(tmp_path / "pid"), token=MARK)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20, "the launcher's child")
    child = int((tmp_path / "pid").read_text())
    client = AgentClient(registration(launcher), agent.socket)
    try:
        wait_until(lambda: [n for n in client.read() if isinstance(n, Facts)], 20, "an answer")
        launcher.kill()
        launcher.wait(60)
        entry = agent.wait_for_entry("leftover", what="finding")
        assert f"1 process behind: {child}" in entry["text"]
        assert is_running(child)
    finally:
        client.close()
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not is_running(child), 10, "its end")


# The book of jobs ------------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    writer = BackgroundWriter(patience_s=60.0)
    yield Jobs(tmp_path, writer)
    writer.close()


def test_only_the_launchers_owner_may_register_its_job(jobs: Jobs, start: Start) -> None:
    launcher = start("import time; time.sleep(600)")
    own = os.getuid()
    with pytest.raises(NotAllowedError, match="is not yours"):
        jobs.register(registration(launcher), uid=own + 1, own_uid=own)
    assert jobs.register(registration(launcher), uid=own, own_uid=own)[1]
    assert not jobs.register(registration(launcher), uid=own, own_uid=own)[1]
    with pytest.raises(NotAllowedError, match="no job r1 of yours"):
        jobs.end("r1", uid=own + 1, own_uid=own, now_s=1.0)
    with pytest.raises(NotAllowedError, match="no job other of yours"):
        jobs.end("other", uid=own, own_uid=own, now_s=1.0)


def test_a_launcher_that_is_another_process_by_now_is_none(jobs: Jobs, start: Start) -> None:
    launcher = start("import time; time.sleep(600)")
    said = RegisterJob(run_id="r", run_dir="", launcher_pid=launcher.pid, launcher_start=1, token="t")
    with pytest.raises(NotAllowedError, match="does not run here"):
        jobs.register(said, uid=os.getuid(), own_uid=os.getuid())


def test_a_job_said_to_be_over_is_left_to_its_launcher_while_that_lives(jobs: Jobs, start: Start) -> None:
    launcher = start("import time; time.sleep(600)")
    own = os.getuid()
    jobs.register(registration(launcher), uid=own, own_uid=own)
    jobs.end("r1", uid=own, own_uid=own, now_s=0.0)
    assert jobs.due(1000.0, patience_s=1.0) == []
    launcher.kill()
    launcher.wait(60)
    assert [job.run_id for job in jobs.due(1000.0, patience_s=1.0)] == ["r1"]


def test_a_run_that_goes_on_under_a_new_launcher_keeps_what_the_old_one_left_in_mind(jobs: Jobs, start: Start) -> None:
    own = os.getuid()
    first, second = (start("import time; time.sleep(600)") for _ in range(2))
    jobs.register(registration(first, token="old"), uid=own, own_uid=own)
    jobs.register(registration(second, token="new"), uid=own, own_uid=own)
    assert sorted(job.token for job in jobs.all()) == ["new", "old"]


def test_nobody_registers_without_end_and_no_other_users_job_is_forgotten(jobs: Jobs, start: Start) -> None:
    """By ever other marks of one run, which a user may make up; theirs, and others', are known after a restart."""
    launcher, mine, own = start("import time; time.sleep(600)"), os.getuid(), os.getuid()
    others = Job(run_id="r1", run_dir="", launcher_pid=1, launcher_start=1, token="t", uid=7, boot_id=read_boot_id())
    for number in range(MAX_OF_ONE_USER):
        assert jobs.register(registration(launcher, token=f"mark-{number}"), mine, own)[1]
    for number in range(3):
        with pytest.raises(NotAllowedError, match="too many jobs of yours"):
            jobs.register(registration(launcher, token=f"more-{number}"), mine, own)
        with pytest.raises(NotAllowedError, match="too many jobs of yours"):
            jobs.register(registration(launcher, run_id=f"r{number + 2}"), mine, own)
    # What is registered is heard of again: each supervisor says so whenever it connects.
    assert not jobs.register(registration(launcher, token=f"mark-{MAX_OF_ONE_USER - 1}"), mine, own)[1]
    jobs._jobs[7, "r1"] = others
    jobs.save()
    assert jobs._writer.do(lambda: None)
    book = jobs._path
    assert book.stat().st_mode & 0o777 == 0o600
    after = Jobs(book.parent, jobs._writer)
    after.load(now_s=5.0)
    assert sorted(job.token for job in after.all()) == sorted(job.token for job in jobs.all())
    assert after.find("r1", mine, own).token == f"mark-{MAX_OF_ONE_USER - 1}"


@pytest.mark.parametrize(("name", "longest"), [("run_id", 255), ("run_dir", 4096), ("token", 128)])
def test_what_is_registered_has_its_length(jobs: Jobs, start: Start, name: str, longest: int) -> None:
    launcher, own = start("import time; time.sleep(600)"), os.getuid()
    said = registration(launcher)
    assert jobs.register(msgspec.structs.replace(said, **{name: "n" * longest}), own, own)[1]
    with pytest.raises(NotAllowedError, match=f"its {name} has more than {longest} bytes"):
        jobs.register(msgspec.structs.replace(said, **{name: "é" * (longest // 2 + 1)}), own, own)


def test_jobs_of_another_boot_are_forgotten(tmp_path: Path) -> None:
    writer = BackgroundWriter(patience_s=60.0)
    try:
        before = Jobs(tmp_path, writer)
        for boot_id in (read_boot_id(), "another"):
            job = Job(run_id=boot_id, run_dir="", launcher_pid=1, launcher_start=1, token="t", uid=7, boot_id=boot_id)
            before._jobs[7, boot_id] = job
        before.save()
        assert writer.do(lambda: None)
        after = Jobs(tmp_path, writer)
        after.load(now_s=5.0)
        assert [job.run_id for job in after.all()] == [read_boot_id()]
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", b"{", b'[{"run_id": 3}]', b"\xff\xfe", b"[" * 100_000])
def test_a_book_that_cannot_be_read_is_an_empty_one(tmp_path: Path, data: bytes, jobs: Jobs) -> None:
    (tmp_path / "jobs.json").write_bytes(data)
    jobs.load(now_s=0.0)
    assert jobs.all() == []


def test_the_mark_of_a_living_job_protects_whatever_bears_it(start: Start) -> None:
    bearer = start("import time; time.sleep(600)", token="shared")
    wait_until(lambda: b"GUARDRUN_TOKEN" in Path(f"/proc/{bearer.pid}/environ").read_bytes(), 10, "its environment")
    job = Job(run_id="r", run_dir="", launcher_pid=1, launcher_start=1, token="shared", uid=os.getuid())
    assert sweep(job, ["shared"], may_end=True) == ([], [])
    assert bearer.poll() is None
    found, left = sweep(job, [], may_end=True)
    assert ([one.pid for one in found], left) == ([bearer.pid], [])
    assert bearer.wait(60) == -signal.SIGKILL


def test_another_users_process_with_the_same_mark_is_not_the_jobs(start: Start) -> None:
    bearer = start("import time; time.sleep(600)", token="shared")
    wait_until(lambda: b"GUARDRUN_TOKEN" in Path(f"/proc/{bearer.pid}/environ").read_bytes(), 10, "its environment")
    job = Job(run_id="r", run_dir="", launcher_pid=1, launcher_start=1, token="shared", uid=os.getuid() + 1)
    assert sweep(job, [], may_end=True) == ([], [])
    assert bearer.poll() is None


def test_devices_whose_memory_is_still_held_are_named() -> None:
    samples = [
        Sample(subject="gpu:a", name="holders", value=write_holders({41: 1 << 30, 42: None})),
        Sample(subject="gpu:b", name="holders", value=write_holders({43: 5})),
        Sample(subject="gpu:c", name="holders", value="no holders"),
        Sample(subject="gpu:d", name="holders", trouble="not told"),
    ]
    assert find_held([Readout(sensor="gpu", at_s=1.0, samples=samples)], {42, 99}) == ["gpu:a"]


def test_what_could_not_be_ended_is_looked_at_again_later(jobs: Jobs, start: Start) -> None:
    launcher = start("import time; time.sleep(600)")
    own = os.getuid()
    job, _ = jobs.register(registration(launcher), uid=own, own_uid=own)
    launcher.kill()
    launcher.wait(60)
    jobs.launcher_gone(job, 0.0)
    jobs.swept(job, [Left(pid=9, start=9, command="stuck", state="D")], ["gpu:a"], 10.0)
    assert jobs.due(40.0, patience_s=1.0) == []
    assert jobs.due(71.0, patience_s=1.0) == [job]
    assert job.public(71.0)["left"][0]["state"] == "D"
    jobs.swept(job, [], [], 72.0)
    assert jobs.all() == []
