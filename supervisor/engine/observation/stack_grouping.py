"""A look's stacks, one for each thread that shows Python, and all ranks' merged where they are equal.

Who does what everybody does, and who does not.

Two stacks are equal where they are in the same functions, whatever the lines: two lines apart in a polling loop is no
difference. The lines are kept, with the ranks at each, so that none is lost. Culprits never merge with others. The
biggest group is how a healthy rank looks, so the smallest come first; ranks' own threads before their children's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.frames import (
    base_name,
    fold,
    is_users,
    is_users_file,
    rank_list,
    short_path,
)

# Stacks -------------------------------------------------------------------------------------------------------------
# A look's stacks, one for each thread that shows Python: what is grouped, folded and shown to people.


MAIN, CHILD, THREAD = "main thread", "child process", "other thread"
KINDS = (MAIN, CHILD, THREAD)
"""A rank's own main thread, its children's threads, its other threads: in the order that people want them."""

_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in uninterruptible wait", "Z": "dead"}


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's stack, innermost frame first."""

    rank: int
    """-1 where it cannot be told."""
    pid: int = 0
    kind: str = MAIN
    name: str = ""
    """The thread's name, or the child's command."""
    frames: list[Frame] = []
    note: str = ""
    """Why there are no (better) frames, where they are from, the process's state."""
    owns_gil: bool = False


def stacks_of(look: RankLook) -> list[Stack]:
    """A rank's stacks, those of its children after its own."""
    stacks = _of_process(look.global_rank, look.process, is_child=False)
    for child in look.children:
        stacks += _of_process(look.global_rank, child, is_child=True)
    return stacks


def _of_process(rank: int, process: ProcessLook, is_child: bool) -> list[Stack]:
    note = "; ".join(part for part in (_state_words(process), process.trouble) if part)
    if not process.threads:
        if is_child and not process.trouble:
            return []
        kind = CHILD if is_child else MAIN
        return [Stack(rank=rank, pid=process.pid, kind=kind, name=process.command if is_child else "", note=note)]
    return [
        Stack(
            rank=rank,
            pid=process.pid,
            kind=CHILD if is_child else MAIN if thread.is_main else THREAD,
            name=_child_name(process.command, thread.name, thread.is_main) if is_child else thread.name,
            frames=thread.frames,
            note=note if thread.is_main or is_child else "",
            owns_gil=thread.owns_gil,
        )
        for thread in process.threads
        if thread.frames or thread.is_main
    ]


def _child_name(command: str, thread: str, is_main: bool) -> str:
    return command if is_main or not thread else f"{command}, {thread}"


def _state_words(process: ProcessLook) -> str:
    if process.state not in _STATES:
        return ""
    return f"{_STATES[process.state]}{f' ({process.wchan})' if process.wchan else ''}"


# Stack grouping -----------------------------------------------------------------------------------------------------


MAX_LINES = 8
MAX_PIDS = 64
EVIDENCE_GROUPS = 16
EVIDENCE_FRAMES = 16

_FOLDERS = re.compile(r"(?<!\S)/\S*/(?=\S)")
_DIGITS = re.compile(r"\d+")
_Functions = tuple[tuple[str, str], ...]
_Key = tuple[str, bool, str, str, _Functions]


class GroupFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One frame of all stacks of a group."""

    function: str
    file: str
    lines: list[int]
    """Where the stacks are in it, sorted; at most MAX_LINES."""

    @property
    def line(self) -> int:
        """The first of `lines`, as a frame of one stack has it; 0: not known."""
        return self.lines[0] if self.lines else 0

    @property
    def line_words(self) -> str:
        """`66`, `66,70`, `66,70,…`."""
        more = ",…" if len(self.lines) >= MAX_LINES else ""
        return ",".join(map(str, self.lines)) + more


class LineRanks(msgspec.Struct, frozen=True, array_like=True):
    """Who of a group is at one line of its innermost frame of the user's."""

    line: int
    ranks: str


class StackGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stacks that are the same."""

    kind: str
    ranks: list[int]
    """Sorted; without those that cannot be told."""
    count: int
    """Stacks in it: a rank has several workers."""
    frames: list[GroupFrame] = []
    """Innermost first."""
    name: str = ""
    """The threads' name, or the children's command; numbers in it are the first one's."""
    pids: list[int] = []
    """Sorted; at most MAX_PIDS."""
    note: str = ""
    owns_gil: bool = False
    is_culprit: bool = False
    spread: list[LineRanks] = []
    """Where the user's innermost frame is at different lines: which ranks are at which."""

    def title(self) -> str:
        """`Ranks 0-6,8`, `Rank 1, child process 4243 (pt_data_worker)`."""
        words = f"Rank{'s' if len(self.ranks) > 1 else ''} {rank_list(self.ranks)}" if self.ranks else "A process"
        if self.kind == MAIN:
            return words
        name = f" ({_FOLDERS.sub('', self.name)})" if self.name else ""
        many = f"{self.count} × " if self.count > 1 else ""
        pid = f" {self.pids[0]}" if self.kind == CHILD and len(self.pids) == 1 else ""
        return f"{words}, {many}{self.kind}{pid}{name}"


