"""Words: the one sentence of an incident. Its advice is in `engine/incidents/advice.py`."""

from __future__ import annotations

from collections.abc import Mapping

from guardrun.supervisor.engine.model.events import SnapshotWritten
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.observation.frames import rank_list, ranks_text
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity

_MOST_CLAUSES = 3


def who(attempt: AttemptView, ranks: list[int]) -> str:
    """`Rank 1 on node-a` or `Ranks 1,3 on node-a`."""
    nodes = sorted({attempt.ranks[r].rank.node for r in ranks if r in attempt.ranks})
    where = f" on {', '.join(nodes)}" if nodes else ""
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {rank_list(ranks)}{where}"


def seconds_text(value: float) -> str:
    """`0.31 s` or `42.0 ms`: what a step takes."""
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def hang_sentence(attempt: AttemptView, found: Finding, judged: Mapping[int, Judgement], silent_s: float) -> str:
    """The summary of a hang. silent_s: since the last progress, or since it was seen stopped."""
    waits = _waiters(found, judged)
    if found.told and found.culprits:
        return f"{who(attempt, found.culprits)} {found.told}: they can never meet, {silent_s:.0f} s without progress."
    if found.told:
        return f"Collectives that can never meet, {silent_s:.0f} s without progress: {found.told}; {found.why_nobody}."
    if found.is_in_driver:
        return f"No rank has advanced for {silent_s:.0f} s: {_in_driver(found, judged)}; {found.why_nobody}."
    if not found.culprits:
        ranks = f"{len(found.waiting)} rank{'s' if len(found.waiting) != 1 else ''}"
        ops = sorted({judged[r].waits_in for r in found.waiting if r in judged and judged[r].waits_in})
        return (
            f"No rank has advanced for {silent_s:.0f} s: {ranks} wait in {' and '.join(ops) or 'a collective'}; "
            f"{found.why_nobody or 'who is to blame cannot be told'}."
        )
    subject = who(attempt, found.culprits)
    has = "has" if len(found.culprits) == 1 else "have"
    spot = next((judged[r].spot for r in found.culprits if r in judged and judged[r].spot), "")
    text = _doing_text(found, has, spot, silent_s, _detail(found, judged))
    if wait := next((judged[r].device_wait for r in found.culprits if r in judged and judged[r].device_wait), ""):
        clause = _of_ranks(f"waits {wait}", len(found.culprits))
        if found.doing is RankActivity.GIL_HELD:
            text = f"{text}, and {clause}"
        else:
            text = f"{has} waited {silent_s:.0f} s {clause.partition(' ')[2]}"
    if found.cause == "init":
        if not any(r in judged for r in found.culprits):
            text = f"ended without reaching process-group creation, {silent_s:.0f} s ago or more"
        else:
            text = f"{has} not got through process-group creation: {text}"
    proof = f", and {found.proof}" if found.proof else ""
    return f"{subject} {text}{proof}{waits}."


def _in_driver(found: Finding, judged: Mapping[int, Judgement]) -> str:
    """`rank 0 waits for its GPU in cuStreamSynchronize (libcuda.so.1), called from train.py:41; rank 1 waits in …`."""
    clauses: dict[str, list[int]] = {}
    for rank in found.waiting:
        if rank in judged:
            clauses.setdefault(_clause(judged[rank]), []).append(rank)
    texts = [f"{ranks_text(ranks)} {_of_ranks(clause, len(ranks))}" for clause, ranks in clauses.items()]
    return "; ".join([*texts[:_MOST_CLAUSES], *(["…"] if len(texts) > _MOST_CLAUSES else [])])


def _clause(judgement: Judgement) -> str:
    if judgement.device_wait:
        return f"waits {judgement.device_wait}"
    if judgement.doing is RankActivity.WAITING:
        return f"waits in {judgement.waits_in or 'a collective'}"
    return f"stands in {judgement.spot or 'a place that is not known'}"


def _of_ranks(clause: str, count: int) -> str:
    """What one rank does, as what so many do."""
    if count == 1:
        return clause
    verb, _, rest = clause.partition(" ")
    rest = rest.replace("its GPU", "their GPUs", 1).replace("its device", "their devices", 1)
    return f"{verb.removesuffix('s')} {rest}"


