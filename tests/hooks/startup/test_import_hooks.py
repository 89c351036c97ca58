"""How a hook gets into its module, and what the optimizers' one counts; without torch. With it: test_torch.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from guardrun.hooks.patches import optimizer_steps
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.startup.import_hooks import Finder
from guardrun.hooks.wire.board import PHASES, Field, Milestone

MODULE, HOOK = "module_that_is_hooked", "hook_of_that_module"


@pytest.fixture
def imported(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Import a module for which a hook waits, given the hook's work: what the module then holds."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in (MODULE, HOOK):
        monkeypatch.setitem(sys.modules, name, None)  # whatever comes there is taken out again
        del sys.modules[name]

    def imported(work: str) -> list[str]:
        (tmp_path / f"{MODULE}.py").write_text("names = ['original']\n")
        (tmp_path / f"{HOOK}.py").write_text(f"def install(module, rank):\n    {work}\n")
        finder = Finder(rank, {MODULE: HOOK})
        sys.meta_path.insert(0, finder)
        module = import_module(MODULE)
        assert finder not in sys.meta_path, "nothing waits any more"
        names: list[str] = module.names
        return names

    return imported


def test_a_hook_is_there_before_anybody_has_the_modules_names(imported: Callable[[str], list[str]]) -> None:
    assert imported("module.names.append('hooked')") == ["original", "hooked"]


def test_a_hook_that_fails_is_told_and_the_module_is_there(imported: Callable[[str], list[str]], rank: Rank) -> None:
    assert imported("raise ValueError('no such name')") == ["original"]
    told = rank.outbox.get(0.0)
    assert told is not None and told[0] == "HookFailed" and "no such name" in str(told[1])


class Optimizer:
    """As much of one as the hook needs."""


def test_steps_on_the_board_are_those_of_the_optimizer_that_has_done_most(rank: Rank) -> None:
    hooks: list[Callable[..., None]] = []
    optimizer_steps.install(SimpleNamespace(register_optimizer_step_post_hook=hooks.append), rank)
    [on_step] = hooks
    one, other = Optimizer(), Optimizer()
    for optimizer in (one, one, other, one, other):
        on_step(optimizer, (), {})
    assert (rank.words[Field.PULSES], rank.words[Field.STEP]) == (5, 3)
    assert rank.words[Field.PROGRESS_NS] > rank.words[Field.STEP_NS] > 0
    assert rank.has_reached(Milestone.FIRST_PROGRESS) and PHASES[rank.words[Field.PHASE]] == "train"
    rank.counts_itself = True
    on_step(one, (), {})
    assert (rank.words[Field.PULSES], rank.words[Field.STEP]) == (6, 3), "the script counts"
