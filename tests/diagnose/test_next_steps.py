"""What to do next, where the culprit is on another node: its pid means another process here."""

from __future__ import annotations

import pytest

from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose.next_steps import next_steps
from guardrun.supervisor.engine.model.actions import Culprit


def diagnosis(node: str) -> an.Diagnosis:
    target = an.Target(kind="run", source="supervisor", node="node-a", world_size=2, run_id="wide-1")
    lines = [
        an.RankLine(rank=0, local_rank=0, node="node-a", pid=4242, doing="waiting", reason=""),
        an.RankLine(rank=1, local_rank=0, node=node, pid=4242, doing="stopped", reason=""),
    ]
    culprit = Culprit(rank=1, local_rank=0, node=node, pid=4242)
    return an.Diagnosis(target=target, verdict=an.HANG, summary="", culprits=[culprit], ranks=lines)


@pytest.mark.parametrize(
    ("node", "command", "where"),
    [
        ("node-a", ["kill", "-CONT", "4242"], ""),
        ("node-b", ["ssh", "node-b", "kill -CONT 4242"], " (node-b)"),
    ],
)
def test_a_culprits_process_is_looked_at_where_it_is(node: str, command: list[str], where: str) -> None:
    steps = next_steps(diagnosis(node), run=None, is_held=True)
    [step] = [step for step in steps if step.changes]
    assert step.command == command
    assert step.why == f"let rank 1 go on, if nobody keeps it stopped on purpose{where}"


@pytest.mark.parametrize("node", ["-oProxyCommand=touch x", "me@node-b", "node b", "a;b", "", "knoten\u0438"])
def test_no_command_goes_where_no_host_is(node: str) -> None:
    """Names of nodes are a run's own word, which another user may have written."""
    assert [step for step in next_steps(diagnosis(node), run=None, is_held=True) if step.changes] == []
