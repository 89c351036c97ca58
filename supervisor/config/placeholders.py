"""Placeholders in `resume_args` and `resume_env`: {path}, {step}, {dir}. Any other text in braces stays as it is."""

from __future__ import annotations

import re

PLACEHOLDERS = ("path", "step", "dir")

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def unknown_placeholders(text: str) -> list[str]:
    """The placeholders in text that nothing would be put in for, in order."""
    return [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]


def fill_placeholders(text: str, path: str, step: int, folder: str) -> str:
    """Put a checkpoint's path, step and folder in. What they contain is never looked at again for placeholders."""
    values = {"path": path, "step": str(step), "dir": folder}
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
