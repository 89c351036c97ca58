"""A quarantine that the agent ends by itself: the part is well again, for long enough, and nothing else is wrong."""

from __future__ import annotations

import json
import subprocess

from tests.agent.bed import AgentBed
from tests.support.guardrun_run import clean_environment
from tests.support.real import find_program
from tests.support.waiting import wait_until

UP, DOWN = "net:eth0 is_up 1\nnet:eth0 is_down 0\n", "net:eth0 is_up 0\nnet:eth0 is_down 1\n"


def causes(agent: AgentBed) -> list[str]:
    return sorted(one["cause"] for one in agent.ask("status")["quarantine"].get("holding", []))


def isolate(agent: AgentBed, readings: str, *wanted: str) -> None:
    agent.tell(readings)
    wait_until(lambda: causes(agent) == sorted(wanted), 20, f"isolations for {wanted}")


def test_a_link_that_is_up_again_and_stays_so_ends_its_quarantine(agent: AgentBed) -> None:
    agent.start("--calm", "1")
    isolate(agent, DOWN, "network")
    agent.tell(UP)
    wait_until(lambda: not causes(agent), 30, "the release")
    entry = agent.wait_for_entry("released", what="quarantine")
    assert entry["text"].startswith("it takes part again: released by preflight: net:eth0 has been well for")
    guardctl = [find_program("guardctl") or "guardctl", "node", "show"]
    env = clean_environment("guardctl", {"GUARDRUN_NODE_STATE_DIR": str(agent.state), "COLUMNS": "200"})
    shown = subprocess.run(guardctl, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "by preflight: net:eth0 has been well for" in shown
    (release,) = json.loads(
        subprocess.run([*guardctl, "--json"], env=env, capture_output=True, check=True, timeout=60).stdout
    )["releases"]
    assert release["who"] == "preflight"


def test_memory_that_failed_waits_for_a_person(agent: AgentBed) -> None:
    agent.start("--calm", "0")
    isolate(agent, DOWN + "gpu:0 is_broken 1\n", "network", "gpu_xid")
    agent.tell(UP + "gpu:0 is_broken 0\n")
    wait_until(lambda: causes(agent) == ["gpu_xid"], 30, "the release of what is well")
