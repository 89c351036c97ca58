"""Stacks for people: equal ones merged, outliers first, what is not the user's code folded away.

Takes what there is: a look's structs, the same as plain data in an incident's evidence, or py-spy's JSON.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from guardrun.supervisor.core.frames import base_name, is_users, rank_list
from guardrun.supervisor.core.looks import Frame, ProcessLook, RankLook

MAIN, CHILD, THREAD = "main thread", "child process", "other thread"
_HOOKS = "/guardrun/hooks/"
_KIND_ORDER = (MAIN, CHILD, THREAD)


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


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks that are the same."""

    stacks: list[Stack]

    @property
    def first(self) -> Stack:
        return self.stacks[0]

    @property
    def ranks(self) -> list[int]:
        return sorted({stack.rank for stack in self.stacks})

    def title(self) -> str:
        """`Ranks 0-6,8`, `Rank 1, child process 4243 (pt_data_worker)`."""
        ranks = [rank for rank in self.ranks if rank >= 0]
        words = f"Rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}" if ranks else "A process"
        if self.first.kind == MAIN:
            return words
        name = f" ({self.first.name})" if self.first.name else ""
        pids = {stack.pid for stack in self.stacks}
        many = f"{len(self.stacks)} × " if len(self.stacks) > 1 else ""
        pid = f" {self.first.pid}" if self.first.kind == CHILD and len(pids) == 1 else ""
        return f"{words}, {many}{self.first.kind}{pid}{name}"


def from_look(look: RankLook) -> list[Stack]:
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
    words = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in uninterruptible wait", "Z": "dead"}
    if process.state not in words:
        return ""
    return f"{words[process.state]}{f' ({process.wchan})' if process.wchan else ''}"


def group_stacks(stacks: list[Stack], culprits: list[int] | None = None) -> list[Group]:
    """Merge equal stacks. First those of culprits, then the smallest groups: the biggest is how a healthy rank looks.

    Equal: the same functions, and in the user's own code the same lines too. Two ranks a line apart in the training
    loop do different things; two lines apart in torch's polling loop they don't.
    """
    merged: dict[Any, list[Stack]] = {}
    for stack in stacks:
        merged.setdefault(_key(stack), []).append(stack)
    groups = [Group(stacks=sorted(members, key=lambda s: (s.rank, s.pid))) for members in merged.values()]
    guilty = set(culprits or [])
    return sorted(
        groups,
        key=lambda g: (
            _KIND_ORDER.index(g.first.kind),
            guilty.isdisjoint(g.ranks),
            len(g.ranks),
            g.first.rank,
            g.first.pid,
        ),
    )


def _key(stack: Stack) -> Any:
    frames = tuple((f.function, f.file, f.line if is_users(f) else 0) for f in stack.frames)
    name = "" if stack.kind == MAIN else re.sub(r"\d+", "#", stack.name)
    return stack.kind, name, frames, stack.note


class Fold(msgspec.Struct, frozen=True):
    """Consecutive frames that are shown, or folded under one line."""

    frames: list[Frame]
    label: str = ""
    """Empty: shown."""


def fold(frames: list[Frame]) -> list[Fold]:
    """Fold runs of library frames, but for the innermost frame, which says what is being waited in.

    Our own hooks' frames are left out: they are there because somebody watches.
    """
    folds: list[Fold] = []
    shown = [frame for frame in frames if _HOOKS not in frame.file] or frames
    for index, frame in enumerate(shown):
        library = "" if index == 0 or is_users(frame) else library_name(frame.file)
        if library and folds and folds[-1].label:
            folds[-1].frames.append(frame)
        else:
            folds.append(Fold([frame], library))
    return [Fold(f.frames, _fold_label(f.frames)) if f.label and len(f.frames) > 1 else Fold(f.frames) for f in folds]


def _fold_label(frames: list[Frame]) -> str:
    names = list(dict.fromkeys(library_name(frame.file) for frame in frames))
    return f"{len(frames)} frames in {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def library_name(path: str) -> str:
    """Whose a file is: `torch`, `transformers`, `python` for the standard library."""
    for part in ("site-packages/", "dist-packages/"):
        if part in path:
            return path.rpartition(part)[2].split("/")[0].removesuffix(".py")
    if path.startswith("<") or "/lib/python3" in path:
        return "python"
    for name in ("torch", "guardrun"):
        if f"/{name}/" in path:
            return name
    return "libraries"


def short_path(path: str) -> str:
    """A library's file from the library on, anything else from its last folder on."""
    for part in ("site-packages/", "dist-packages/"):
        if part in path:
            return path.rpartition(part)[2]
    match = re.search(r"/lib/python3[^/]*/(.+)", path)
    if match:
        return match[1]
    return "/".join(path.rsplit("/", 2)[-2:])


def frame_line(frame: Frame) -> str:
    """`fetch_vocabulary_update (train.py:73)`."""
    name = base_name(frame.file) if is_users(frame) else short_path(frame.file)
    return f"{frame.function} ({name}:{frame.line})"


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
