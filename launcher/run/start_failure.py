"""A guardrun that starts nothing: whether a node may start a run at all, and word for those that wait for this one.

A head tells the other nodes (supervisor/fleet/rendezvous/start_failure_files.py), another node the head
(start_failure_files.py).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrun.launcher.base.own_address import names_of, own_names
from guardrun.launcher.base.terminal_lines import QUARANTINED, USAGE_ERROR, RefusedError, print_line
from guardrun.launcher.creation.run_creation import node_name
from guardrun.launcher.run.job_nodes import MUNGE, Fleet, FleetError, Lead, join_path, open_lead, plan_fleet
from guardrun.supervisor.config import Config
from guardrun.supervisor.fleet.rendezvous.coordinator_liveness import is_listening
from guardrun.supervisor.fleet.rendezvous.join_file import JoinError, read_join_file
from guardrun.supervisor.fleet.rendezvous.start_failure_files import (
    JoinRejection,
    leave_absence,
    leave_word,
    now_refused,
    take_back,
    take_back_absence,
)
from guardrun.supervisor.quarantine.record_places import Place, absolute_folders, find_places, may_hold_any, names_here

_NEXT_LINE = re.compile(r"(\.?)\s*\n(?:guardrun: )?(?:refused: |error: )?")


@dataclass(frozen=True)
class Asked:
    """A command line, as far as it was understood."""

    args: Any
    """torchrun's flags."""
    is_node_rank_given: bool
    config: Config
    directory: Path
    """Of runs."""
    cwd: Path


def begin(asked: Asked, fleet: Fleet) -> None:
    """What an earlier start has left to be read does not hold any more."""
    if asked.config.fleet.join == MUNGE:
        return
    join = join_path(fleet, asked.config, asked.directory, asked.cwd)
    take_back_absence(join, fleet.key, node_name(os.environ))
    if fleet.may_lead:
        take_back(join)


def tell_waiting(asked: Asked, lead: Lead | None, text: str, exit_code: int) -> None:
    """Leave word of why this node did not start. Where that cannot be, the others wait. Never raises.

    lead: what this process has of it, where several may lead.
    """
    with suppress(FleetError, JoinError, ValueError, AssertionError, RuntimeError, OSError):
        fleet = plan_fleet(asked.args, asked.config, os.environ, asked.is_node_rank_given)
        if fleet is None or asked.config.fleet.join == MUNGE:
            return
        join = join_path(fleet, asked.config, asked.directory, asked.cwd)
        words = _NEXT_LINE.sub(lambda end: ". " if end[1] else "; ", text)
        if not fleet.may_lead:
            _tell_head(fleet, join, words, exit_code)
            return
        if exit_code == USAGE_ERROR and not join.parent.is_dir():
            return  # a wrong flag leaves no folder behind; most such are wrong on all nodes
        if not (fleet.is_chosen or _may_take(lead, join)) or _is_led(join):
            return  # by another, for whom they need not wait in vain
        names = [*names_of(fleet.endpoint), *own_names()] if fleet.is_by_host else []
        leave_word(join, now_refused(fleet.key, node_name(os.environ), names, words, exit_code))


def _tell_head(fleet: Fleet, join: Path, words: str, exit_code: int) -> None:
    """Raises OSError, JoinError."""
    if exit_code == USAGE_ERROR:
        return  # most such are wrong on all nodes; else the user sees it here
    absence = JoinRejection(
        key=fleet.key,
        node=node_name(os.environ),
        slot=fleet.slot,
        names=names_of(fleet.endpoint) if fleet.is_by_host else [],
        text=words,
        exit_code=exit_code,
        is_final=bool(os.environ.get("SLURM_STEP_ID")),
        said_wall_s=time.time(),
    )
    leave_absence(join, absence)


def _may_take(lead: Lead | None, join: Path) -> bool:
    """Whether no other guardrun of this host leads."""
    if lead is not None:
        return lead.acquire()
    own = open_lead(join)
    try:
        return own.acquire()
    finally:
        own.close()


def _is_led(join: Path) -> bool:
    try:
        return is_listening(read_join_file(join))
    except JoinError:
        return False


# Start refusal ------------------------------------------------------------------------------------------------------
# May a run start on this node at all? Asked before anything is started; costs two looks at the disk where it may.


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
            print_line(f"warning: {trouble}")
            said.add(trouble)
    if not isolations:
        return
    since = iso_time(min(one.since_wall_s for one in isolations))
    ends = [one.until_wall_s for one in isolations]
    until = "" if None in ends else f" until {iso_time(max(end for end in ends if end is not None))}"
    text = f"node {node} is quarantined since {since}{until}: {headline(isolations)}"
    if is_ignored:
        print_line(f"warning: {text}; running all the same (--guard-ignore-quarantine)")
        return
    raise RefusedError(
        f"{text}. No run starts here before guardctl node release {node}, or with --guard-ignore-quarantine",
        QUARANTINED,
    )
