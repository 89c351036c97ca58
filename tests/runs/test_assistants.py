"""A real run that is slow, computes a NaN and hangs, asked by `guardctl mcp`: docs/assistants.md says what it answers.

To accept a change: run it with --write-scenes, look at the page, and commit it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import pytest

from tests.project.purity import ROOT
from tests.runs.runs import QUICK, EdgeRuns, finish
from tests.support import scenes
from tests.support.guardrun_run import GuardrunRun
from tests.support.mcp_client import McpClient
from tests.support.scenes import words_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

PAGE = ROOT / "docs" / "assistants.md"
BLOCK = re.compile(r"^```text\n> (\w+) (\{[^\n]*\})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WATCHED = f"{QUICK}[slowdown]\nwindow_s = 3\n[policy]\nact = false\n"
QUESTIONS = 8


def wait_for(run: GuardrunRun, cause: str) -> None:
    found = run.guard_dir / "latest" / "incidents"
    wait_until(lambda: list(found.glob(f"*-{cause}/incident.json")), 120, cause)


def ask_while_it_trains(run: GuardrunRun, client: McpClient) -> None:
    """Every tool that is of use then, also those that change something."""
    name = (run.guard_dir / "latest").resolve().name
    assert f"| {name}  alive  " in client.call("runs").text
    inspected = client.call("inspect", {"ranks": [1]})
    assert "SGD, group 0" in inspected.text and "num_workers 0" in inspected.text
    traced = client.call("trace_on", {"run": name, "steps": 2, "ranks": [1]})
    assert "module.0" in traced.text and "Rank 0" not in traced.text
    assert "module.0" in client.call("trace_show").text
    assert not client.call("hold", {"run": name}).is_error
    assert client.call("status").text.startswith("guardrun: status: held")
    assert not client.call("unhold", {"run": name}).is_error
    assert "does not ask" in client.call("checkpoint", {"run": name}).text
    assert client.call("stacks").text.startswith("guardrun: stacks: of ranks 0-1.")


def play_page(run: GuardrunRun, client: McpClient) -> list[tuple[str, str]]:
    """What is answered to each question of the page, and what the page has."""
    played: list[tuple[str, str]] = []

    def play(block: re.Match[str]) -> str:
        tool, arguments, printed = block.groups()
        text = client.call(tool, json.loads(arguments)).text.replace(str(run.folder), "/scratch/me")
        text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-a", text)
        played.append((text, printed))
        return f"```text\n> {tool} {arguments}\n{text}\n```"

    now = BLOCK.sub(play, PAGE.read_text())
    if scenes.is_written:
        PAGE.write_text(now)
        return [(answered, answered) for answered, _ in played]
    return played


def test_a_run_that_is_slow_computes_a_nan_and_hangs(edge: EdgeRuns) -> None:
    """Long: that data are slow is told after three windows of some seconds."""
    os.mkfifo(edge.folder / "gate")
    run = edge.start("assisted.py", config=WATCHED)
    wait_until((run.guard_dir / "latest").exists, 60, "a run")
    with McpClient("--allow-act", cwd=run.folder) as client:
        wait_for(run, "dataloader_bound")
        (run.folder / "poison").touch()
        wait_for(run, "nan_loss")
        ask_while_it_trains(run, client)
        (run.folder / "wait").touch()
        wait_for(run, "rank_blocked")
        played = play_page(run, client)
        assert len(played) == QUESTIONS
        for answered, printed in played:
            missing = words_of(printed) - words_of(answered)
            assert not missing, f"{' '.join(missing)} is no longer answered:\n{answered}"
        run.send(signal.SIGINT)
        finished = finish(run)
        causes = {incident["cause"] for incident in finished.incidents}
        assert causes >= {"dataloader_bound", "nan_loss", "rank_blocked"}, finished
        status, diagnosed = client.calls([("status", {}), ("diagnose", {})])
        assert re.match(r"guardrun: status: ended, \d+ incidents\.", status.text), status.text
        assert diagnosed.text.startswith("guardrun: diagnose: finished, 100% sure.")
        assert client.close() == 0
