"""The hooks in real training, one process: steps, batches, checkpoints, torch.compile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.patches.collectives import NOT_FUNCTIONS
from guardrun.hooks.wire.board import OPS, PHASES, Field, Milestone
from guardrun.hooks.wire.messages import CheckpointLoaded, CheckpointSaved, HookFailed
from tests.hooks.bed import Bed, finish, run_plain

RANKS = Path(__file__).parent / "ranks"


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Bed, dict[str, list[int]]]]:
    with Bed() as bed:
        done = finish(bed.start([str(RANKS / "training.py")]))
        assert done.returncode == 0, done.stderr
        assert bed.hear_all(HookFailed) == []
        bed.board()  # Opened here, since a test must not leave a descriptor behind.
        yield bed, json.loads(done.stdout)


def test_steps_are_those_of_the_optimizer_that_has_done_most(trained: tuple[Bed, dict[str, list[int]]]) -> None:
    _, seen = trained
    assert seen["one for each parameter"] == [3, 6]
    assert seen["short-lived"] == [3, 26]
    assert seen["another"] == [5, 31]


def test_compiled_models_and_optimizers_count(trained: tuple[Bed, dict[str, list[int]]]) -> None:
    assert trained[1]["compiled"] == [9, 35]


def test_a_step_that_only_makes_an_optimizer_s_state_is_none(trained: tuple[Bed, dict[str, list[int]]]) -> None:
    """A script that loads by torch.distributed.checkpoint.state_dict has one before its first."""
    _, seen = trained
    assert seen["given a state to load into"] == seen["another"]
    assert seen["and on"] == [6, 32], "it is heard of again"


def test_batches_are_counted_once(trained: tuple[Bed, dict[str, list[int]]]) -> None:
    _, seen = trained
    assert seen["batches"] == [5, 0]
    assert seen["with workers"] == [9]
    assert seen["nested"] == [13]
    assert seen["inside"][0] == 0, "a prefetching thread is not what training waits for"
    assert seen["in a thread"][0] >= 17


def test_training_s_milestones(trained: tuple[Bed, dict[str, list[int]]]) -> None:
    bed, _ = trained
    board = bed.board()
    assert bed.milestones() == {
        Milestone.HOOKED, Milestone.TORCH_IMPORTED, Milestone.FIRST_PROGRESS, Milestone.ENDED
    }  # fmt: skip
    assert PHASES[board[Field.PHASE]] == "train"
    assert board[Field.PROGRESS_NS] >= board[Field.STEP_NS] > 0
    assert board[Field.DATA_TOTAL_NS] > 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bed, dict[str, Any], Path]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    with Bed() as bed:
        more = {"GUARDRUN_RESUME_FROM": str(folder / "path.pt")}
        done = finish(bed.start([str(RANKS / "checkpoints.py"), str(folder), "async"], more=more))
        assert done.returncode == 0, done.stderr
        assert bed.hear_all(HookFailed) == []
        bed.board()  # Opened here, since a test must not leave a descriptor behind.
        yield bed, json.loads(done.stdout), folder


def test_each_save_to_a_file_is_told_with_its_path_and_step(saved: tuple[Bed, dict[str, Any], Path]) -> None:
    bed, seen, folder = saved
    messages = bed.hear_all(CheckpointSaved)
    expected = [(str(folder / f"{name}.pt"), "torch.save", 7)
                for name in ("relative", "path", "keyword", "file", "tmp", "thread")]  # fmt: skip
    expected += [(str(folder / name), "dcp", 8) for name in ("dcp", "writer", "async")]
    assert [(message.path, message.writer, message.step) for message in messages] == expected
    assert all(0 < message.began_ns < message.ended_ns for message in messages)
    assert (seen["saves"], seen["since"]) == (len(expected), 0)


def test_loads_are_told_and_bounded(saved: tuple[Bed, dict[str, Any], Path]) -> None:
    bed, seen, folder = saved
    messages = bed.hear_all(CheckpointLoaded)
    torch_loads = [Path(message.path).name for message in messages if message.reader == "torch.load"]
    assert torch_loads[:2] == ["before.pt", "relative.pt"]
    assert [message.has_stepped for message in messages] == [False, *[True] * (len(messages) - 1)]
    assert torch_loads.count("relative.pt") == 1
    assert torch_loads[-1] == "path.pt"
    assert len(torch_loads) == 257
    assert [message.path for message in messages if message.reader == "dcp"] == [str(folder / "dcp")]
    assert Milestone.RESUMED in bed.milestones()
    assert seen["phase"] == PHASES.index("start")


def test_wrappers_look_like_what_they_wrap(saved: tuple[Bed, dict[str, Any], Path]) -> None:
    seen = saved[1]
    assert seen["signature"].startswith("(obj: ")
    assert seen["names"] == ["save", "load", "torch.distributed.checkpoint.state_dict_saver"]
    assert seen["pickled"]
    assert (seen["loader"], seen["source"], seen["attributes"]) == ("SourceFileLoader", True, ["name", "path"])


def test_a_script_s_own_error_handler_is_asked(bed: Bed, tmp_path: Path) -> None:
    code = """
