"""The public calls: what they show on the board, and that they are nothing without guardrun."""

from __future__ import annotations

import os
import timeit

import pytest

import guardrun.hooks
from guardrun.hooks.wire.board import PHASES, Field, Milestone
from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.supervisor.collect.ranks.boards import step_of
from tests.hooks.bed import Bed, finish, run_plain


def test_steps_without_a_number_count_this_attempt(bed: Bed) -> None:
    bed.run("from guardrun.hooks import step\nfor _ in range(3): step()")
    board = bed.board()
    assert (board[Field.STEP], board[Field.STEP_BASE], board[Field.API_CALLS]) == (3, 0, 3)
    assert board[Field.STEP_NS] == board[Field.PROGRESS_NS] > 0
    assert bed.milestones() >= {Milestone.API_STEPS, Milestone.FIRST_PROGRESS}


def test_a_step_s_number_is_absolute(bed: Bed) -> None:
    """The supervisor adds the checkpoint's step to what a rank counts; a script that says 41 means 41."""
    bed.make_board()
    process = bed.start(["-c", "import sys\nfrom guardrun.hooks import step\nstep(40)\ninput()"])
    process.wait(60)
    assert step_of(bed.board().words) == 40
    bed.board().words[Field.STEP_BASE] = 40  # late: what was loaded is told beside the training
    assert step_of(bed.board().words) == 40
    bed.run("from guardrun.hooks import step\nstep(41)")
    assert step_of(bed.board().words) == 41


def test_phases(bed: Bed) -> None:
    code = """
from guardrun.hooks import phase
from guardrun.hooks.wire.board import Field, PHASES
from guardrun.hooks.rank import rank
def shown():
    print(PHASES[rank.active.words[Field.PHASE]], end=" ")
shown(); phase("train"); shown()
with phase("eval"):
    shown()
    with phase("warm-up"):
        shown()
    shown()
shown()
try:
    with phase("save"): raise ValueError
except ValueError: shown()
"""
    assert bed.run(code).stdout == "start train eval other eval train train "
    assert (bed.sockets / "phase-0-0").read_text() == "warm-up"
    assert PHASES[bed.board()[Field.PHASE]] == "train"


def test_should_checkpoint_says_yes_once_and_at_the_same_call(bed: Bed) -> None:
    code = """
from guardrun.hooks.rank import rank; from guardrun.hooks import should_checkpoint
from guardrun.hooks.wire.board import Field
words = rank.active.words
def ask(n): return [int(should_checkpoint()) for _ in range(n)]
print(ask(3))
words[Field.CHECKPOINT_AT] = 5
print(ask(4))
words[Field.CHECKPOINT_AT] = 6     # passed already: the next call
print(ask(3))
words[Field.CHECKPOINT_AT] = 0
print(ask(2), words[Field.CHECKS], words[Field.CHECKPOINT_ACK])
"""
    done = bed.run(code)
    assert done.stdout.splitlines() == ["[0, 0, 0]", "[0, 1, 0, 0]", "[1, 0, 0]", "[0, 0] 12 6"], done.stderr


def test_resume_is_told(bed: Bed) -> None:
    code = "from guardrun.hooks import resume_from, resume_step; print(resume_from(), resume_step())"
    given = {"GUARDRUN_RESUME_FROM": "/ckpt/40.pt", "GUARDRUN_RESUME_STEP": "40"}
    loaded, done = bed.run_until(CheckpointLoaded, code, **given)
    assert done.stdout == "/ckpt/40.pt 40\n"
    assert (loaded.path, loaded.reader) == ("/ckpt/40.pt", "resume_from")
    assert Milestone.RESUMED in bed.milestones()


@pytest.mark.parametrize(("path", "step"), [("", ""), (None, None), ("", "forty")])
def test_nothing_to_resume_from(bed: Bed, path: str | None, step: str | None) -> None:
    code = "from guardrun.hooks import resume_from, resume_step; print(resume_from(), resume_step())"
    given = {"GUARDRUN_RESUME_FROM": path, "GUARDRUN_RESUME_STEP": step}
    more = {name: value for name, value in given.items() if value is not None}
    assert bed.run(code, **more).stdout == "None None\n"


def test_without_guardrun_the_calls_do_nothing() -> None:
    code = """
from guardrun.hooks import phase, resume_from, resume_step, should_checkpoint, skip_batches, step
step(); step(3)
with phase("eval") as p: pass
phase("train")
print(should_checkpoint(), resume_from(), resume_step(), skip_batches())
import sys; print([m for m in ("torch", "zmq", "msgspec", "ctypes") if m in sys.modules])
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")}
    assert run_plain(["-c", code], env).stdout == "False None None []\n[]\n"


def test_without_guardrun_the_calls_cost_nothing() -> None:
    calls = (guardrun.hooks.step, guardrun.hooks.should_checkpoint, lambda: guardrun.hooks.phase("train"))
    for call in calls:
        assert min(timeit.repeat(call, number=1000, repeat=20)) / 1000 < 2e-6


def test_the_agent_s_attempts_come_from_torchrun_s_environment(bed: Bed) -> None:
    """torchrun's own agent numbers attempts, and nobody made a board for them."""
    process = bed.start(
        ["-c", "from guardrun.hooks import step; step(4)"], attempt=None, more={"TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert finish(process).returncode == 0
    assert bed.board(attempt=2)[Field.STEP] == 4


def test_the_package_refuses_another_name(bed: Bed) -> None:
    folder = os.path.dirname(os.path.dirname(guardrun.hooks.__file__))
    code = f"import sys; sys.path.insert(0, {folder!r}); import hooks"
    assert "import guardrun.hooks, not hooks" in run_plain(["-c", code], dict(os.environ)).stderr
