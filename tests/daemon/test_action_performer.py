"""What is kept of looks that are no incident's; what a look has done beside itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.supervisor.daemon.action_performer import KEEP_LOOKS, Performer, prune_looks
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.report.elements import html_page


def test_looks_that_led_to_nothing_go_and_those_of_a_stall_that_was_told_stay(tmp_path: Path) -> None:
    for number in range(3 * KEEP_LOOKS):
        folder = tmp_path / "looks" / f"0-{number:04d}"
        folder.mkdir(parents=True)
        (folder / "raw").write_text("stacks")
        os.utime(folder, (number, number))
    prune_looks(tmp_path, ["looks/0-0002", "looks/0-0003"])
    kept = sorted(path.name for path in (tmp_path / "looks").iterdir())
    assert kept[:2] == ["0-0002", "0-0003"]
    assert kept[2:] == [f"0-{number:04d}" for number in range(2 * KEEP_LOOKS, 3 * KEEP_LOOKS)]


def test_a_run_without_looks_has_none_to_prune(tmp_path: Path) -> None:
    prune_looks(tmp_path, [])


@pytest.mark.parametrize("action", [ac.TakeLook(attempt=0, look=1, reason="stalled"), ac.ReadExits(attempt=0)])
def test_templates_are_loaded_before_an_incident_is_there(action: ac.Action, tmp_path: Path) -> None:
    """Its page is written before its attempt is stopped, which is not to wait for them."""
    ordered: list[ac.Action] = []
    unused: Any = SimpleNamespace(ask=None, seek=None)
    node: Any = SimpleNamespace(run_dir=tmp_path, writer=SimpleNamespace(put=lambda work: True))
    context: Any = SimpleNamespace(
        engine=Engine(), fleet=SimpleNamespace(look=ordered.append, read_exits=ordered.append)
    )
    html_page._loading.cache_clear()
    Performer(node, context, unused, unused, unused, snapshots=unused, copies=unused, ledgers=unused).perform(action)
    assert ordered == [action]
    assert html_page._loading.cache_info().currsize == 1
    assert html_page._loading().result(60.0).list_templates()