from torch.distributed.elastic.multiprocessing import errors
class Own(errors.ErrorHandler):
    def record_exception(self, error):
        import traceback
        with open(self._get_error_file_path(), "w") as file: file.write("own: " + traceback.format_exc())
errors.get_error_handler = Own
1 / 0
"""
    done = bed.run(code, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    text = (tmp_path / "error.json").read_text()
    assert text.startswith("own: Traceback") and text.endswith("ZeroDivisionError: division by zero\n")
    assert done.stderr.count("File ") == 1, "the traceback that is printed has grown"


def test_torch_compile_sees_no_difference(bed: Bed) -> None:
    """Long on a busy machine: dynamo traces everything twice, with hooks and without."""
    script = str(RANKS / "compiled.py")
    hooked = bed.start([script])
    plain = run_plain([script], dict(os.environ))
    done = finish(hooked)
    assert (done.returncode, plain.returncode) == (0, 0), done.stderr
    assert json.loads(done.stdout) == json.loads(plain.stdout)
    assert bed.hear_all(HookFailed) == []
    assert bed.board()[Field.COLLECTIVES] > 0


def test_what_looks_into_modules_sees_no_difference(bed: Bed) -> None:
    """Long on a busy machine: dynamo traces everything twice, with hooks and without."""
    script = str(RANKS / "traced_modules.py")
    bed.detect = "deep"
    bed.make_board()
    hooked = bed.start([script])
    plain = run_plain([script], {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")})
    done = finish(hooked)
    assert (done.returncode, plain.returncode) == (0, 0), (done.stderr, plain.stderr)
    ours, theirs = json.loads(done.stdout), json.loads(plain.stdout)
    assert {name: ours[name] for name in ours if ours[name] != theirs[name]} == {}
    assert ours.keys() == theirs.keys()
    assert theirs["hooked_by_others"][2] and not theirs["compiled_whole"][2]
    assert bed.hear_all(HookFailed) == []


def test_every_collective_is_among_those_that_are_compiled() -> None:
    text = (RANKS / "collectives.py").read_text()
    assert [name for name in OPS if name not in NOT_FUNCTIONS and f"dist.{name}(" not in text] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_collectives_are_as_without_us(tmp_path: Path) -> None:
    """Long: every collective compiled, in whole graphs and in others, with hooks and without.

    Both ranks make the same calls, so one may have this backend and its peer that one. Inductor has whole graphs
    alone, and few of them: dynamo, which makes the graph, is all that hooks could mislead. Those with hooks come later
    and find what inductor made of a graph, by the graph's hash; dynamo keeps nothing.
    """
    aot, inductor = "aot_eager-whole-p2p", "inductor-whole-p2p-few"
    choices = [["none", "aot_eager", aot], ["none", "eager", inductor]]
    more = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    # A forked one's dynamo knows the collectives from before they were wrapped: this variable, which torch reads when
    # it is imported, has those with hooks executed.
    executed = {**more, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    script = str(RANKS / "collectives.py")
    plain = {**os.environ, **more}
    done = []
    with Bed(world_size=2) as bed:
        for has_hooks in (False, True):
            ranks = [
                bed.start(
                    [script, str(tmp_path / f"store-{has_hooks}"), *choices[rank]],
                    rank=rank,
                    more=executed,
                    env=None if has_hooks else {**plain, "RANK": str(rank)},
                )
                for rank in range(2)
            ]
            done += [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0] * 4, [rank.stderr for rank in done if rank.returncode]
        assert bed.hear_all(HookFailed) == []
    without, without_too, hooked, hooked_too = (json.loads(rank.stdout) for rank in done)
    assert hooked == without
    assert hooked_too == without_too
    worked = {name for name, (what, *_) in {**hooked, **hooked_too}.items() if isinstance(what, list)}
    assert {name for name in hooked if name.endswith(" none")} <= worked, "nobody has compiled anything there"
    few = {"reduced", "gathered_into", "sent_async", "sent_at_once"}
    whole = {f"{name} {aot}" for name in (*few, "reduced_by", "scattered", "scattered_by")}
    assert whole | {f"{name} {inductor}" for name in few} <= worked
    breaks = hooked["sent_at_once aot_eager"][1], hooked[f"sent_at_once {aot}"][1]
    assert breaks[0] > 0 == breaks[1], "point to point is compiled where it is asked for alone"
