"""Is this node quarantined? guardrun asks by itself before anything else; here it is one remark among others."""

from __future__ import annotations

import time

from guardrun.supervisor.core.node.quarantine import headline
from guardrun.supervisor.node.places import find_places
from guardrun.supervisor.node.quarantine import read_holding
from guardrun.supervisor.preflight.remark import Check, Remark, Subject, ok, refuse, warn

NAME = "quarantine"


def run(subject: Subject) -> list[Remark]:
    places = find_places(subject.state_dir, subject.shared_dir, subject.environ, subject.node)
    isolations, troubles = read_holding(places, subject.node, time.time())
    remarks = [warn(NAME, trouble, "guardctl node show tells what is known.") for trouble in troubles]
    if isolations:
        advice = f"guardctl node show {subject.node} tells more; guardctl node release {subject.node} ends it."
        return [*remarks, refuse(NAME, f"{subject.node} is quarantined: {headline(isolations)}.", advice)]
    return remarks or [ok(NAME, f"{subject.node} is not quarantined.")]


CHECK = Check(NAME, run, needs_run=True)
