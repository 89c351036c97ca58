"""Ranks that are functions (--run-path): watched like any other, however multiprocessing starts them."""

from __future__ import annotations

import pytest

from tests.runs.runs import EdgeRuns, only

RESUMES = """
[checkpoint]
dir = "out"
resume_env = { RESUME_FROM = "{path}" }
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_its_steps_are_counted_and_it_is_told_what_to_resume_from(edge: EdgeRuns, method: str) -> None:
    """Long on a busy machine: multiprocessing's children import torch anew, in each attempt."""
    flags = ("--run-path", f"--start-method={method}", "--log-dir=logs", "--redirects=2")
    finished = edge.run("anew.py", "--takes", "told", "--name", "ckpt_{step}.pt", flags=flags, config=RESUMES, ranks=1)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["cause"], incident["step"], incident["action"]) == ("exception", 25, "restart")
    assert incident["resumed_from"]["step"] == 20
    assert "attempt 1 rank 0: starts at step 20" in finished.stdout
    assert finished.summary is not None
    assert (finished.summary["last_step"], finished.summary["resumes"]) == (40, "opens")
    for log in (edge.folder / "logs").rglob("stderr.log"):
        assert "guardrun" not in log.read_text()


TAKES_NAMES = """
import torch.distributed as dist
from torch.distributed import distributed_c10d
assert dist.all_reduce is distributed_c10d.all_reduce
print(dist.all_reduce.__globals__["__name__"])
"""


def test_whoever_has_taken_a_name_before_the_hooks_came_is_given_theirs(edge: EdgeRuns) -> None:
    """torch.distributed has been imported by then, with its own names for all collectives."""
    (edge.folder / "names.py").write_text(TAKES_NAMES)
    finished = edge.run(str(edge.folder / "names.py"), flags=("--run-path",), ranks=1)
    assert (finished.returncode, finished.stdout) == (0, "guardrun.hooks.patches.collectives\n")
