"""Keeping what looks like a secret out of the run's files."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_SECRET = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|credential|private[-_]?key|auth)s?$"
)
_URL_PASSWORD = re.compile(r"(\w+://[^/\s:@]+:)[^@/\s]+@")


def looks_secret(name: str) -> bool:
    """Say whether a flag, key or variable of this name holds a secret: HF_TOKEN does, --tokenizer doesn't."""
    return _SECRET.search(name) is not None


def hide_in_arguments(arguments: list[str]) -> list[str]:
    """The arguments with the values of secret-looking flags hidden, and passwords in addresses."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        hide_next = argument.startswith("-") and not equals and looks_secret(name)
        hidden = f"{name}={HIDDEN}" if equals and looks_secret(name) else argument
        shown.append(_URL_PASSWORD.sub(rf"\1{HIDDEN}@", hidden))
    return shown


def hide_in_values(value: Any, name: str = "") -> Any:
    """Nested tables and lists with the values of secret-looking keys hidden."""
    if isinstance(value, dict):
        return {key: hide_in_values(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return hide_in_arguments(value) if all(isinstance(item, str) for item in value) else value
    return HIDDEN if isinstance(value, str) and value and looks_secret(name) else value
