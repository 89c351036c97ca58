"""Whose word holds for whom: real users and a real agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrun.supervisor.quarantine.record_places import Place
from guardrun.supervisor.quarantine.records import read_holding
from tests.agent.bed import AgentBed
from tests.support.neighbours import NEIGHBOUR, VICTIM, make_passable, named_user, python_as
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("root")

PRELOAD = """
import encodings.idna, json, pwd, time
from pathlib import Path
from guardrun.supervisor.client.agent_client import AgentClient, RefusedError, ask
from guardrun.supervisor.wire.agent_messages import RegisterJob
"""
OWNER = """
path = Path(sys.argv[1])
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
job = RegisterJob(run_id="mine", run_dir="", launcher_pid=os.getpid(), launcher_start=start, token="mine")
client, end_s = AgentClient(job, path), time.monotonic() + 60
while not any(one["uid"] == os.getuid() for one in ask("jobs", path=path, timeout_s=30)["jobs"]):
    assert time.monotonic() < end_s
    client.read()
    time.sleep(0.02)
def act(verb, **asked):
    try:
        return ask(verb, {"run_id": "mine", "is_automatic": True, **asked}, path=path, timeout_s=30)
    except RefusedError as refused:
        return str(refused)
def causes(answer):
    return [one["cause"] for one in answer["quarantine"].get("holding", [])]
"""


def as_owner(uid: int, agent: AgentBed, code: str) -> list[object]:
    """Run as the owner of a job on the agent's node; a line of JSON each."""
    done = python_as(uid, OWNER + code, agent.socket, preload=PRELOAD, cwd=make_passable(agent.folder))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def counting_for(agent: AgentBed, uid: int) -> list[str]:
    node, now_s = agent.ask("status")["node"], 4e9
    held, troubles = read_holding([Place(agent.state / "quarantine.json")], node, now_s, uid)
    assert troubles == []
    return [one.cause for one in held]


def test_a_job_isolates_for_its_owner_and_lifts_nobody_elses(agent: AgentBed) -> None:
    agent.start()
    agent.ask("isolate", cause="fans", reason="by root")
    agent.tell("gpu:a is_broken 1\n")
    held = lambda: agent.ask("status")["quarantine"].get("holding", [])  # noqa: E731
    wait_until(lambda: len(held()) == 2, 20, "the sensor's isolation")
    asked = 'print(json.dumps(causes(act("isolate", cause="thermal"))))'
    assert as_owner(VICTIM, agent, asked) == [["fans", "gpu_xid", "thermal"]]
    assert [one.get("uid") for one in held()] == [None, None, VICTIM]
    assert counting_for(agent, NEIGHBOUR) == ["fans", "gpu_xid"]
    assert counting_for(agent, VICTIM) == ["fans", "gpu_xid", "thermal"]

    lift = 'print(json.dumps(causes(act("release", reason="mine now", is_overriding=True))))'
    assert as_owner(NEIGHBOUR, agent, lift) == [["fans", "gpu_xid", "thermal"]]
    assert as_owner(VICTIM, agent, lift) == [["fans", "gpu_xid"]]
    agent.ask("release", is_overriding=True)
    assert held() == []


def test_dates_are_bounded_by_now(agent: AgentBed) -> None:
    agent.start()
    code = """
now = time.time()
print(json.dumps(act("isolate", cause="a", evidence_wall_s=now + 1e6)))
print(json.dumps(act("isolate", cause="b", until_wall_s=now - 5)))
print(json.dumps(act("isolate", cause="c", evidence={"x": "y" * 10_000})))
held = act("isolate", cause="d", evidence_wall_s=now + 60)["quarantine"]["holding"]
print(json.dumps([(one["cause"], one["evidence_wall_s"] <= time.time()) for one in held]))
"""
    assert as_owner(VICTIM, agent, code) == [
        "the evidence is dated in the future: is the clock right?",
        "the isolation would be over already: its end lies in the past",
        "the evidence is more than 8192 bytes",
        [["d", True]],
    ]


@pytest.mark.real("useradd")
def test_jobs_of_a_trusted_group_isolate_for_everybody(agent: AgentBed, tmp_path: Path) -> None:
    with named_user("t") as user:
        config = tmp_path / "agent.toml"
        config.write_text(f'[node]\ntrust_jobs = ["{user.name}"]\n')
        agent.start("--config", str(config))
        as_owner(user.uid, agent, 'act("isolate", cause="thermal")')
        as_owner(VICTIM, agent, 'act("isolate", cause="disk")')
        assert counting_for(agent, NEIGHBOUR) == ["thermal"]
