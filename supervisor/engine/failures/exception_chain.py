"""What an exception is made of: itself, what it was raised from, and what it quotes from another process.

The one that ends a rank is often a wrapper: `raise … from error`, a DataLoader's "Caught ValueError in DataLoader
worker process 0", a CheckpointException that holds each rank's traceback, torch.multiprocessing's "Process 1 terminated
with the following error". All of them carry the tracebacks below them as text, in the form of Python's `traceback`
module, which is what is read here.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from guardrun.supervisor.engine.model.events import ErrorRecord

Frames = list[tuple[str, str, int]]

MAX_LAYERS = 32
MAX_LOG_LINES = 40
"""Of a message in a log: what follows it there may be anything."""
_BEGIN = "Traceback (most recent call last)"
_HEADER = re.compile(re.escape(_BEGIN))
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$")
_RANK_PREFIX = re.compile(r"^\[\w+\]: ?", re.MULTILINE)
"""torch prints `[rank0]: ` before each line (torch/distributed/distributed_c10d.py, _distributed_excepthook)."""
_GROUP_BAR = re.compile(r"^\s*\| ?", re.MULTILINE)
_GROUP_MEMBER = re.compile(r"^\s*\+[-+]{3,} \d+ -+$", re.MULTILINE)
_GROUP_END = re.compile(r"^\s*\+[-+]{3,}(?: \.\.\. -+)?\n?", re.MULTILINE)
"""How Python draws what an ExceptionGroup holds: bars before its lines, rules between its members, which may be without
a traceback of their own."""
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


class Relation(str, Enum):
    """How a layer belongs to the exception that ended the rank."""

    ITSELF = "itself"
    QUOTED = "quoted"
    """Its text holds the traceback: it happened in a worker, a child, or another rank."""
    CAUSE = "cause"
    """`raise … from` this."""
    CONTEXT = "context"
    """It was being handled; it may have nothing to do with the end."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One exception of a chain."""

    error: str
    """Its type, qualified where the text has it so."""
    message: str
    """Without the tracebacks that it quotes."""
    frames: Frames = []
    """Outermost first."""
    relation: Relation = Relation.ITSELF


class _Block:
    """One traceback in a text, while it is read."""

    def __init__(self) -> None:
        self.frames: Frames = []
        self.error = ""
        self.lines: list[str] = []

    def layer(self, relation: Relation) -> Layer:
        message = "\n".join(self.lines).strip()
        return Layer(error=self.error, message=message, frames=self.frames, relation=relation)


def layers_of(error: ErrorRecord) -> list[Layer]:
    """The exception itself first, then what it quotes, then what it was raised from, the nearest first."""
    groups = _groups(error.traceback)
    last = groups.pop()[1] if groups else []
    quoted = last[1:] or _quoted(error.message)
    own = Layer(error=error.error, message=_before_quotes(error.message), frames=error.frames or _frames(last))
    layers = [own, *(block.layer(Relation.QUOTED) for block in quoted)]
    is_context = False
    for relation, blocks in reversed(groups):
        # Whatever lies below something that was only being handled was only being handled, too.
        is_context = is_context or relation is Relation.CONTEXT
        layers += [block.layer(Relation.CONTEXT if is_context else Relation.CAUSE) for block in blocks]
    return [layer for layer in layers if layer.error or layer.message][:MAX_LAYERS]


def error_in_log(text: str) -> ErrorRecord | None:
    """The traceback that a log ends with, if it does: what a rank without hooks leaves. None where it holds none."""
    plain = _RANK_PREFIX.sub("", text)
    begin, groups = plain.find(_BEGIN), _groups(plain)
    if begin < 0 or not groups[-1][1][0].error:
        return None
    first = groups[-1][1][0]
    message = "\n".join(first.lines[:MAX_LOG_LINES]).strip()
    return ErrorRecord(error=first.error, message=message, traceback=plain[begin:], frames=first.frames)


def _groups(text: str) -> list[tuple[Relation, list[_Block]]]:
    """Tracebacks of a chain, oldest first: how each belongs to the next, and it with what it quotes."""
    groups: list[tuple[Relation, list[_Block]]] = []
    if "Exception Group Traceback" in text:
        text = _GROUP_BAR.sub("", _GROUP_END.sub("", _GROUP_MEMBER.sub(_BEGIN, text)))
    rest, relation = text, Relation.ITSELF
    while rest:
        ends = [(at, mark) for mark in (_CAUSE, _CONTEXT) if (at := rest.find(mark)) >= 0]
        at, mark = min(ends) if ends else (len(rest), "")
        blocks = _quoted(rest[:at])
        relation = {_CAUSE: Relation.CAUSE, _CONTEXT: Relation.CONTEXT}.get(mark, Relation.ITSELF)
        if blocks:
            groups.append((relation, blocks))
        rest = rest[at + len(mark) :]
    return groups


def _quoted(text: str) -> list[_Block]:
    """Each traceback in a text, in its order."""
    blocks: list[_Block] = []
    is_in_frames = False
    for line in text.splitlines():
        if _HEADER.search(line):
            blocks.append(_Block())
            is_in_frames = True
        elif not blocks:
            continue
        elif is_in_frames:
            is_in_frames = _read_frame(blocks[-1], line)
        else:
            blocks[-1].lines.append(line)
    return blocks


def _read_frame(block: _Block, line: str) -> bool:
    """Take a line below a traceback's header in. False where it is the exception, which ends the frames."""
    if match := _FRAME.match(line):
        block.frames.append((match[1], match[3], int(match[2])))
        return True
    if line.startswith((" ", "\t")) or not line.strip():
        return True
    if match := _EXCEPTION.match(line):
        block.error = match[1]
        block.lines.append(match[2] or "")
        return False
    block.lines.append(line)
    return False


def _before_quotes(message: str) -> str:
    """A message without the tracebacks in it."""
    match = _HEADER.search(message)
    if match is None:
        return message
    return message[: message.rfind("\n", 0, match.start()) + 1].strip()


def _frames(blocks: list[_Block]) -> Frames:
    return blocks[0].frames if blocks else []
