"""What ranks import is told to spares, once; what comes unasked, or broken, is not taken."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.board import import_names
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Fleet, FleetPlan, Member, Standing
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.fleet.coordinator.warm_spares import ASK_S, WarmSpares
from guardrun.supervisor.fleet.protocol.messages import ReportImports, WarmUp
from guardrun.supervisor.wire import warm_state
from guardrun.supervisor.wire.warm_state import keep_imports, read_imports

TOLD = {"modules": [["json", "/lib/json.py"], ["zlib", None]], "changed": ["WANDB_MODE"]}


def leave(sockets: Path, *told: object) -> None:
    for name, one in zip(import_names(len(told)), told, strict=True):
        (sockets / name).write_text(json.dumps(one))


class Nodes:
    """A head that leads nodes; `placed` train."""

    def __init__(self, sockets: Path, placed: list[str], spares: list[str]) -> None:
        self.sent: list[tuple[str, ReportImports | WarmUp]] = []
        members = {
            node: Member(node=node, order=order, ranks=1, is_placed=node in placed)
            for order, node in enumerate([*placed, *spares])
        }
        self.state = State(fleet=Fleet(plan=FleetPlan(least=1, most=2), members=members), phase=Phase.RUNNING)
        self.members, self.cut = members, {""}
        self.spares = WarmSpares("head", sockets, lambda node, order: self.sent.append((node, order)))

    def turn(self, now_s: float = 0.0) -> list[tuple[str, type]]:
        """Who was sent what in it."""
        self.sent.clear()
        self.spares.turn(self.state, lambda node: node not in self.cut, now_s)
        return [(node, type(order)) for node, order in self.sent]


def test_each_spare_is_told_what_the_heads_ranks_import(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ["head"], ["a", "b"])
    assert nodes.turn() == [], "no rank has said it yet"
    leave(tmp_path, TOLD)
    nodes.cut, nodes.state.phase = {"b"}, Phase.STOPPING
    assert nodes.turn() == []
    nodes.state.phase = Phase.RUNNING
    assert nodes.turn() == [("a", WarmUp)] and nodes.turn() == []
    nodes.cut = set()
    assert nodes.turn() == [("b", WarmUp)] and nodes.turn() == []
    nodes.spares.joined("a")
    nodes.members["a"].standing = Standing.OUT
    assert nodes.turn() == []
    nodes.members["a"].standing = Standing.READY
    nodes.state.is_warm_bad = True
    assert nodes.turn() == [], "ranks are executed from now on"
    nodes.state.is_warm_bad = False
    assert nodes.turn() == [("a", WarmUp)]


def test_a_head_without_ranks_asks_those_that_train_one_after_the_other(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ["a", "b"], ["head", "c"])
    imports = zlib.compress(json.dumps(TOLD).encode())
    nodes.spares.answered("a", imports)
    assert nodes.turn(100.0) == [("a", ReportImports)], "what nobody asked for was not taken"
    assert nodes.turn(101.0) == []
    assert nodes.turn(100.0 + ASK_S) == [("b", ReportImports)]
    assert nodes.turn(100.0 + 2 * ASK_S) == [("a", ReportImports)]
    nodes.spares.answered("b", imports)
    assert nodes.turn(200.0) == [("c", WarmUp)] and nodes.turn(201.0) == []
    assert json.loads((tmp_path / "imports.json").read_text()) == TOLD, "it is a spare itself"


def test_what_all_ranks_have_said_arrives_as_one(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    leave(here, TOLD, {"modules": [], "changed": ["WANDB_MODE", "TQDM"]})
    assert read_imports(here, 3) == b"", "one has not"
    keep_imports(there, 3, read_imports(here, 2))
    left = [json.loads((there / name).read_text()) for name in import_names(3)]
    assert left[0] == {**TOLD, "changed": ["WANDB_MODE", "TQDM"]}
    assert left[1:] == [{"modules": [], "changed": []}] * 2
    leave(here, {"modules": [], "changed": []})
    keep_imports(there, 3, read_imports(here, 1))
    assert json.loads((there / "imports.json").read_text()) == left[0], "what lies there stays"


@pytest.mark.parametrize(
    "told",
    [b"", b"no zlib", zlib.compress(b"no json"), zlib.compress(b"[]"), zlib.compress(b'{"modules": [1]}')],
)
def test_what_is_none_is_not_kept(told: bytes, tmp_path: Path) -> None:
    keep_imports(tmp_path, 2, told)
    assert list(tmp_path.iterdir()) == []


def test_neither_is_one_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path, TOLD)
    told: Any = read_imports(tmp_path, 1)
    monkeypatch.setattr(warm_state, "MAX_IMPORTS_BYTES", 50)
    assert told and read_imports(tmp_path, 1) == b""
    (other := tmp_path / "other").mkdir()
    keep_imports(other, 1, told)
    assert list(other.iterdir()) == []
