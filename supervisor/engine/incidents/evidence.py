"""What an incident shows of the looks: bounded, however many ranks there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardrun.supervisor.engine.model.looks import Call, Frame, RankLook, Reading
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, attempt_of, wrong_with
from guardrun.supervisor.engine.observation.collective_calls import call_text, group_text, is_point_to_point, pending
from guardrun.supervisor.engine.observation.collective_waits import Match
from guardrun.supervisor.engine.observation.dataloader_workers import of_workers
from guardrun.supervisor.engine.observation.frames import active_stack, base_name, is_users, rank_list
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import Judgement
from guardrun.supervisor.engine.observation.stack_grouping import evidence_groups

MAX_RANKS = 64
MAX_FRAMES = 24
MAX_READINGS = 24


def of_hang(view: RunView, found: Finding, seen: JudgedSnapshot, lasted_s: float) -> dict[str, Any]:
    """All that was measured of a hang. Needs no suspicion: an answer on demand has the same evidence."""
    by_rank, looks = seen.by_rank, seen.event.ranks
    evidence: dict[str, Any] = {
        "silent_s": round(lasted_s, 1),
        "suspected_after_s": round(view.gaps.suspicious_after_s(view.settings.floor_s), 1),
        "waiting": found.waiting,
        "ranks": of_judged(attempt_of(view), by_rank, found.culprits),
        "stack": stack_of(looks, found.culprits or found.waiting),
    }
    evidence |= of_collectives(seen.matched, looks)
    if wrong := wrong_with(view, found.culprits or (found.waiting if found.is_on_devices else [])):
        evidence["node_findings"] = wrong
    if batch := next((look.batch for look in looks if look.global_rank in found.culprits[:1] and look.batch), None):
        evidence["data"] = batch
    if groups := evidence_groups(looks, found.culprits):
        evidence["stack_groups"] = groups
    if workers := of_workers(looks, found.culprits):
        evidence["workers"] = workers
    if troubles := _stack_troubles(looks):
        evidence["stack_troubles"] = troubles
    if any(by_rank[rank].device_wait for rank in found.culprits if rank in by_rank):
        evidence["hint"] = "device_wait"
    if found.why_nobody:
        evidence["why_no_culprit"] = found.why_nobody
    return evidence | of_readings(seen.event.readings)


def _stack_troubles(looks: list[RankLook]) -> list[str]:
    """Why the ranks' own stacks are not the usual ones, each reason once."""
    return sorted({look.process.trouble for look in looks if look.process.trouble})


def most_telling(ranks: list[int], culprits: list[int]) -> list[int]:
    """At most MAX_RANKS of them, the culprits among them as far as possible, in order."""
    chosen = set(culprits[:MAX_RANKS])
    for rank in ranks:
        if len(chosen) >= MAX_RANKS:
            break
        chosen.add(rank)
    return sorted(chosen)


def of_judged(attempt: AttemptView, by_rank: Mapping[int, Judgement], culprits: list[int]) -> list[dict[str, Any]]:
    """How each rank was judged, and what is known of it."""
    told = most_telling(sorted(by_rank), [rank for rank in culprits if rank in by_rank])
    return [_of_one(attempt, by_rank[rank]) for rank in told if rank in attempt.ranks]


def _of_one(attempt: AttemptView, judgement: Judgement) -> dict[str, Any]:
    rank = attempt.ranks[judgement.global_rank]
    return {
        "rank": judgement.global_rank,
        "pid": rank.rank.pid,
        "state": rank.state,
        "judgement": judgement.doing.value,
        "reason": judgement.reason,
        "at": judgement.spot,
        "waits_in": judgement.waits_in,
        "step": rank.step,
        "collectives": judgement.order,
        "phase": rank.phase,
    }


def stack_of(looks: list[RankLook], ranks: list[int]) -> list[str]:
    """The first of these ranks' stack, innermost first; library frames are indented."""
    wanted = set(ranks)
    for look in looks:
        if look.global_rank in wanted and look.process.threads:
            return [frame_text(frame) for frame in active_stack(look.process.threads)[:MAX_FRAMES]]
    return []


