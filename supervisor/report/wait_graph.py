"""Who waits for whom: an incident's waits as a graph, and the graph as a drawing.

Ranks that wait alike are one box; an arrow leads from those that wait to those they wait for, the root at the bottom.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, NamedTuple

from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.elements.evidence_reader import doing, entries, rank_of
from guardrun.supervisor.report.elements.scales import shorten

MAX_WAITS = 400
MAX_WIDE = 3
MAX_LEVELS = 6
"""What is further from a root is drawn as if it were that far."""

BOX_W, BOX_H = 256, 72
GAP_X, GAP_Y = 24, 58
MARGIN = 20
LABEL_H = 16
_WORDS = 40
"""Characters of 12 px that fit into a box."""


class Wait(NamedTuple):
    """Some ranks wait for others."""

    ranks: frozenset[int]
    awaited: frozenset[int]
    label: str
    where: str


class Node(NamedTuple):
    """Ranks that wait, and are waited for, alike."""

    ranks: list[int]
    is_culprit: bool
    does: str
    where: str
    level: int
    """0: waits for nobody in the graph; else how many arrows away from one that does."""

    groups: int = 1
    """Groups of ranks that are drawn as one, because there are too many."""

    def title(self) -> str:
        """`Ranks 0-6,8`; `Nobody named` where an incident has no ranks for it."""
        return f"Rank{'s' if len(self.ranks) > 1 else ''} {rank_list(self.ranks)}" if self.ranks else "Nobody named"


class Graph(NamedTuple):
    """Nodes, and arrows between their indices."""

    nodes: list[Node]
    edges: dict[tuple[int, int], str]


def _ranks(value: Any) -> frozenset[int]:
    return frozenset(r for r in value if isinstance(r, int)) if isinstance(value, list) else frozenset()


def read_waits(evidence: dict[str, Any], culprits: list[int]) -> list[Wait]:
    """The evidence's waits; where it has none, what `waiting` and the culprits say."""
    found = []
    for entry in entries(evidence, "waits")[:MAX_WAITS]:
        ranks, awaited = _ranks(entry.get("ranks")), _ranks(entry.get("for"))
        if ranks and (not awaited or awaited - ranks):
            found.append(Wait(ranks, awaited, _label(entry), str(entry.get("where") or "")))
    if found:
        return found
    waiting = _ranks(evidence.get("waiting")) - set(culprits)
    if not waiting:
        return []
    ops = Counter(str(e["waits_in"]) for e in entries(evidence, "ranks") if rank_of(e) in waiting and e.get("waits_in"))
    return [Wait(waiting, frozenset(culprits), f"in {ops.most_common(1)[0][0]}" if ops else "", "")]


def _label(entry: dict[str, Any]) -> str:
    op = str(entry.get("op") or "")
    seq = entry.get("seq")
    group = str(entry.get("group") or "")
    number = f" #{seq}" if isinstance(seq, int) and seq >= 0 else ""
    return f"in {op or 'a collective'}{number}{f' of {group}' if group else ''}"


def make_graph(waits: list[Wait], evidence: dict[str, Any], culprits: list[int]) -> Graph:
    """Merge the ranks that wait alike, and of each level the many small groups."""
    guilty = set(culprits)
    named = frozenset().union(*(wait.ranks | wait.awaited for wait in waits)) | guilty
    inside: dict[int, list[int]] = {rank: [] for rank in named}
    awaited: dict[int, list[int]] = {rank: [] for rank in named}
    for number, wait in enumerate(waits):
        for rank in wait.ranks:
            inside[rank].append(number)
        for rank in wait.awaited:
            awaited[rank].append(number)
    alike: dict[Any, list[int]] = {}
    for rank in sorted(named):
        alike.setdefault((rank in guilty, tuple(inside[rank]), tuple(awaited[rank])), []).append(rank)
    if any(not wait.awaited for wait in waits):  # who they wait for cannot be told
        alike[(False, (), tuple(n for n, wait in enumerate(waits) if not wait.awaited))] = []
    keys, members = list(alike), list(alike.values())
    edges = _edges(keys, waits)
    levels = [
        min(level, MAX_LEVELS) for level in _levels(len(keys), edges, [n for n, key in enumerate(keys) if key[0]])
    ]
    place, shown = _crowd(keys, members, levels)
    nodes = []
    for group in shown:
        inner = [waits[w] for n in group for w in keys[n][1]]
        ranks = sorted(rank for n in group for rank in members[n])
        does = _does(ranks, evidence, inner)
        nodes.append(Node(ranks, keys[group[0]][0], *does, levels[group[0]], len(group)))
    joined: dict[tuple[int, int], str] = {}
    for (a, b), label in edges.items():
        pair = (place[a], place[b])
        # Within a row of many groups drawn as one, arrows would say nothing.
        is_crowd = nodes[pair[0]].level == nodes[pair[1]].level and nodes[pair[0]].groups + nodes[pair[1]].groups > 2
        if pair[0] != pair[1] and not is_crowd:
            known = joined.setdefault(pair, label)
            joined[pair] = known if label in known or known.endswith("…") else f"{known} …"
    return Graph(nodes, joined)


