"""Leave secrets out of what is recorded: names are kept, values that look like secrets are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "(not recorded)"

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|(?:^|_)(?:PWD|PAT|SAS|DSN)(?:_|$)"
    r"|CONNECTION_STRING|WEBHOOK",
    re.IGNORECASE,
)
_NOT_SECRET = frozenset(
    {"PWD", "OLDPWD", "GUARDRUN_TOKEN", "KEYBOARD", "XAUTHORITY", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"}
)
"""Names that only look it. GUARDRUN_TOKEN marks the run's processes and opens nothing."""
_SECRET_OPTION = re.compile(
    r"(?:^|[-_.])(?:api|access|secret|private|auth|encryption|wandb|hf)?[-_]?"
    r"(?:key|token|secret|password|passwd|passphrase|credentials?|auth)$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
_SECRET_VALUE = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[A-Z0-9]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)
"""Shapes that services give their keys, so that one is known without its name."""


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or key should not be recorded, by its name."""
    return name.upper() not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def redact_values(value: Any, name: str = "") -> Any:
    """Nested tables and lists without the values of secret-looking keys; lists of words as command lines."""
    if isinstance(value, dict):
        return {key: redact_values(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return redact_argv(value) if all(isinstance(item, str) for item in value) else value
    if not isinstance(value, str):
        return value
    return HIDDEN if value and is_secret_name(name) else redact_text(value)


def redact_text(text: str) -> str:
    """Text without passwords in URLs and without what has the shape of a known service's key."""
    return _SECRET_VALUE.sub(HIDDEN, _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text))


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--api-key X`, `--api-key=X`, `NAME_TOKEN=X`, `https://me:X@host`."""
    kept: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("-")
        is_secret = _is_secret_option(name) if is_option else bool(equals) and _is_secret_assignment(name)
        if hide_next and not is_option:
            kept.append(HIDDEN)
        elif is_secret and equals:
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(redact_text(word))
        hide_next = is_secret and is_option and not equals
    return kept


def _is_secret_option(name: str) -> bool:
    return bool(_SECRET_OPTION.search(name.lstrip("-")))


def _is_secret_assignment(name: str) -> bool:
    """`WANDB_API_KEY=…` (an environment's) or `logger.api_key=…` (hydra's), but not `--lr=…` or a sentence."""
    return name.replace(".", "_").replace("+", "").isidentifier() and (
        is_secret_name(name) if name.isupper() else _is_secret_option(name)
    )
