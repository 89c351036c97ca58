"""The node agent under a real systemd: installed, watched, restarted, upgraded, removed; a job outlives it all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.systemd.booted import Booted, missing_part
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support import scenes
from tests.support.processes import descendants
from tests.support.real import find_program
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real("root"), pytest.mark.real("mount"), pytest.mark.real("systemd")]

GUARDRUN = find_program("guardrun") or "guardrun"
GUARDCTL = find_program("guardctl") or "guardctl"
UNIT = "guardrund.service"


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    reason = missing_part()
    if reason:
        pytest.skip(f"real part systemd: {reason}")
    try:
        system = Booted(tmp_path_factory.mktemp("booted"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"real part systemd: {error}")
    try:
        yield system
    finally:
        system.close()


@pytest.fixture
def installed(booted: Booted) -> Booted:
    """The agent is there and answers; with a short watchdog, so that a test need not wait for the real one."""
    shutil.rmtree(booted.root / f"etc/systemd/system/{UNIT}.d", ignore_errors=True)
    drop_in(booted, "test", "WatchdogSec=3", "RestartSec=0.2")
    booted.run(GUARDCTL, "node-agent", "install")
    status(booted)
    return booted


def drop_in(booted: Booted, name: str, *lines: str) -> None:
    """Change the unit, as `systemctl edit` does."""
    folder = booted.root / f"etc/systemd/system/{UNIT}.d"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.conf").write_text("\n".join(["[Service]", *lines, ""]))
    booted.run("systemctl", "daemon-reload")


def status(booted: Booted) -> dict[str, Any]:
    """What `guardctl node-agent status` tells, once there is an agent."""

    def ask() -> dict[str, Any] | None:
        told = json.loads(booted.run(GUARDCTL, "node-agent", "status", "--json", check=False).stdout)
        return dict(told) if told["agent"] else None

    told = wait_until(ask, 30, "the agent's answer", every_s=0.2)
    assert told is not None
    return told


def sensors_of(booted: Booted, count: int) -> dict[str, Any]:
    """What the status tells of the sensors, once that many have been heard."""
    sensors = status(booted)["agent"]["sensors"]
    return dict(sensors) if len(sensors) >= count else {}


def main_pid(booted: Booted) -> int:
    return int(booted.show(UNIT, "MainPID")["MainPID"])


def journal(booted: Booted, *matches: str) -> list[dict[str, Any]]:
    output = booted.run("journalctl", "-o", "json", "--no-pager", *matches).stdout
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def job(installed: Booted) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with its registration, in a group of its own as jobs are; its life is the test's to end."""
    code = """
import os, select, time
from guardrun.supervisor.client.agent_client import AgentClient
from guardrun.supervisor.wire.agent_messages import RegisterJob
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
job = RegisterJob(run_id="booted", run_dir="/tmp", launcher_pid=os.getpid(), launcher_start=start, token="t0")
client = AgentClient(job)
while True:
    client.read()
    select.select([client.fileno()], [], [], 0.5)
"""
    process = installed.start(sys.executable, "-c", code)
    wait_until(lambda: status(installed)["agent"]["jobs"] == 1, 30, "the registration", every_s=0.2)
    yield process
    for inside in descendants(process.pid):
        subprocess.run(["kill", "-KILL", str(inside.pid)], check=False)
    process.kill()
    process.wait(60)


def test_install_starts_it_as_a_user_of_its_own_and_it_says_ready(installed: Booted) -> None:
    shown = installed.show(UNIT, "ActiveState", "SubState", "StatusText", "User", "Result")
    assert (shown["ActiveState"], shown["SubState"], shown["User"]) == ("active", "running", "guardrun")
    assert "sensors" in shown["StatusText"]
    assert installed.run("systemctl", "is-enabled", UNIT).stdout.strip() == "enabled"
    told = status(installed)
    assert (told["installed"], told["unit"]) == (True, "active")
    heard = wait_until(lambda: sensors_of(installed, 8), 30, "the sensors' first words", every_s=0.2)
    # Its sandbox is open where they look. The GPUs' has its own reasons; and not every kernel counts pressure.
    troubled = {name: sensor["trouble"] for name, sensor in heard.items() if sensor["trouble"]}
    assert set(troubled) <= {"gpu", "pressure", "cgroup", "infiniband"}, troubled
    owner = installed.run("stat", "-c", "%U %a", "/run/guardrun/agent.sock", "/var/lib/guardrun").stdout.split()
    assert owner == ["guardrun", "666", "guardrun", "755"]


