"""A head that starts nothing tells the nodes that wait for it (supervisor/coordinator/refused.py)."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrun.launcher.address import names_of, own_names
from guardrun.launcher.exits import USAGE_ERROR
from guardrun.launcher.fleet import MUNGE, Fleet, FleetError, Lead, join_path, open_lead, plan_fleet
from guardrun.launcher.opening import node_name
from guardrun.supervisor.config import Config
from guardrun.supervisor.coordinator.joinfile import JoinError, read_join_file
from guardrun.supervisor.coordinator.living import is_listening
from guardrun.supervisor.coordinator.refused import leave_word, now_refused, take_back

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


def begin_to_lead(asked: Asked, fleet: Fleet) -> None:
    """What an earlier start has left to be read does not hold any more."""
    if fleet.may_lead and asked.config.fleet.join != MUNGE:
        take_back(join_path(fleet, asked.config, asked.directory, asked.cwd))


def tell_waiting(asked: Asked, lead: Lead | None, text: str, exit_code: int) -> None:
    """Leave word of why this head did not start. Where that cannot be, the others wait. Never raises.

    lead: what this process has of it, where several may lead.
    """
    with suppress(FleetError, JoinError, ValueError, AssertionError, RuntimeError, OSError):
        fleet = plan_fleet(asked.args, asked.config, os.environ, asked.is_node_rank_given)
        if fleet is None or not fleet.may_lead or asked.config.fleet.join == MUNGE:
            return
        join = join_path(fleet, asked.config, asked.directory, asked.cwd)
        if exit_code == USAGE_ERROR and not join.parent.is_dir():
            return  # a wrong flag leaves no folder behind; most such are wrong on all nodes
        if not (fleet.is_chosen or _may_take(lead, join)) or _is_led(join):
            return  # by another, for whom they need not wait in vain
        names = [*names_of(fleet.endpoint), *own_names()] if fleet.is_by_host else []
        words = _NEXT_LINE.sub(lambda end: ". " if end[1] else "; ", text)
        leave_word(join, now_refused(fleet.key, node_name(os.environ), names, words, exit_code))


def _may_take(lead: Lead | None, join: Path) -> bool:
    """Whether no other guardrun of this host leads."""
    if lead is not None:
        return lead.take()
    own = open_lead(join)
    try:
        return own.take()
    finally:
        own.close()


def _is_led(join: Path) -> bool:
    try:
        return is_listening(read_join_file(join))
    except JoinError:
        return False