def _detail(found: Finding, judged: Mapping[int, Judgement]) -> str:
    """What the culprits' judgements add to the sentence: their workers, the mount, want of CPU; empty where nothing."""
    if found.doing is RankActivity.CHURNING:
        is_starved = all(judged[r].is_starved for r in found.culprits if r in judged)
        return ": its node is busy, and gives it little" if is_starved else ""
    rank = next((r for r in found.culprits if r in judged and judged[r].detail), None)
    if rank is None:
        return ""
    if found.doing is not RankActivity.DATA:
        return judged[rank].detail
    whose = "its" if len(found.culprits) == 1 else f"rank {rank}'s"
    return f": {whose} {judged[rank].detail}"


def _doing_text(found: Finding, has: str, spot: str, silent_s: float, detail: str) -> str:
    at = f", at {spot}" if spot else ""
    inside = f" in {spot}" if spot else ", where no stack could be taken"
    texts = {
        RankActivity.STOPPED: f"{has} been stopped by a signal for {silent_s:.0f} s{at}",
        RankActivity.TRACED: f"{has} been stopped by a debugger for {silent_s:.0f} s{at}",
        RankActivity.GIL_HELD: f"{has} held the GIL for {silent_s:.0f} s{inside}",
        RankActivity.COLLECTING: f"{has} been in a garbage collection for {silent_s:.0f} s{at}",
        RankActivity.IO_BLOCKED: f"{has} been in uninterruptible wait for {silent_s:.0f} s{inside}{detail}",
        RankActivity.DATA: f"{has} waited {silent_s:.0f} s for data{detail or inside}",
        RankActivity.IDLE: f"{has} waited {silent_s:.0f} s{inside}",
        RankActivity.UNSEEN: f"{has} not run for {silent_s:.0f} s{inside}",
        RankActivity.SPINNING: f"{has} been running in the same few lines for {silent_s:.0f} s{at}",
        RankActivity.CHURNING: f"{has} used CPU without any progress for {silent_s:.0f} s{at}{detail}",
        RankActivity.UNLOOKED: f"{has} shown no progress for {silent_s:.0f} s, and could not be looked at",
        RankActivity.LEAVING: f"{has} come to the end of the script, but not exited{inside} for {silent_s:.0f} s",
        RankActivity.WAITING: f"{has} waited {silent_s:.0f} s{inside}",
    }
    if found.sensors:
        return f"{has} not completed in {silent_s:.0f} s what all ranks have issued ({found.sensors})"
    if found.cause == "collective_timeout":
        return f"{has} a device that has not begun in {silent_s:.0f} s with what the others' devices have{at}"
    if found.cause == "collective_mismatch":
        return f"{has} been in another collective than the rest for {silent_s:.0f} s{at}"
    return texts[found.doing]


def _waiters(found: Finding, judged: Mapping[int, Judgement]) -> str:
    if not found.waiting:
        return ""
    ops = [judged[r].waits_in for r in found.waiting if r in judged and judged[r].waits_in]
    op = max(set(ops), key=ops.count) if ops else ""
    one = len(found.waiting) == 1
    subject = f"rank {found.waiting[0]} waits" if one else f"{len(found.waiting)} ranks wait"
    them = "it" if len(found.culprits) == 1 else "them"
    return f"; {subject} for {them}" + (f" in {op}" if op else "")


KEPT = "what hooks.snapshot() kept"


def say_snapshot(snapshot: SnapshotWritten) -> tuple[str, str]:
    """What came of the copies in memory, for the terminal, and its level."""
    if not snapshot.path:
        what = f"the copy of {snapshot.original} that was kept in memory" if snapshot.original else KEPT
        return f"{what} was not written out: {snapshot.why}", "warn"
    instead = f" (not the newest: {snapshot.why})" if snapshot.why else ""
    took = f"{snapshot.took_s:.1f} s"
    if snapshot.original:
        return f"wrote the copy of {snapshot.original} from memory in {took}: {snapshot.path}", "good"
    return f"wrote the snapshot of step {snapshot.step} from memory in {took}: {snapshot.path}{instead}", "good"
