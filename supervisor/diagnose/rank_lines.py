"""What each rank does, as the answer lists it."""

from __future__ import annotations

from guardrun.supervisor.diagnose.answer import RankLine
from guardrun.supervisor.diagnose.hang_finding import Judged
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.rank_activity import Judgement
from guardrun.supervisor.engine.state.state import Attempt, RankState

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
