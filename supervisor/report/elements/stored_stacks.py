"""Reading back the stacks that a look left on disk: rank-R-pid-PID.txt, one for each process."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from guardrun.supervisor.base.own_files import open_own
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, MAIN, THREAD, Stack

MAX_FILES = 4096
MAX_FILE_BYTES = 1024 * 1024

_NAME = re.compile(r"rank-(\d+)-pid-(\d+)\.txt")
_HEAD = re.compile(r"rank \d+, pid \d+ \((the rank itself|[^)]*)\): ?(.*)")
_STATE = re.compile(r"state ([TtDZX]): ([^,]+)(?:, in the kernel's (\S+))?")
_TROUBLE = re.compile(r"stacks: (.+)")
_THREAD = re.compile(r"Thread \d*(?: (['\"].*['\"]))? \((.*)\), most recent call last:")
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')


def list_files(folder: Path) -> list[str]:
    """All files below folder, relative to it, those at the top first, numbers in their order."""
    found = []
    for root, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(root, name), folder) for name in names]
    return sorted(found, key=lambda name: (name.count("/"), [_natural(part) for part in re.split(r"(\d+)", name)]))


def _natural(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)


def read_stacks(folder: Path) -> list[Stack]:
    """The stacks in the files at the top of folder. What cannot be read or isn't understood is left out."""
    return list(iterate_stacks(folder))


def iterate_stacks(folder: Path) -> Iterator[Stack]:
    """The same, one file after the other."""
    for name in [name for name in list_files(folder) if _NAME.fullmatch(name)][:MAX_FILES]:
        try:
            with open(open_own(folder / name, is_anybodys=True), "rb") as file:
                text = file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        yield from parse_process(name, text)


def parse_process(name: str, text: str) -> list[Stack]:
    """The stacks of one process, from its file's name and text; one without frames where it has none."""
    match = _NAME.fullmatch(name)
    if not match:
        return []
    rank, pid = int(match[1]), int(match[2])
    lines = text.splitlines()
    head = _HEAD.match(lines[0]) if lines else None
    is_child = head is not None and head[1] != "the rank itself"
    command = head[2] if head else ""
    note = _note(lines)
    stacks = []
    for title, frames in _threads(lines):
        marks = title[2].split(", ")
        kind = CHILD if is_child else MAIN if "main" in marks else THREAD
        thread = _unquote(title[1] or "")
        if is_child:
            thread = command if "main" in marks or not thread else f"{command}, {thread}"
        stacks.append(
            Stack(
                rank=rank,
                pid=pid,
                kind=kind,
                name=thread,
                frames=frames,
                note="" if kind == THREAD else note,
                owns_gil="holds the GIL" in marks,
            )
        )
    if not stacks and (note or not is_child):
        stacks.append(Stack(rank=rank, pid=pid, kind=CHILD if is_child else MAIN, name=command, note=note))
    return stacks


def _unquote(text: str) -> str:
    """A name as repr wrote it."""
    try:
        return str(ast.literal_eval(text)) if text else ""
    except (ValueError, SyntaxError):
        return text


def _threads(lines: list[str]) -> list[tuple[re.Match[str], list[Frame]]]:
    """Each thread's title and its frames, innermost first."""
    threads: list[tuple[re.Match[str], list[Frame]]] = []
    is_in_thread = False
    for line in lines:
        if title := _THREAD.fullmatch(line):
            threads.append((title, []))
            is_in_thread = True
        elif (frame := _FRAME.fullmatch(line)) and is_in_thread:
            threads[-1][1].insert(0, Frame(frame[3], frame[1], int(frame[2])))
        else:
            is_in_thread = False
    return threads


def _note(lines: list[str]) -> str:
    notes = []
    for line in lines[:20]:
        if state := _STATE.fullmatch(line):
            notes.append(state[2] + (f" ({state[3]})" if state[3] else ""))
        elif trouble := _TROUBLE.fullmatch(line):
            notes.append(trouble[1])
    return "; ".join(notes)