def test_everybody_on_the_node_may_ask(installed: Booted) -> None:
    code = "from guardrun.supervisor.client.agent_client import ask; print(ask('status', timeout_s=10)['node'])"
    asked = installed.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code)
    assert asked.stdout.strip()


def test_its_words_are_in_the_journal_with_fields(installed: Booted) -> None:
    entries = journal(installed, "GUARDRUN_EVENT=agent_started", "-u", UNIT)
    assert entries[-1]["SYSLOG_IDENTIFIER"] == "guardrund"
    assert entries[-1]["GUARDRUN_VERSION"]
    assert entries[-1]["_UID"] != "0"
    assert entries[-1]["MESSAGE"].startswith("agent_started node=")


def test_a_stopped_agent_is_started_again_by_the_watchdog(installed: Booted) -> None:
    before = main_pid(installed)
    restarts = int(installed.show(UNIT, "NRestarts")["NRestarts"])
    installed.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", UNIT)
    wait_until(lambda: int(installed.show(UNIT, "NRestarts")["NRestarts"]) > restarts, 30, "the restart", every_s=0.2)
    assert status(installed)["agent"]["pid"] != before
    messages = [entry["MESSAGE"] for entry in journal(installed, "-u", UNIT)]
    assert any("Watchdog timeout" in str(message) for message in messages)
    assert any("Fatal Python error: Aborted" in str(message) for message in messages), messages[-20:]


def test_a_job_survives_restart_upgrade_and_reload_and_is_known_afterwards(
    installed: Booted, job: subprocess.Popen[bytes]
) -> None:
    installed.run("systemctl", "reload", UNIT)
    wait_until(lambda: installed.show(UNIT, "ActiveState")["ActiveState"] == "active", 20, "the reload's end")
    for command in (("systemctl", "restart", UNIT), (GUARDCTL, "node-agent", "install")):
        before = main_pid(installed)
        installed.run(*command)
        told = status(installed)
        assert told["agent"]["pid"] != before
        assert told["agent"]["jobs"] == 1
        assert job.poll() is None
    installed.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT)
    wait_until(lambda: main_pid(installed) not in (0, told["agent"]["pid"]), 30, "the next one", every_s=0.2)
    assert status(installed)["agent"]["jobs"] == 1
    assert job.poll() is None


def test_uninstall_removes_all_that_install_made_and_leaves_training_alone(
    installed: Booted, job: subprocess.Popen[bytes]
) -> None:
    installed.run("sh", "-c", 'echo \'{"schema":1,"nodes":{}}\' > /var/lib/guardrun/quarantine.json')
    installed.run(GUARDCTL, "node-agent", "uninstall")
    assert job.poll() is None
    for path in (
        f"/etc/systemd/system/{UNIT}",
        f"/etc/systemd/system/multi-user.target.wants/{UNIT}",
        "/etc/sysusers.d/guardrun.conf",
        "/etc/tmpfiles.d/guardrun.conf",
        "/run/guardrun",
        "/var/lib/guardrun/history.db",
    ):
        assert installed.run("test", "-e", path, check=False).returncode == 1, path
    assert installed.run("getent", "passwd", "guardrun", check=False).returncode == 2
    assert installed.run("stat", "-c", "%U", "/var/lib/guardrun/quarantine.json").stdout.strip() == "root"
    told = json.loads(installed.run(GUARDCTL, "node-agent", "status", "--json", check=False).stdout)
    assert (told["installed"], told["agent"]) == (False, None)
    installed.run(GUARDCTL, "node-agent", "uninstall", "--purge")
    assert installed.run("test", "-e", "/var/lib/guardrun", check=False).returncode == 1