def _crowd(keys: list[Any], members: list[list[int]], levels: list[int]) -> tuple[dict[int, int], list[list[int]]]:
    """Which nodes share a box: of each level a few have one of their own, culprits first, then the largest groups."""
    place: dict[int, int] = {}
    shown: list[list[int]] = []
    crowds: dict[tuple[int, bool], int] = {}
    own: Counter[int] = Counter()
    for n in sorted(range(len(keys)), key=lambda n: (levels[n], not keys[n][0], -len(members[n]), members[n][:1])):
        level, is_culprit = levels[n], keys[n][0]
        is_last = sum(other == level for other in levels) <= MAX_WIDE
        if is_last or own[level] < MAX_WIDE - 1:
            own[level] += 1
            place[n] = len(shown)
            shown.append([n])
        elif (level, is_culprit) in crowds:
            place[n] = crowds[level, is_culprit]
            shown[place[n]].append(n)
        else:
            place[n] = crowds[level, is_culprit] = len(shown)
            shown.append([n])
    return place, shown


def _edges(keys: list[Any], waits: list[Wait]) -> dict[tuple[int, int], str]:
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for node, (_, inside, awaited) in enumerate(keys):
        for number in inside:
            sources.setdefault(number, []).append(node)
        for number in awaited:
            targets.setdefault(number, []).append(node)
    labels: dict[tuple[int, int], list[str]] = {}
    for number, wait in enumerate(waits):
        for a in sources.get(number, []):
            for b in targets.get(number, []):
                if a != b and wait.label not in labels.setdefault((a, b), []):
                    labels[(a, b)].append(wait.label)
    return {pair: "; ".join(found) for pair, found in labels.items()}


def _levels(count: int, edges: dict[tuple[int, int], str], guilty: list[int]) -> list[int]:
    """Arrows from each node to the nearest that waits for nobody."""
    leaving = {a for a, _ in edges}
    entering: dict[int, list[int]] = {}
    for a, b in edges:
        entering.setdefault(b, []).append(a)
    levels = [0 if node not in leaving else -1 for node in range(count)]
    todo = deque(node for node in range(count) if levels[node] == 0)
    # Who waits in a circle reaches nobody who does not wait: there the culprits stand at the bottom, else the first.
    spare = deque([*guilty, *range(count)])
    while todo or spare:
        if not todo and levels[spare[0]] < 0:
            levels[spare[0]] = 0
            todo.append(spare[0])
        if not todo:
            spare.popleft()
            continue
        node = todo.popleft()
        for before in entering.get(node, []):
            if levels[before] < 0:
                levels[before] = levels[node] + 1
                todo.append(before)
    return levels


def _does(ranks: list[int], evidence: dict[str, Any], waits: list[Wait]) -> tuple[str, str]:
    """What they do, and where, in a few words each."""
    if not ranks:
        why = evidence.get("why_no_culprit")
        return (why if isinstance(why, str) and why else "no member is missing"), ""
    called = next((wait.where for wait in waits if wait.where), "")
    members = set(ranks)
    for entry in entries(evidence, "ranks"):
        if rank_of(entry) in members:
            return doing(entry), str(entry.get("at") or called)
    return ("waiting" if called else ""), called


