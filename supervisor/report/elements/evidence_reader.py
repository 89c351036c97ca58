"""Reading an incident's evidence, whatever the engine put in it: nothing here raises on what it doesn't know."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.engine.model.looks import Frame, RankLook
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.stack_grouping import MAIN, Stack, stacks_of

# Stack data ---------------------------------------------------------------------------------------------------------
# Frames and grouped stacks from plain data: an incident's evidence, or py-spy's JSON.


def parse_frame(data: Any) -> Frame | None:
    """A frame from plain data: [function, file, line], or an object as py-spy has it. None where it is neither."""
    if isinstance(data, Frame):
        return data
    if isinstance(data, (list, tuple)) and len(data) == 3:
        function, file, line = data
    elif isinstance(data, dict):
        function = data.get("function", data.get("name", "?"))
        file = data.get("file", data.get("filename", "?"))
        line = data.get("line", 0)
    else:
        return None
    return Frame(str(function), str(file), line if isinstance(line, int) else 0)


def parse_frames(data: Any) -> list[Frame]:
    """Those of the frames that are frames."""
    found = [parse_frame(item) for item in data] if isinstance(data, (list, tuple)) else []
    return [frame for frame in found if frame is not None]


# Evidence reader ----------------------------------------------------------------------------------------------------


RANK_KEYS = ("rank", "global_rank")
KNOWN = frozenset(
    {"ranks", "exits", "stacks", "looks", "look", "traceback", "tracebacks", "waiting", "waits", "collectives"}
    | {
        "readings",
        "recurrence",
        "stack_groups",
        "stack",
        "skipped_checkpoints",
        "left_out_batches",
        "data_replay",
        "mismatch",
        "workers",
    }
)
"""Keys that the report shows in words; everything else goes into the folded block of data."""

MAX_CELL_CHARS = 300
DOES_KEYS = ("doing", "judgement", "judged")
DOES_WORDS = {"data": "waiting for data", "gil_held": "holding the GIL", "io_blocked": "in uninterruptible wait"}
COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Where", ("at", "spot", "place", "where")),
    ("Why", ("reason", "why", "what", "error")),
    ("Step", ("step",)),
    ("Phase", ("phase",)),
    ("State", ("state",)),
    ("Exit", ("exitcode", "exit_code", "exit")),
    ("Node", ("node",)),
    ("PID", ("pid",)),
)
"""The ranks' table: a heading, and the keys that may hold its value."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of which the same is known."""

    ranks: list[int]
    cells: dict[str, str]
    is_culprit: bool

    @property
    def rank_words(self) -> str:
        """`0-6,8`."""
        return rank_list(self.ranks)


def rank_of(data: dict[str, Any]) -> int | None:
    """The global rank that an entry is about."""
    for key in RANK_KEYS:
        if isinstance(data.get(key), int):
            return int(data[key])
    return None


def entries(evidence: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects with ranks; an object keyed by rank is taken as one too."""
    data = evidence.get(key)
    if isinstance(data, dict):
        data = [
            {"rank": int(name), **(value if isinstance(value, dict) else {"exit": value})}
            for name, value in data.items()
            if str(name).isdecimal()
        ]
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


def culprit_ranks(record: dict[str, Any]) -> list[int]:
    """Ranks that an incident.json blames: a culprit may be a node of which none trains."""
    return [culprit["rank"] for culprit in record.get("culprits") or [] if culprit["rank"] is not None]


def culprit_words(culprit: dict[str, Any]) -> str:
    """`rank 1 (local rank 1, GPU 0) on node-a, pid 4242`, or `node-a`."""
    if culprit["rank"] is None:
        return str(culprit["node"])
    gpu = "" if culprit.get("gpu") is None else f", GPU {culprit['gpu']}"
    return (
        f"rank {culprit['rank']} (local rank {culprit['local_rank']}{gpu}) on {culprit['node']}, pid {culprit['pid']}"
    )


def rank_rows(evidence: dict[str, Any], culprits: list[int]) -> list[Row]:
    """The ranks' table: equal rows merged (but for their pid), culprits first, then the odd ones out."""
    by_rank: dict[int, dict[str, Any]] = {}
    for key in ("exits", "ranks"):
        for entry in entries(evidence, key):
            rank = rank_of(entry)
            if rank is not None:
                by_rank.setdefault(rank, {}).update(entry)
    merged: dict[Any, list[tuple[int, dict[str, str]]]] = {}
    for rank, entry in sorted(by_rank.items()):
        cells = {heading: text for heading, keys in COLUMNS if (text := _cell(entry, keys))}
        cells |= {"Does": does} if (does := _does(entry)) else {}
        same = tuple(sorted((heading, text) for heading, text in cells.items() if heading != "PID"))
        merged.setdefault((rank in culprits, same), []).append((rank, cells))
    rows = [_row(is_culprit, members) for (is_culprit, _), members in merged.items()]
    return sorted(rows, key=lambda row: (not row.is_culprit, len(row.ranks), row.ranks[0]))


def _row(is_culprit: bool, members: list[tuple[int, dict[str, str]]]) -> Row:
    cells = dict(members[0][1])
    if len(members) > 1:
        cells.pop("PID", None)
    return Row(ranks=[rank for rank, _ in members], cells=cells, is_culprit=is_culprit)


def _cell(entry: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, (str, int, float)) and value != "":
            text = " ".join(str(value).split())
            return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]} …"
    return ""


