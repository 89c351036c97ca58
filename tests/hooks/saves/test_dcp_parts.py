"""What ranks write by torch.distributed.checkpoint without a collective: one whole checkpoint, or nothing."""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp

from guardrun.hooks import dcp_save
from guardrun.hooks.rank.parts import SaveGate
from guardrun.hooks.saves import dcp_parts
from guardrun.hooks.saves.in_time_files import NotSaved
from guardrun.hooks.wire.examinations import SAVE_PREFIX
from tests.support.waiting import wait_until

TOKEN = "0f1e2d"


def gate(part: tuple[int, int] | None = None, token: str = TOKEN) -> SaveGate:
    until_ns = time.monotonic_ns() + 600 * 10**9
    return cast(SaveGate, SimpleNamespace(asked_part=part, asked_token=token, until_ns=until_ns, is_answered=False))


class Counter:
    """Stateful, by torch's protocol."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def held(part: int) -> dict[str, Any]:
    """What a rank holds: its own tensor, and what all have."""
    return {f"weight{part}": torch.full((3,), float(part)), "both": torch.ones(2), "counter": Counter(8), "step": 8}


def load(path: Path, *parts: int) -> dict[str, Any]:
    state = {f"weight{part}": torch.zeros(3) for part in parts} | {
        "both": torch.zeros(2),
        "counter": Counter(0),
        "step": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is one process
        dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def write_parts(path: Path, gates: list[SaveGate], states: list[Any] | None = None) -> list[str]:
    """All at once, the last part first; what went wrong with each."""
    wrong = [""] * len(gates)

    def write(part: int) -> None:
        try:
            dcp_parts.write(states[part] if states else held(part), str(path), gates[part])
        except Exception as error:
            wrong[part] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=write, args=(part,)) for part in reversed(range(len(gates)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return wrong


def test_one_rank_writes_all_that_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "out" / "step_8"
    dcp_parts.write(held(0), str(path), gate())
    state = load(path, 0)
    assert torch.equal(state["weight0"], torch.zeros(3)) and state["counter"].steps == state["step"] == 8
    assert os.listdir(path.parent) == ["step_8"] and sorted(os.listdir(path)) == [".metadata", "__0_0.distcp"]


def test_several_write_a_part_each_and_what_all_have_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "step_8"
    assert write_parts(path, [gate((part, 3)) for part in range(3)]) == ["", "", ""]
    state = load(path, 0, 1, 2)
    assert [state[f"weight{part}"].tolist() for part in range(3)] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
    assert torch.equal(state["both"], torch.ones(2)) and state["counter"].steps == state["step"] == 8
    assert os.listdir(tmp_path) == ["step_8"] and len(os.listdir(path)) == 4, "no plan is left"


def test_it_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        dcp_parts.write(held(0), str(tmp_path / "a"), gate())
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750


def test_while_it_is_written_nobody_else_may_put_anything_beside(tmp_path: Path) -> None:
    """What says where all lies is a pickle."""
    modes = []

    class Looks(Counter):
        def state_dict(self) -> dict[str, Any]:
            [folder] = [one for one in tmp_path.iterdir() if one.name.startswith(SAVE_PREFIX)]
            modes.append(folder.stat().st_mode & 0o777)
            return {}

    dcp_parts.write({"looks": Looks(0)}, str(tmp_path / "a"), gate())
    assert modes == [0o700]


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "step_8"
    path.mkdir()
    (path / "theirs").write_text("old")
    with pytest.raises(NotSaved, match="step_8 is there already"):
        dcp_parts.write(held(0), str(path), gate())
    assert os.listdir(tmp_path) == ["step_8"] and (path / "theirs").read_text() == "old"


def test_nor_what_comes_there_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "step_8"

    class Saves(Counter):
        def state_dict(self) -> dict[str, Any]:
            path.mkdir()  # an ordinary save begins
            (path / "theirs").write_text("new")
            return {}

    with pytest.raises(OSError, match="not empty"):
        dcp_parts.write({"saves": Saves(0)}, str(path), gate())
    assert os.listdir(tmp_path) == ["step_8"] and os.listdir(path) == ["theirs"]


def test_a_part_that_does_not_come_in_time_leaves_nothing(tmp_path: Path) -> None:
    """Their time is over once both have written what they hold."""
    folder, gates = tmp_path / f"{SAVE_PREFIX}{TOKEN}.part", [gate((part, 3)) for part in (0, 1)]

    def are_written() -> bool:
        return folder.is_dir() and {"plan-1", "__0_0.distcp"} <= {*os.listdir(folder)}

    def end_time() -> None:
        wait_until(are_written, 60, "both parts")
        for one in gates:
            one.until_ns = time.monotonic_ns()

    thread = threading.Thread(target=end_time)
    thread.start()
    first, second = write_parts(tmp_path / "step_8", gates)
    thread.join()
    assert re.fullmatch("NotSaved: part [12] of 3 was not there in time", first)
    assert second == "NotSaved: the parts were not joined in time"
    assert os.listdir(tmp_path) == []


def test_whoever_is_called_off_waits_no_longer(tmp_path: Path) -> None:
    gates = [gate((part, 3)) for part in (0, 1)]
    for one in gates:
        one.is_answered = True
    assert all(write_parts(tmp_path / "step_8", gates)), "by the time of one the folder may be gone already"
    assert os.listdir(tmp_path) == []


def test_a_rank_that_fails_takes_its_own_files_away_and_no_others(tmp_path: Path) -> None:
    gates = [gate((0, 2)), gate((1, 2))]

    class Fails(Counter):
        def state_dict(self) -> dict[str, Any]:
            gates[0].is_answered = True  # the other one waits no longer
            raise OSError("no space left for this")

    wrong = write_parts(tmp_path / "step_8", gates, [held(0), {**held(1), "fails": Fails(0)}])
    assert wrong[1] == "OSError: no space left for this" and "part 1 of 2" in wrong[0]
    assert os.listdir(tmp_path) == []


def test_a_part_in_the_middle_of_which_the_disk_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: str, number: int, written: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp_parts, "_leave", full)
    other = tmp_path / f"{SAVE_PREFIX}{TOKEN}.part"
    other.mkdir()
    (other / "__0_0.distcp").touch()
    with pytest.raises(OSError, match="No space"):
        dcp_parts.write(held(1), str(tmp_path / "step_8"), gate((1, 2)))
    assert os.listdir(other) == ["__0_0.distcp"], "another rank's"


def test_what_an_earlier_request_has_left_is_no_part_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "step_8"
    stale = {"weight1": torch.full((3,), 99.0), "both": torch.ones(2), "counter": Counter(7), "step": 7}
    folder = tmp_path / f"{SAVE_PREFIX}aa.part"
    folder.mkdir()
    _, _, plan, results = dcp_parts._write_own(stale, str(folder), 1)
    dcp_parts._leave(str(folder), 1, (plan, results))
    assert write_parts(path, [gate((part, 2)) for part in (0, 1)]) == ["", ""]
    assert load(path, 0, 1)["weight1"].tolist() == [1.0] * 3
    assert "plan-1" in os.listdir(folder)


def test_without_a_token_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match="no token"):
        dcp_parts.write(held(0), str(tmp_path / "a"), gate(token=""))
    assert os.listdir(tmp_path) == []


def test_tensors_that_are_not_there_as_a_whole_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that no part holds: torch's own look at the plans finds it."""
    original = dcp_parts._write_own

    def lacking(state: Any, folder: str, number: int) -> Any:
        writer, planner, plan, results = original(state, folder, number)
        from dataclasses import replace

        items = [
            replace(item, tensor_data=replace(item.tensor_data, size=torch.Size([6])))
            if item.index.fqn == "weight0"
            else item
            for item in plan.items
        ]
        return writer, planner, replace(plan, items=items), results

    monkeypatch.setattr(dcp_parts, "_write_own", lacking)
    with pytest.raises(ValueError, match="validate"):
        dcp_parts.write(held(0), str(tmp_path / "a"), gate())
    assert os.listdir(tmp_path) == []


def test_anywhere_else_it_is_torch_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[Any, str]] = []
    save: Callable[..., Any] = lambda state, *, checkpoint_id: saved.append((state, checkpoint_id))  # noqa: E731
    monkeypatch.setattr(dcp, "save", save)
    state = held(0)
    assert dcp_save(state, tmp_path / "a") == str(tmp_path / "a")
    assert saved == [(state, str(tmp_path / "a"))]
