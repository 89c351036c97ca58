"""Is this node quarantined? guardrun asks by itself before anything else; here it is one remark among others."""

from __future__ import annotations

import os
import time

from guardrun.supervisor.health.quarantine_rules import headline
from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, ok, refuse, warn
from guardrun.supervisor.quarantine.record_places import find_places, names_here
from guardrun.supervisor.quarantine.records import read_holding

NAME = "quarantine"


def run(subject: Subject) -> list[Remark]:
    """Looks under each name that this node goes by: its record may be kept under any of them."""
    remarks = [remark for node in names_here(subject.environ) for remark in _of(node, subject)]
    unique = {remark.summary: remark for remark in remarks}
    return list(unique.values()) or [ok(NAME, f"{subject.node} is not quarantined.")]


def _of(node: str, subject: Subject) -> list[Remark]:
    places = find_places(subject.state_dir, subject.shared_dir, subject.environ, node)
    isolations, troubles = read_holding(places, node, time.time(), os.getuid())
    remarks = [warn(NAME, trouble, "guardctl node show tells what is known.") for trouble in troubles]
    if isolations:
        advice = f"guardctl node show {node} tells more; guardctl node release {node} ends it."
        remarks.append(refuse(NAME, f"{node} is quarantined: {headline(isolations)}.", advice))
    return remarks


CHECK = Check(NAME, run, needs_run=True)
