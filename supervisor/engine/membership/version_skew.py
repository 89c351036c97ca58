"""What should be alike on all nodes of a job, and what to say where it is not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

import msgspec

from guardrun.supervisor.engine.membership.reachability import names

CLOCK_S = 1.0
"""Wall clocks that are further apart are said: log lines and file times of two nodes then tell another story."""
MAX_FILES_NAMED = 3


class NodeEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's part."""

    wall_s: float = 0.0
    """Its wall clock's time at the zero of the engine's seconds; 0: unknown."""
    versions: dict[str, str] = {}
    """`torch`, `nccl`, `python`, `driver`, …: what is empty or missing is not compared."""
    script: str = ""
    """As a person names it."""
    files: dict[str, str] = {}
    """The script and what lies beside it: name relative to its folder → digest."""
    is_script_alone: bool = False
    """The rest was too much to read."""


def compare(facts: Mapping[str, NodeEnvironment]) -> list[str]:
    """In sentences without their full stop: whose versions, code or clocks are not those of most."""
    said: list[str] = []
    for name in dict.fromkeys(name for one in facts.values() for name in one.versions):
        told = {node: one.versions[name] for node, one in facts.items() if one.versions.get(name)}
        for value, nodes, usual, others in _odd(told):
            said.append(f"{names(nodes)} {_has(nodes)} {name} {value}, {names(others)} {_has(others)} {usual}")
    return said + _files(facts) + _clocks(facts)


def _odd(told: Mapping[str, str]) -> list[tuple[str, list[str], str, list[str]]]:
    """Values that are not the most common one (of the first node, where two are as common), with whose they are."""
    counts = Counter(told.values())
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]
    others = [node for node, value in told.items() if value == usual]
    return [(v, [node for node in told if told[node] == v], usual, others) for v in counts if v != usual]


def _files(facts: Mapping[str, NodeEnvironment]) -> list[str]:
    told = {node: one.files for node, one in facts.items() if one.files}
    usual: dict[str, str] = {}
    for name in dict.fromkeys(name for files in told.values() for name in files):
        digests = [
            files.get(name, "") for node, files in told.items() if name in files or not facts[node].is_script_alone
        ]
        usual[name] = Counter(digests).most_common(1)[0][0]
    said = []
    for node, files in told.items():
        known = [name for name in usual if name in files or not facts[node].is_script_alone]
        odd = sorted(name for name in known if files.get(name, "") != usual[name])
        if odd:
            script = facts[node].script
            odd = sorted(odd, key=lambda name: name != script)
            more = f" and {len(odd) - MAX_FILES_NAMED} more files" if len(odd) > MAX_FILES_NAMED else ""
            differs = "differs" if len(odd) == 1 else "differ"
            listed = ", ".join(odd[:MAX_FILES_NAMED])
            said.append(f"{node} would run other code: {listed}{more} {differs} from the other nodes'")
    return said


def _clocks(facts: Mapping[str, NodeEnvironment]) -> list[str]:
    walls = {node: one.wall_s for node, one in facts.items() if one.wall_s}
    if len(walls) < 2:
        return []
    usual_s = median(walls.values()) if len(walls) > 2 else next(iter(walls.values()))
    said = []
    for node, wall_s in walls.items():
        off_s = wall_s - usual_s
        if abs(off_s) > CLOCK_S:
            way = "ahead of" if off_s > 0 else "behind"
            said.append(f"{node}'s wall clock is {abs(off_s):.1f} s {way} the others'")
    return said


def _has(nodes: list[str]) -> str:
    return "has" if len(nodes) == 1 else "have"
