"""May a run start on this node at all? Asked before anything is started; costs two looks at the disk where it may."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from guardrun.launcher.base.exit_statuses import QUARANTINED, RefusedError
from guardrun.launcher.base.terminal_lines import say
from guardrun.supervisor.config import Config
from guardrun.supervisor.quarantine.record_places import (
    Place,
    absolute_folders,
    find_places,
    may_hold_any,
    names_here,
)


def refuse_quarantined(config: Config, is_ignored: bool, environ: Mapping[str, str], cwd: Path) -> None:
    """Raise RefusedError on a quarantined node, unless the user wants to run there all the same."""
    folders = absolute_folders(config.node.state_dir, config.node.shared_dir, cwd)
    said: set[str] = set()
    for node in names_here(environ):
        places = find_places(*folders, environ, node)
        if may_hold_any(places):
            _refuse(node, places, is_ignored, said)


def _refuse(node: str, places: Sequence[Place], is_ignored: bool, said: set[str]) -> None:
    """said: troubles that were told already, of the same files under another name."""
    # Its modules cost every other start some milliseconds.
    from guardrun.supervisor.health.quarantine_rules import headline
    from guardrun.supervisor.quarantine.records import read_holding
    from guardrun.supervisor.report.elements.quantities import iso_time

    isolations, troubles = read_holding(places, node, time.time(), os.getuid())
    for trouble in troubles:
        if trouble not in said:
            say(f"warning: {trouble}")
            said.add(trouble)
    if not isolations:
        return
    since = iso_time(min(one.since_wall_s for one in isolations))
    ends = [one.until_wall_s for one in isolations]
    until = "" if None in ends else f" until {iso_time(max(end for end in ends if end is not None))}"
    text = f"node {node} is quarantined since {since}{until}: {headline(isolations)}"
    if is_ignored:
        say(f"warning: {text}; running all the same (--guard-ignore-quarantine)")
        return
    raise RefusedError(
        f"{text}. No run starts here before guardctl node release {node}, or with --guard-ignore-quarantine",
        QUARANTINED,
    )
