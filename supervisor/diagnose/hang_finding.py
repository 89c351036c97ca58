"""From looks to a finding, by the core's own rules applied on demand; and what each rank does, for the answer.

guardrun itself waits until a doubt has lasted; who asks for a diagnosis has waited already. So what two looks show is
said at once, and only checked by a third: short work, or a step that takes seconds, is no hang.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from guardrun.supervisor.diagnose.answer import RankLine
from guardrun.supervisor.diagnose.scene import GONE, Glance, Look
from guardrun.supervisor.engine.detectors.hang.hang import DOUBTFUL, find
from guardrun.supervisor.engine.detectors.hang.suspicion import with_device
from guardrun.supervisor.engine.model.events import LookTaken
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity, judge, unlooked
from guardrun.supervisor.engine.state.state import Attempt, RankState


class Absent(NamedTuple):
    """Ranks of the job that are not among those that are looked at."""

    elsewhere: tuple[int, ...] = ()
    """On other nodes."""
    dead: tuple[int, ...] = ()
    """They should be on this node, and are not alive."""


NOBODY = Absent()


class Judged(NamedTuple):
    """What two looks say."""

    by_rank: dict[int, Judgement]
    found: Finding | None
    gone: list[int]
    """Ranks that have ended, as far as is known."""
    seen: JudgedSnapshot
    """The same as the core's own verdicts take it."""


def observe(look: Look, gap_s: float) -> list[Glance]:
    """Look twice, gap_s apart; a third time where they say that something holds the job up, to be sure."""
    seen = [look()]
    if not _is_running(seen[0]):
        return seen
    for _ in range(2):
        time.sleep(gap_s)
        seen.append(look())
        if not _is_running(seen[-1]) or _number(seen[-2]) != _number(seen[-1]):
            return seen
        found = judge_seen(seen[-2], seen[-1]).found
        if found is None or found.is_proof or found.is_certain or has_advanced(seen):
            return seen
    return seen


def _is_running(seen: Glance) -> bool:
    return seen.state.phase is Phase.RUNNING and seen.state.attempt is not None and bool(seen.ranks)


def _number(seen: Glance) -> int | None:
    return seen.state.attempt.number if seen.state.attempt is not None else None


def has_advanced(seen: list[Glance]) -> bool:
    """Whether any rank has made progress since the first look, as far as its hooks tell."""
    attempt = seen[-1].state.attempt
    first = min((look.at_s for look in seen[0].ranks.values()), default=seen[0].now_s)
    return attempt is not None and attempt.progress_s > first


def judge_seen(before: Glance, after: Glance, absent: Absent = NOBODY) -> Judged:
    """Judge every rank by two looks."""
    attempt = after.state.attempt
    assert attempt is not None
    by_rank: dict[int, Judgement] = {}
    for number, look in sorted(after.ranks.items()):
        old = before.ranks.get(number)
        if old is not None and old.process.pid == look.process.pid and look.at_s > old.at_s:
            rank = attempt.ranks.get(number)
            judgement = judge(old, look, has_ended=rank is not None and rank.has_ended)
            by_rank[number] = with_device(judgement, old, look)
        else:
            by_rank[number] = unlooked(number, "it was seen once only")
    gone = sorted({*_gone(attempt, after), *absent.dead})
    for number, rank in attempt.ranks.items():
        if number not in by_rank and number not in gone and rank.exitcode is None:
            by_rank[number] = unlooked(number, after.missing.get(number, ""))
    gone += [n for n, j in by_rank.items() if j.doing is RankActivity.GONE]
    looks = [look for _, look in sorted(after.ranks.items())]
    matched = match(looks)
    found = find(list(by_rank.values()), sorted(set(gone)), after.state.settings, matched)
    event = LookTaken(look=0, attempt=attempt.number, ranks=looks, missing=after.missing)
    return Judged(
        by_rank, _in_part(found, absent.elsewhere), sorted(set(gone)), JudgedSnapshot(by_rank, event, matched)
    )


def _gone(attempt: Attempt, after: Glance) -> list[int]:
    """Those that ended: well, where exit codes are known; in whatever way, where they are not."""
    ended = [n for n, rank in attempt.ranks.items() if rank.exitcode == 0]
    return ended + [n for n, why in after.missing.items() if why == GONE and n not in ended]


def _in_part(found: Finding | None, elsewhere: Sequence[int]) -> Finding | None:
    """What can still be said where only some of the ranks are seen: nobody is cleared of what others may have done."""
    if found is None or not elsewhere:
        return found
    where = f"{ranks_text(elsewhere)} on other nodes"
    if not found.culprits:
        why = f"all that are seen from here wait, so look at {where}"
        return msgspec.structs.replace(found, cause="unknown", confidence=0.5, why_nobody=why)
    if found.is_proof or found.is_certain:
        return found
    return msgspec.structs.replace(found, confidence=round(found.confidence - 0.1, 2))


def is_same(first: Judged, second: Judged) -> bool:
    """Whether two pairs of looks say the same, as a verdict needs."""
    return _key(first.found) == _key(second.found)


def _key(found: Finding | None) -> tuple[str, list[int], str] | None:
    return (found.cause, found.culprits, found.told) if found is not None else None


def is_doubtful(found: Finding) -> bool:
    """Whether it was seen neither to get somewhere nor to stand still."""
    return found.doing in DOUBTFUL


# Rank lines ---------------------------------------------------------------------------------------------------------
# What each rank does, as the answer lists it.


EXITED = "exited"


def rank_lines(
    attempt: Attempt,
    judged: Judged,
    before: dict[int, RankLook],
    after: dict[int, RankLook],
    culprits: list[int],
) -> list[RankLine]:
    """One line a rank of the attempt, in order."""
    lines = []
    for number, rank in sorted(attempt.ranks.items()):
        line = _line(number, rank, judged.by_rank.get(number), after.get(number))
        line.cpu = _cpu(before.get(number), after.get(number))
        line.is_culprit = number in culprits
        lines.append(line)
    return lines


def _line(number: int, rank: RankState, judgement: Judgement | None, look: RankLook | None) -> RankLine:
    line = RankLine(
        rank=number,
        local_rank=rank.rank.local_rank,
        node=rank.rank.node,
        pid=rank.rank.pid,
        doing=EXITED,
        reason="its process is gone",
        state=rank.state,
        step=rank.step or None,
        phase=rank.phase,
        exitcode=rank.exitcode,
    )
    if rank.exitcode is not None:
        line.reason = f"signal {-rank.exitcode}" if rank.exitcode < 0 else f"exit {rank.exitcode}"
    elif judgement is not None:
        line.doing, line.reason = judgement.doing.value, judgement.reason
        line.at, line.waits_in = judgement.spot, judgement.waits_in
    if look is not None:
        line.state, line.trouble = look.process.state, look.process.trouble
    return line


def _cpu(before: RankLook | None, after: RankLook | None) -> float | None:
    if before is None or after is None or before.process.pid != after.process.pid or after.at_s <= before.at_s:
        return None
    used = (after.process.cpu_s - before.process.cpu_s) / (after.at_s - before.at_s)
    return max(0.0, round(used, 2))
