"""Names of nodes as Slurm writes them: `n[1-3,07-11],gpu-a` ↔ n1, n2, n3, n07, …, n11, gpu-a."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MAX_HOSTS = 65536
"""Slurm's own limit for one expression (MAX_RANGE, src/common/hostlist.c)."""

_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class HostlistError(ValueError):
    """What in the expression is no list of nodes; one sentence."""


def parse_hostlist(text: str) -> list[str]:
    """The nodes that an expression names, in its order, as `scontrol show hostnames` has them.

    Raises HostlistError, also for more than MAX_HOSTS.
    """
    hosts: list[str] = []
    for word in split_hostlist(text):
        hosts += _expand(word, MAX_HOSTS - len(hosts))
    return hosts


def split_hostlist(text: str) -> list[str]:
    """The expression's words: split at commas outside of brackets. Raises HostlistError."""
    words: list[str] = []
    word, is_inside = "", False
    for character in text.strip():
        if character == "[" and is_inside:
            raise HostlistError(f"node list {_shown(text)}: a '[' within brackets")
        if character == "]" and not is_inside:
            raise HostlistError(f"node list {_shown(text)}: a ']' without its '['")
        is_inside = character == "[" or (is_inside and character != "]")
        if character == "," and not is_inside:
            words.append(word)
            word = ""
        else:
            word += character
    if is_inside:
        raise HostlistError(f"node list {_shown(text)}: a '[' without its ']'")
    return [one for one in (*words, word) if one]


def _expand(word: str, room: int) -> list[str]:
    """One word's hosts; several brackets are nested loops, the first the outermost."""
    choices: list[list[str]] = []
    count, end = 1, 0
    for match in _PART.finditer(word):
        if match.start() != end:
            break
        end = match.end()
        part = match.group()
        values = _expand_brackets(part[1:-1], word, room) if part.startswith("[") else [part]
        count *= len(values)
        if count > room:
            raise HostlistError(f"node list {_shown(word)}: more than {MAX_HOSTS} nodes")
        choices.append(values)
    if end != len(word):
        raise HostlistError(f"node list {_shown(word)}: {word[end]!r} is no part of a node's name")
    return ["".join(parts) for parts in product(*choices)]


def _expand_brackets(text: str, word: str, room: int) -> list[str]:
    values: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise HostlistError(f"node list {_shown(word)}: {piece!r} is no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise HostlistError(f"node list {_shown(word)}: {piece} runs backwards")
        if int(last) - int(first) >= room - len(values):
            raise HostlistError(f"node list {_shown(word)}: more than {MAX_HOSTS} nodes")
        # The width is the first number's: 07-11 is 07 … 11, 7-11 is 7 … 11.
        values += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return values


def join_hosts(hosts: Iterable[str]) -> str:
    """Nodes for an option of Slurm's: each once, in this order, separated by commas."""
    return ",".join(dict.fromkeys(hosts))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