def frame_text(frame: Frame) -> str:
    """`function (file.py:12)`; indented by two blanks where the frame is not the user's code."""
    mark = "" if is_users(frame) else "  "
    return f"{mark}{frame.function} ({base_name(frame.file)}:{frame.line})"


MAX_ROWS = 60
MAX_WAITS = 64
BEFORE = 2
"""Calls that are shown of a group before the first that somebody is still in."""


def of_collectives(matched: Match, looks: list[RankLook]) -> dict[str, Any]:
    """Who waits for whom, and the calls that tell it; empty where nobody told of any."""
    evidence: dict[str, Any] = {}
    if matched.waits:
        evidence["waits"] = [
            {
                "ranks": wait.ranks,
                "for": wait.waits_for,
                "unseen": wait.unseen,
                "group": group_text(wait.group, wait.desc),
                "seq": wait.seq,
                "op": wait.op,
                "where": f"{base_name(wait.frame.file)}:{wait.frame.line}" if wait.frame else "",
            }
            for wait in matched.waits[:MAX_WAITS]
        ]
    if any(look.groups for look in looks):
        evidence["collectives"] = {
            "groups": _groups(looks),
            "rows": _rows(matched, looks),
            "trouble": sorted({look.groups_trouble for look in looks if look.groups_trouble})[:8],
        }
    if matched.mismatch:
        evidence["mismatch"] = {
            "form": matched.mismatch.form,
            "sides": [
                {"ranks": side.ranks, "call": call_text(side.call), "seq": side.call.seq, "group": side.group}
                for side in matched.mismatch.sides[:MAX_WAITS]
            ],
            "told_by": matched.mismatch.why,
        }
    return evidence


def _groups(looks: list[RankLook]) -> list[dict[str, Any]]:
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for look in looks:
        for told in look.groups:
            ranks = rank_list(told.ranks)
            group = known.setdefault(
                (told.name, ranks),
                {"name": told.name, "desc": told.desc, "ranks": ranks, "source": told.source, "issued": {}},
            )
            group["issued"].setdefault(str(told.issued), []).append(look.global_rank)
    for group in known.values():
        group["issued"] = {number: rank_list(ranks) for number, ranks in sorted(group["issued"].items())}
    return list(known.values())[:MAX_ROWS]


def _rows(matched: Match, looks: list[RankLook]) -> list[dict[str, Any]]:
    """The calls that somebody is still in, and those just before: a row for each way in which ranks called them."""
    since: dict[str, int] = {}
    for look in looks:
        for told in look.groups:
            if call := pending(told):
                since[told.name] = min(call.seq, since.get(told.name, call.seq))
    odd = {(side.group, side.call.seq) for side in matched.mismatch.sides} if matched.mismatch else set()
    rows: dict[tuple[Any, ...], tuple[Call, list[int]]] = {}
    for look in looks:
        for told in look.groups:
            for call in told.calls:
                first = min([since.get(told.name, call.seq + BEFORE + 1), *(seq for g, seq in odd if g == told.name)])
                if call.seq >= first - BEFORE:
                    where = (call.frame.file, call.frame.line) if call.frame else None
                    key = (told.name, is_point_to_point(call), call.seq, call.op, str(call.sizes), call.state, where)
                    rows.setdefault(key, (call, []))[1].append(look.global_rank)
    return [
        {
            "group": key[0],
            "seq": call.seq,
            "op": call.op,
            "sizes": call.sizes[:4],
            "dtype": call.dtype,
            "state": call.state,
            "ranks": rank_list(ranks),
            "where": f"{base_name(call.frame.file)}:{call.frame.line}" if call.frame else "",
            "is_odd": (key[0], call.seq) in odd,
        }
        for key, (call, ranks) in sorted(rows.items(), key=lambda item: (item[0][0], item[0][2], item[1][1]))[:MAX_ROWS]
    ]


def of_readings(readings: list[Reading]) -> dict[str, Any]:
    """The node at that moment, as an incident shows it; what is odd comes first. Empty where nothing was read."""
    ordered = sorted(readings, key=lambda reading: not reading.is_odd)[:MAX_READINGS]
    shown = [{"name": r.name, "value": r.value, "unit": r.unit, "is_odd": r.is_odd, "note": r.note} for r in ordered]
    return {"readings": shown} if shown else {}
