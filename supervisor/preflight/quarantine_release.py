"""A pre-flight that passed ends a quarantine, where what the node was isolated for can be shown to be well again.

Which that is: health/quarantine_rules.py. Only by somebody who may write where the isolation is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.client.agent_client import RefusedError, Unreachable
from guardrun.supervisor.client.agent_client import ask as ask_agent
from guardrun.supervisor.collect.host.file_systems import ask
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.quarantine_rules import (
    CALM_S,
    PREFLIGHT,
    Isolation,
    Part,
    Proof,
    calm_s,
    holding,
    part_of,
)
from guardrun.supervisor.preflight.base.remark import Remark, Severity, Subject, note, warn
from guardrun.supervisor.preflight.checks import gpu_health, gpus, quarantined
from guardrun.supervisor.preflight.checks.folders import ANSWER_S, judge_room
from guardrun.supervisor.preflight.full_preflight import GPU_PATIENCE_S
from guardrun.supervisor.quarantine.record_places import Place, find_places, names_here
from guardrun.supervisor.quarantine.records import read_node, release_node

TRIED = frozenset({"gpus", "trial", "product", "pattern", "bandwidth", "reduce"})
"""Checks that devices must pass."""
NET = Path("/sys/class/net")


def release_mended(subject: Subject, remarks: Sequence[Remark], *, is_full: bool) -> list[Remark]:
    """The remarks of a pre-flight, with what has come of the node's quarantine in the place of what was."""
    told = [said for node in names_here(subject.environ) for said in _release(node, subject, remarks, is_full=is_full)]
    if not told:
        return list(remarks)
    others = [one for one in remarks if one.check != quarantined.NAME]
    return [*quarantined.run(subject), *told, *others]


def _release(node: str, subject: Subject, remarks: Sequence[Remark], *, is_full: bool) -> Iterator[Remark]:
    places = find_places(subject.state_dir, subject.shared_dir, subject.environ, node)
    now_s = time.time()
    for isolation, part in _candidates(places, node, now_s):
        name = f"The isolation of {node} for {isolation.cause}"
        why = _why_not(isolation, part, subject, remarks, is_full=is_full)
        if why:
            yield note(quarantined.NAME, f"{name} stays: {why}.")
            continue
        reason = f"{part.subject} is well again"
        try:
            release_node(places, node, PREFLIGHT, now_s, reason, only=(isolation.id,))
        except OSError as error:
            yield warn(quarantined.NAME, f"{name} could not be lifted: {error.strerror or error}.", "Try as root.")
            continue
        yield note(quarantined.NAME, f"{name} is lifted by this pre-flight: {reason}.")


def _candidates(places: Sequence[Place], node: str, now_s: float) -> list[tuple[Isolation, Part]]:
    """Isolations that hold, that a part's being well may end, and that are kept where this process writes."""
    own, _ = read_node([place for place in places if place.is_written], node)
    mine = {one.id for one in own.isolations}
    record, _ = read_node(places, node)
    held = [(one, part_of(one)) for one in holding(record, now_s) if one.id in mine]
    return [(one, part) for one, part in held if part is not None]


def _why_not(isolation: Isolation, part: Part, subject: Subject, remarks: Sequence[Remark], *, is_full: bool) -> str:
    if found := _found_by_agent():
        return f"the node agent says: {found}"
    if calm_s(isolation, time.time()) < CALM_S:
        return f"something was wrong with {part.subject} within the last {CALM_S / 60:.0f} minutes"
    if part.proof is Proof.TRIAL and not is_full:
        return f"only a device that works shows that it is well (guardctl check --full, for {part.subject})"
    kind, _, name = part.subject.partition(":")
    if kind == "net":
        return _of_link(name)
    if kind == "mount":
        return _of_mount(name)
    return _of_gpu(name, subject, remarks)


def _found_by_agent() -> str:
    """What its node agent, where one answers, would isolate the node for now."""
    try:
        findings = msgspec.convert(ask_agent("facts", {})["findings"], known_type(list[Finding]))
    except (Unreachable, RefusedError, KeyError, msgspec.ValidationError):
        return ""
    return next((one.summary.rstrip(".") for one in findings if one.response is Response.ISOLATE), "")


def _of_link(name: str) -> str:
    try:
        state = (NET / name / "operstate").read_text(encoding="ascii").strip()
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return "" if state == "up" else f"{name} is {state}"


def _of_mount(point: str) -> str:
    answers = ask([point], ANSWER_S)
    room = next((room for room in answers.rooms if room.point == point), None)
    if room is None:
        return f"{point} does not answer, or is not mounted"
    full = judge_room(room.path, room.point, room.free_bytes, room.total_bytes)
    return full.summary.rstrip(".") if full is not None else ""


def _of_gpu(uuid: str, subject: Subject, remarks: Sequence[Remark]) -> str:
    """The device must have been tried with the others, all passed, and none be throttling still warm from it."""
    failed = [one for one in remarks if one.check in TRIED and one.severity.rank >= Severity.WARN.rank]
    if failed:
        return failed[0].summary.rstrip(".")
    untried = [one for one in remarks if one.check == "trial" and one.severity is Severity.NOTE]
    if untried:
        return untried[0].summary.rstrip(".")
    readout = gpus.read_gpus(subject.environ, GPU_PATIENCE_S)
    found = gpu_health.gpus_of(readout)
    seen = {gpu.uuid for gpu in gpu_health.visible(found, subject.environ.get("CUDA_VISIBLE_DEVICES"))}
    if uuid not in seen:
        return f"GPU {uuid} was not tried"
    wrong = [one for one in gpu_health.judge_health(readout) if one.severity.rank >= Severity.WARN.rank]
    return wrong[0].summary.rstrip(".") if wrong else ""
