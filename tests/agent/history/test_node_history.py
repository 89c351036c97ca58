"""`guardctl node history`: of a live agent, of the file that one has left, and of neither."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.verbs.node_history import parse_when
from guardrun.supervisor.report.elements.quantities import iso_time
from tests.agent.bed import AgentBed
from tests.support.real import find_program
from tests.support.waiting import wait_until


def history(agent: AgentBed, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_program("guardctl") or "guardctl", "node", "history", *arguments],
        cwd=agent.folder,
        env={
            **os.environ,
            "GUARDRUN_AGENT_SOCKET": str(agent.socket),
            "GUARDRUN_NODE_STATE_DIR": str(agent.state),
            "COLUMNS": "400",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_happened_is_shown_in_order_with_its_words(agent: AgentBed) -> None:
    agent.start()
    agent.tell("gpu:0 is_hot 1\n! gpu:0 xid Xid 63: a row to remap\n")
    agent.wait_for_entry("thermal")
    done = history(agent)
    assert done.returncode == 0, done.stderr
    for words in ("agent_started", "happening", "Xid 63: a row to remap", "gpu:0 is_hot."):
        assert words in done.stdout, words
    only = json.loads(history(agent, "--what", "happening", "--json").stdout)
    assert [entry["name"] for entry in only["entries"]] == ["xid"]
    assert only["samples"] == []
    assert json.loads(history(agent, "--json", "--subject", "net:").stdout)["entries"] == []


def test_without_its_agent_it_is_read_from_the_file_and_said(agent: AgentBed) -> None:
    process = agent.start()
    agent.wait_for_entry("agent_started")
    agent.end(process, signal.SIGKILL)
    done = history(agent)
    assert done.returncode == 0, done.stderr
    assert "agent_started" in done.stdout
    assert f"read from {agent.state / 'history.db'}" in done.stdout


def test_samples_are_there_after_a_clean_end(agent: AgentBed) -> None:
    process = agent.start()
    wait_until(lambda: agent.ask("status")["counters"]["readouts"], 20, "a readout")
    agent.end(process)
    samples = json.loads(history(agent, "--samples", "--json").stdout)["samples"]
    assert [(s["subject"], s["name"], s["mean"]) for s in samples] == [("cpu", "temperature_c", 40.0)]
    assert "temperature_c" in history(agent, "--samples").stdout


def test_where_there_was_never_an_agent_that_is_said(agent: AgentBed) -> None:
    done = history(agent)
    assert done.returncode == 1
    assert f"no node agent listens at {agent.socket}" in done.stderr


def test_times() -> None:
    assert parse_when("90m", 10_000.0) == 4600.0
    assert parse_when("1.5h", 10_000.0) == 4600.0
    now_s = float(int(time.time()))
    assert parse_when(iso_time(now_s), 0.0) == pytest.approx(now_s, abs=1)
    for text in ("", "h", "soon", "1w", "-1h"):
        with pytest.raises(CtlError, match="expected how long ago"):
            parse_when(text, 0.0)