def lay_out(graph: Graph) -> dict[str, Any] | None:
    """The drawing; None where nobody waits. arrows: path, what is shown on hovering, x, y and words of the label."""
    if not graph.edges:
        return None
    rows: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        rows.setdefault(node.level, []).append(number)
    top = max(rows)
    widest = max(len(row) for row in rows.values())
    width = 2 * MARGIN + widest * BOX_W + (widest - 1) * GAP_X
    height = 2 * MARGIN + (top + 1) * BOX_H + top * GAP_Y
    corner: dict[int, tuple[float, float]] = {}
    for level, row in rows.items():
        left = (width - len(row) * BOX_W - (len(row) - 1) * GAP_X) / 2
        for index, number in enumerate(row):
            corner[number] = (left + index * (BOX_W + GAP_X), MARGIN + (top - level) * (BOX_H + GAP_Y))
    arrows, labels = [], Counter[int]()
    # Those downwards first: their labels stand right below their boxes.
    for (a, b), label in sorted(graph.edges.items(), key=lambda edge: corner[edge[0][0]][1] >= corner[edge[0][1]][1]):
        verb = "waits" if len(graph.nodes[a].ranks) == 1 else "wait"
        arrows.append(_arrow(corner[a], corner[b], f"{verb} {label}", labels[a]))
        labels[a] += 1
    below = max((labels[n] for n, node in enumerate(graph.nodes) if node.level == 0), default=0)
    return {
        "label": describe(graph),
        "width": width,
        "height": height + below * LABEL_H + (10 if below else 0),
        "arrows": arrows,
        "boxes": [_box(node, *corner[number]) for number, node in enumerate(graph.nodes)],
        "box_width": BOX_W,
        "box_height": BOX_H,
    }


def _arrow(
    source: tuple[float, float], target: tuple[float, float], label: str, place: int
) -> tuple[str, str, float, float, str]:
    """place: how many labels stand below the source already."""
    (x1, y1), (x2, y2) = source, target
    if y2 > y1:
        path = f"M{x1 + BOX_W / 2:.0f} {y1 + BOX_H:.0f}L{x2 + BOX_W / 2:.0f} {y2 - 2:.0f}"
    elif y2 == y1:
        middle, floor = (x1 + BOX_W / 2, x2 + BOX_W / 2), y1 + BOX_H
        path = f"M{middle[0]:.0f} {floor:.0f}C{middle[0]:.0f} {floor + 40:.0f} {middle[1]:.0f} {floor + 40:.0f}"
        path += f" {middle[1]:.0f} {floor + 2:.0f}"
    else:
        side, end = x1 + BOX_W, x2 + BOX_W - 24
        path = f"M{side:.0f} {y1 + BOX_H / 2:.0f}C{side + 28:.0f} {y1 + BOX_H / 2:.0f} {end:.0f} {y1:.0f}"
        path += f" {end:.0f} {y2 + BOX_H + 2:.0f}"
    # Below their sources the labels of several arrows to one box stay apart.
    y = y1 + BOX_H + 21 + place * LABEL_H
    return path, label, x1 + BOX_W / 2, y, shorten(f"{label}{'' if y2 > y1 else ' ↑'}", 44)


def _box(node: Node, x: float, y: float) -> tuple[float, float, bool, str, list[tuple[int, str, str]]]:
    """Its corner, whether it is a culprit's, what is shown on hovering; how far down each line is, kind and words."""
    title = node.title()
    if node.is_culprit:
        title = f"✖ {title}"
    count = f" ({len(node.ranks)})" if len(node.ranks) > 1 else ""
    count += f", {node.groups} groups" if node.groups > 1 else ""
    hover = f"{'Culprit: ' if node.is_culprit else ''}{node.title()}{count}: {node.does} {node.where}"
    lines = [
        (23, "box-title", shorten(title, 32 - len(count)) + count),
        (42, "box-text", shorten(node.does, _WORDS)),
        (60, "box-text", shorten(node.where, _WORDS)),
    ]
    return x, y, node.is_culprit, hover, lines


def describe(graph: Graph) -> str:
    """The graph in words, for those who cannot see it."""
    parts = [
        f"{graph.nodes[a].title()} wait{'' if len(graph.nodes[a].ranks) > 1 else 's'} for "
        f"{graph.nodes[b].title().lower() if graph.nodes[b].ranks else 'somebody who cannot be told'} {label}"
        for (a, b), label in list(graph.edges.items())[:12]
    ]
    return "; ".join(parts)