def doing(entry: dict[str, Any]) -> str:
    """How a rank was judged, as a person says it."""
    does = _cell(entry, DOES_KEYS)
    return DOES_WORDS.get(does, does.replace("_", " "))


def _does(entry: dict[str, Any]) -> str:
    """What a rank did, in a few words."""
    if entry.get("stopped_by_guardrun") is True:
        return "stopped by guardrun"
    if entry.get("lost_a_peer") is True:
        return "lost a peer"
    does = doing(entry)
    waits_in = entry.get("waits_in")
    return f"{does} in {waits_in}" if does and isinstance(waits_in, str) and waits_in else does


def tracebacks(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """(heading, text) of each traceback; equal ones once."""
    found: dict[str, list[int]] = {}
    for source in [evidence, evidence.get("error")]:
        if isinstance(source, dict) and isinstance(source.get("traceback"), str) and source["traceback"].strip():
            rank = rank_of(source)
            found.setdefault(source["traceback"].strip(), []).extend([] if rank is None else [rank])
    for key in ("tracebacks", "exits", "ranks"):
        for entry in entries(evidence, key):
            error = entry.get("error")
            nested = error.get("traceback") if isinstance(error, dict) else None
            text = entry.get("traceback", nested)
            if isinstance(text, str) and text.strip():
                rank = rank_of(entry)
                ranks = found.setdefault(text.strip(), [])
                ranks += [rank] if rank is not None and rank not in ranks else []
    return [(f"Rank {rank_list(ranks)}" if ranks else "", text) for text, ranks in found.items()]


def evidence_stacks(evidence: dict[str, Any]) -> list[Stack]:
    """The stacks that the evidence itself holds; empty where it only points to files."""
    for key in ("looks", "look"):
        looks = [look for entry in entries(evidence, key) if (look := _look(entry)) is not None]
        if looks:
            return [stack for look in looks for stack in stacks_of(look)]
    found: list[Stack] = []
    for key in ("stacks", "ranks"):
        for entry in entries(evidence, key):
            frames = parse_frames(entry.get("frames", entry.get("stack")))
            if not frames:
                continue
            rank = rank_of(entry)
            listed = entry.get("ranks")
            ranks = [r for r in listed if isinstance(r, int)] if isinstance(listed, list) else []
            found += [Stack(rank=r, frames=frames) for r in ranks or [-1 if rank is None else rank]]
        if found:
            break
    return found


def told_groups(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """(title, lines) of each of the `stack_groups`; where there are none, of the one `stack`."""
    found = []
    for group in entries(evidence, "stack_groups"):
        frames = group.get("frames")
        lines = [_frame_words(frame) for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
        if lines:
            kind = str(group.get("kind") or "")
            found.append((f"Ranks {group.get('ranks')}{'' if kind == MAIN else f', {kind}'}", "\n".join(lines)))
    stack = evidence.get("stack")
    if not found and isinstance(stack, list) and stack:
        found.append(("The first culprit, or who waits", "\n".join(map(str, stack))))
    return found


def _frame_words(frame: dict[str, Any]) -> str:
    if "folded" in frame:
        return f"  … {frame['folded']}"
    lines = frame.get("lines")
    at = ",".join(map(str, lines)) if isinstance(lines, list) else ""
    return f"{frame.get('function')} ({frame.get('file')}:{at})"


def _look(entry: dict[str, Any]) -> RankLook | None:
    try:
        return msgspec.convert(entry, known_type(RankLook), strict=False)
    except msgspec.ValidationError:
        return None


def rest(evidence: dict[str, Any]) -> dict[str, Any]:
    """What the report has no words for, and shows as data."""
    return {key: value for key, value in evidence.items() if key not in KNOWN}


def data_words(record: dict[str, Any]) -> str:
    """Whether samples are trained on again, or left out, since the resume; empty: nothing is known of that."""
    found = (record.get("evidence") or {}).get("data_replay")
    said = found.get("said") if isinstance(found, dict) else None
    return said if isinstance(said, str) else ""
