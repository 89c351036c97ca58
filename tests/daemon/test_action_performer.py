"""What is kept of looks that are no incident's."""

from __future__ import annotations

import os
from pathlib import Path

from guardrun.supervisor.daemon.action_performer import KEEP_LOOKS, prune_looks


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
