"""The nodes of a run, folded: those where something stands out first. Pure; the list has its bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from guardrun.supervisor.watch.rank_oddness import BAD, FINE, WARN, Odd, judge, typical_of
from guardrun.supervisor.watch.rank_view import culprits_of
from guardrun.supervisor.watch.run_series import Heat, RunSeries
from guardrun.supervisor.watch.run_status import NodeStatus, RankStatus, RunStatus

MAX_NODES = 128
MAX_FINDINGS = 4


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: str
    role: str
    standing: str
    """As the head has it; empty where there is one node alone."""
    why: str
    ranks: int
    odd: int
    """How many of them stand out."""
    age_s: float | None
    """How long ago it was heard."""
    temp_c: float | None
    """Of its hottest device."""
    device: str
    findings: list[str]
    tone: int
    """As rank_oddness.py has it."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    total: int
    odd: int
    rows: list[NodeRow]


def fold_nodes(status: RunStatus, series: RunSeries) -> Nodes:
    """What is shown of them."""
    standing = {one.node: one for one in status.nodes}
    typical = typical_of(status.ranks, series.steps, culprits_of(status))
    ranks: dict[str, list[tuple[RankStatus, Odd]]] = {name: [] for name in standing}
    for rank in status.ranks:
        judged = judge(rank, series.steps.get(rank.global_rank), typical)
        ranks.setdefault(rank.node, []).append((rank, judged))
    findings: dict[str, list[str]] = {}
    for key, finding in series.findings.items():
        findings.setdefault(key.partition("/")[0], []).append(finding.summary)
    hottest: dict[str, Heat] = {}
    for one in series.heat.values():
        if one.node not in hottest or one.temp_c > hottest[one.node].temp_c:
            hottest[one.node] = one
    rows = [_row(name, standing.get(name), of, hottest.get(name), findings.get(name, [])) for name, of in ranks.items()]
    rows.sort(key=lambda row: (-row.tone, -row.odd))
    return Nodes(total=len(rows), odd=sum(row.tone != FINE for row in rows), rows=rows[:MAX_NODES])


def _row(
    name: str,
    node: NodeStatus | None,
    ranks: Sequence[tuple[RankStatus, Odd]],
    hottest: Heat | None,
    findings: list[str],
) -> NodeRow:
    tone = max((odd.tone for _, odd in ranks), default=FINE)
    if node is not None and node.standing not in ("ready", ""):
        tone = max(tone, BAD if node.standing == "lost" else WARN)
    if findings:
        tone = max(tone, WARN)
    ages = [rank.age_s for rank, _ in ranks if rank.age_s is not None and math.isfinite(rank.age_s)]
    return NodeRow(
        node=name,
        role=node.role if node else "",
        standing=node.standing if node else "",
        why=node.why if node else "",
        ranks=len(ranks),
        odd=sum(odd.tone != FINE for _, odd in ranks),
        age_s=min(ages, default=None),
        temp_c=hottest.temp_c if hottest else None,
        device=hottest.device if hottest else "",
        findings=findings[:MAX_FINDINGS],
        tone=tone,
    )
