"""A look's stacks, one for each thread that shows Python: what is grouped, folded and shown to people."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook

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