def test_what_a_dead_job_leaves_is_ended_by_an_agent_without_root(installed: Booted) -> None:
    """Another user's process, by CAP_KILL, and found in their environment, by CAP_SYS_PTRACE."""
    program = find_program("guardrund")
    drop_in(installed, "patience", "ExecStart=", f"ExecStart={program} --node --patience 1")
    installed.run("systemctl", "restart", UNIT)
    status(installed)
    code = """
import os, subprocess, sys, time
from guardrun.supervisor.client.agent_client import AgentClient
from guardrun.supervisor.wire.agent_messages import RegisterJob, Findings
os.setgid(65534); os.setuid(65534)
environment = {"GUARDRUN_TOKEN": "t1", "PATH": "/bin:/usr/bin"}
left = subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
job = RegisterJob(run_id="dead", run_dir="/tmp", launcher_pid=os.getpid(), launcher_start=start, token="t1")
client = AgentClient(job)
while not any(isinstance(news, Findings) for news in client.read()):
    time.sleep(0.05)
print(left.pid)
"""
    pid = installed.run(sys.executable, "-c", code).stdout.strip()
    began = time.monotonic()
    wait_until(lambda: installed.run("test", "-d", f"/proc/{pid}", check=False).returncode, 30, "its end", every_s=0.2)
    assert time.monotonic() - began < 29
    entries = wait_until(lambda: journal(installed, "GUARDRUN_EVENT=leftovers_ended"), 20, "its word")
    assert entries[-1]["GUARDRUN_RUN_ID"] == "dead"
    scenes.check("zombies", "journalctl --unit guardrund --output cat", entries[-1]["MESSAGE"], installed.root)


@pytest.mark.real("cc")
def test_a_gpu_that_falls_off_the_bus_isolates_the_node_until_somebody_releases_it(installed: Booted) -> None:
    """The whole way: driver's library, agent in its sandbox, quarantine, a run that is refused, a person's word."""
    folder = installed.root / "opt/nvml"
    stub = NvmlStub(build_library(folder), folder / "answers")
    stub.set(gpus=2)
    folder.chmod(0o755)
    (folder / "answers").chmod(0o644)
    drop_in(installed, "nvml", "Environment=LD_LIBRARY_PATH=/opt/nvml NVML_STUB_STATE=/opt/nvml/answers")
    installed.run("systemctl", "restart", UNIT)

    def trouble() -> str:
        return str(status(installed)["agent"]["sensors"].get("gpu", {}).get("trouble", "not read yet"))

    wait_until(lambda: not trouble(), 30, "the devices", every_s=0.3)
    stub.xid(gpu=1, code=79)
    node = wait_until(lambda: nodes(installed, "quarantined"), 30, "the quarantine", every_s=0.3)
    assert [(one["cause"], one["who"]) for one in node[0]["isolations"] if one["holds"]] == [("gpu_xid", "guardrun")]
    refused = installed.run(GUARDRUN, "--nproc_per_node=1", "/dev/null", check=False)
    assert refused.returncode == 69
    assert "Xid 79" in refused.stderr
    installed.run(GUARDCTL, "node", "release", node[0]["node"], "--reason", "board changed")
    wait_until(lambda: not status(installed)["agent"]["quarantine"], 30, "the agent's notice", every_s=0.3)
    installed.run("systemctl", "restart", UNIT)
    wait_until(lambda: not trouble(), 30, "the devices, again", every_s=0.3)
    assert nodes(installed, "quarantined") == []
    told = json.loads(installed.run(GUARDCTL, "node", "history", "--what", "quarantine", "--json").stdout)
    assert [entry["name"] for entry in told["entries"]][-2:] == ["quarantined", "released"]


def nodes(booted: Booted, state: str) -> list[dict[str, Any]]:
    """What guardctl knows of nodes in a state."""
    told = json.loads(booted.run(GUARDCTL, "node", "list", "--json").stdout)
    return [dict(node) for node in told["nodes"] if node["state"] == state]