def group_looks(looks: Iterable[RankLook], culprits: Iterable[int] = ()) -> list[StackGroup]:
    """The grouped stacks of a look at all ranks."""
    return group_stacks((stack for look in looks for stack in stacks_of(look)), culprits)


def group_stacks(stacks: Iterable[Stack], culprits: Iterable[int] = ()) -> list[StackGroup]:
    """Merge equal stacks: those of culprits first, then the smallest groups."""
    guilty = frozenset(culprits)
    merged: dict[_Key, dict[tuple[int, ...], list[Stack]]] = {}
    for stack in stacks:
        frames = stack.frames
        functions = tuple([(f.function, f.file) for f in frames])
        name = "" if stack.kind == MAIN else _DIGITS.sub("#", stack.name)
        key = (stack.kind, stack.rank in guilty, name, stack.note, functions)
        merged.setdefault(key, {}).setdefault(tuple([f.line for f in frames]), []).append(stack)
    groups = [_group(key, by_lines) for key, by_lines in merged.items()]
    return sorted(groups, key=_order)


def _order(group: StackGroup) -> tuple[Any, ...]:
    kind = KINDS.index(group.kind) if group.kind in KINDS else len(KINDS)
    return kind, not group.is_culprit, len(group.ranks), group.ranks[:1], group.pids[:1]


def _group(key: _Key, by_lines: dict[tuple[int, ...], list[Stack]]) -> StackGroup:
    kind, is_culprit, _, note, functions = key
    members = [stack for stacks in by_lines.values() for stack in stacks]
    first = min(members, key=lambda stack: (stack.rank, stack.pid))
    columns = zip(*by_lines, strict=True)
    frames = [
        GroupFrame(function=function, file=file, lines=sorted(set(lines))[:MAX_LINES])
        for (function, file), lines in zip(functions, columns, strict=True)
    ]
    return StackGroup(
        kind=kind,
        ranks=sorted({stack.rank for stack in members if stack.rank >= 0}),
        count=len(members),
        frames=frames,
        name=first.name,
        pids=sorted({stack.pid for stack in members if stack.pid})[:MAX_PIDS],
        note=note,
        owns_gil=any(stack.owns_gil for stack in members),
        is_culprit=is_culprit,
        spread=_spread(first.frames, by_lines),
    )


def _spread(frames: Sequence[Frame], by_lines: dict[tuple[int, ...], list[Stack]]) -> list[LineRanks]:
    """Who is at which line of the innermost frame of the user's code; empty where all are at one."""
    index = next((n for n, frame in enumerate(frames) if is_users(frame)), -1)
    if index < 0 or len(by_lines) < 2:
        return []
    at: dict[int, set[int]] = {}
    for lines, stacks in by_lines.items():
        at.setdefault(lines[index], set()).update(stack.rank for stack in stacks)
    if len(at) < 2:
        return []
    rarest = sorted(at.items(), key=lambda item: (len(item[1]), item[0]))
    return [LineRanks(line, rank_list(sorted(ranks))) for line, ranks in rarest[:MAX_LINES]]


def evidence_groups(looks: Sequence[RankLook], culprits: Iterable[int] = ()) -> list[dict[str, Any]]:
    """The groups as an incident's `stack_groups` has them: bounded, ranks compressed, libraries' frames folded."""
    groups = group_looks(looks, culprits)
    told = [group_data(group) for group in groups[:EVIDENCE_GROUPS]]
    if len(groups) > EVIDENCE_GROUPS:
        told.append({"left_out": len(groups) - EVIDENCE_GROUPS})
    return told


def group_data(group: StackGroup) -> dict[str, Any]:
    """One group, for a program: `frames` holds user's frames and folds, innermost first."""
    data: dict[str, Any] = {"ranks": rank_list(group.ranks), "count": group.count, "kind": group.kind}
    if group.kind != MAIN:
        data |= {"name": group.name, "pids": group.pids[:8]}
    data |= {"is_culprit": True} if group.is_culprit else {}
    data |= {"holds_gil": True} if group.owns_gil else {}
    data |= {"note": group.note} if group.note else {}
    parts: list[dict[str, Any]] = []
    for part in fold(group.frames):
        if part.label:
            parts.append({"folded": part.label})
        else:
            parts += [{"function": f.function, "file": f.file, "lines": f.lines} for f in part.frames]
    data["frames"] = parts[:EVIDENCE_FRAMES]
    if group.spread:
        data["spread"] = {str(item.line): item.ranks for item in group.spread}
    return data


def frame_words(frame: GroupFrame) -> str:
    """`fetch_vocabulary_update (train.py:73)`."""
    file = base_name(frame.file) if is_users_file(frame.file) else short_path(frame.file)
    return f"{frame.function} ({file}:{frame.line_words})"
