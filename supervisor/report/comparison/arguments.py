"""What differs between two command lines, option by option. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"-\.?\d")
_ASSIGNED = re.compile(r"\+{0,2}~?[A-Za-z_][\w./@-]*=")
POSITIONAL = ""
"""The name under which arguments stand that belong to no option."""
ABSENT = "(absent)"


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a rank runs, as the program (interpreter, its flags, script or module) and the script's own arguments."""
    place = 0
    if words and "python" in words[0].rpartition("/")[2]:
        place = 1
        while place < len(words) and words[place].startswith("-") and words[place] not in ("-m", "-c"):
            place += 2 if words[place] in ("-X", "-W") else 1
    if place < len(words) and words[place] in ("-m", "-c"):
        place += 1
    return list(words[: place + 1]), list(words[place + 1 :])


def group_options(words: Sequence[str]) -> dict[str, list[str]]:
    """Options with what follows each; `name=value` words are options, too. One that comes twice has both."""
    found: dict[str, list[str]] = {}
    name = POSITIONAL
    for word in words:
        if word.startswith("-") and len(word) > 1 and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
            name = POSITIONAL if equals else name
        elif name == POSITIONAL and _ASSIGNED.match(word):
            option, _, value = word.partition("=")
            found.setdefault(option, []).append(value)
        else:
            found.setdefault(name, []).append(word)
    return found


def diff_arguments(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, str, str]]:
    """(option, what it is in a, what it is in b) for each that is not the same; empty: the order alone differs."""
    of_a, of_b = group_options(a), group_options(b)
    return [
        (name or "arguments", _value(of_a, name), _value(of_b, name))
        for name in dict.fromkeys([*of_a, *of_b])
        if of_a.get(name) != of_b.get(name)
    ]


def _value(options: dict[str, list[str]], name: str) -> str:
    if name not in options:
        return ABSENT
    return " ".join(options[name]) or "(given)"
