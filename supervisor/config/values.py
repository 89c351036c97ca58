"""Is a value what its key wants? TOML is read, placeholders are known; problems come back as sentences. Pure."""

from __future__ import annotations

import difflib
import math
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.config.tables import TABLES
from guardrun.supervisor.health.base.findings import KEYS as RESPONSE_KEYS
from guardrun.supervisor.health.base.findings import Response, is_key

# Placeholders -------------------------------------------------------------------------------------------------------
# Placeholders in `resume_args` and `resume_env`: {path}, {step}, {dir}. Any other text in braces stays as it is.


PLACEHOLDERS = ("path", "step", "dir")

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def unknown_placeholders(text: str) -> list[str]:
    """The placeholders in text that nothing would be put in for, in order."""
    return [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]


def fill_placeholders(text: str, path: str, step: int, folder: str) -> str:
    """Put a checkpoint's path, step and folder in. What they contain is never looked at again for placeholders."""
    values = {"path": path, "step": str(step), "dir": folder}
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


# TOML ---------------------------------------------------------------------------------------------------------------
# TOML's reader: the standard library's, or before Python 3.11 tomli, which it was made from.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TomlError = tomllib.TOMLDecodeError


def read_toml_text(text: str) -> dict[str, Any]:
    """Raises TomlError, whose message has line and column."""
    return tomllib.loads(text)


# Values -------------------------------------------------------------------------------------------------------------


_UNCAUGHT = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)
RESPONSE_NAMES = [response.value for response in Response]
KEYS: dict[str, dict[str, Any]] = {
    name: {field: get_type_hints(table, include_extras=True)[field] for field in table.__struct_fields__}
    for name, table in TABLES.items()
}
"""table → key → type, with its range."""

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list[str]: 'a list of strings, as in ["a", "b"]',
    Literal["auto"] | bool: '"auto" or false',
    bool | list[str]: 'true, false, or a list of strings, as in ["a", "b"]',
    dict[str, str]: 'a table of strings, as in { NAME = "value" }',
}


class NotParsedError(ValueError):
    """A text is no value of the kind that is wanted."""


def expected(key_type: Any) -> str:
    """What a key wants, in words."""
    base, ranges = _split(key_type)
    if choices := _choices(base):
        return " or ".join(f'"{choice}"' for choice in choices)
    words = _WORDS[base]
    for range_ in ranges:
        if range_.ge is not None:
            words += f", {range_.ge:g} to {range_.le:g}" if range_.le is not None else f", {range_.ge:g} or more"
        if range_.gt is not None:
            words += f" greater than {range_.gt:g}"
    return words


def check_value(table: str, key: str, value: Any) -> tuple[Any, str]:
    """The value as its key holds it, and what is wrong with it (empty: nothing)."""
    key_type = KEYS[table][key]
    wrong = f"expected {expected(key_type)}, got {describe(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return value, wrong
    try:
        converted = msgspec.convert(value, known_type(key_type), strict=True)
    except (msgspec.ValidationError, OverflowError):
        base, _ = _split(key_type)
        return value, wrong + nearest(value, _choices(base))
    if (table, key) == ("preemption", "signals") and (problem := _check_signals(converted)):
        return converted, problem
    return converted, _check_placeholders(key, converted) or _check_responses(key, converted) or _check_nul(converted)


def describe(value: Any) -> str:
    """A value as TOML would have it, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the string "{value[:60]}"'
    if isinstance(value, list):
        return "a list" if all(isinstance(item, str) for item in value) else "a list that holds more than strings"
    if isinstance(value, dict):
        return "a table" if all(isinstance(item, str) for item in value.values()) else "a table of more than strings"
    return f"{value}"[:60]


def nearest(word: Any, choices: list[str]) -> str:
    """` (did you mean …?)`, or nothing where nothing is near."""
    close = difflib.get_close_matches(str(word).lower(), choices, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def parse_text(table: str, key: str, text: str) -> Any:
    """Read a value from the environment or a flag: TOML, or plain text where the key wants that.

    Raises NotParsedError.
    """
    base, _ = _split(KEYS[table][key])
    parsers: dict[Any, Callable[[str], Any]] = {
        bool: _parse_bool,
        Literal["auto"] | bool: _parse_bool,
        list[str]: _parse_words,
        bool | list[str]: _parse_bool_or_words,
    }
    if base is str or _choices(base):
        value = _parse_toml(text)
        return value if isinstance(value, str) else text
    if parser := parsers.get(base):
        return parser(text)
    value = _parse_toml(text)
    if value is None:
        raise NotParsedError(f"expected {expected(KEYS[table][key])}, got {describe(text)}")
    return value


def _parse_toml(text: str) -> Any:
    """The value, or None where text is no TOML value (TOML has no null)."""
    try:
        document = read_toml_text(f"value = {text.strip()}")
    except TomlError:
        return None
    return document["value"] if set(document) == {"value"} else None


def _parse_bool(text: str) -> Any:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    return known.get(text.strip().lower(), text)


def _parse_bool_or_words(text: str) -> Any:
    value = _parse_bool(text)
    return value if isinstance(value, bool) else _parse_words(text)


def _parse_words(text: str) -> Any:
    """A TOML list, else words as a shell has them."""
    value = _parse_toml(text)
    if isinstance(value, list):
        return value
    if text.lstrip().startswith("["):
        raise NotParsedError(f"this is not a valid TOML list: {text[:60]}")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise NotParsedError(f"expected a TOML list or words as a shell has them, got {text[:60]} ({error})") from None


def _split(key_type: Any) -> tuple[Any, list[Meta]]:
    if hasattr(key_type, "__metadata__"):
        return key_type.__origin__, [item for item in key_type.__metadata__ if isinstance(item, Meta)]
    return key_type, []


def _choices(base: Any) -> list[str]:
    return [] if get_origin(base) is not Literal else [str(choice) for choice in get_args(base)]


def _check_placeholders(key: str, value: Any) -> str:
    if key not in ("resume_args", "resume_env"):
        return ""
    texts = value if isinstance(value, list) else list(value.values())
    unknown = [name for text in texts for name in unknown_placeholders(text)]
    if not unknown:
        return ""
    # Compared without their braces, which would make any two names alike; shown with them.
    hint = nearest(unknown[0], list(PLACEHOLDERS))
    for name in PLACEHOLDERS:
        hint = hint.replace(f" {name}?", f" {{{name}}}?")
    return f"unknown placeholder {_braced(unknown)}; there are {_braced(PLACEHOLDERS)}{hint}"


def _check_signals(names: list[str]) -> str:
    known = [signum.name.removeprefix("SIG") for signum in signal.Signals if signum not in _UNCAUGHT]
    for name in names:
        if name.removeprefix("SIG") not in known:
            return f"no signal that can be handled: {describe(name)}{nearest(name.removeprefix('SIG'), known)}"
    return ""


_STOPPING_NOTHING = {
    "straggler": "a slow rank stops no run",
    "replica_divergence": '[guards] divergence = "stop" ends the run',
}
"""Causes for which nothing is restarted: why."""


def _check_responses(key: str, value: Any) -> str:
    if key != "responses":
        return ""
    for name, response in value.items():
        if not is_key(name):
            hint = nearest(name, list(RESPONSE_KEYS)) or f"; there are {', '.join(RESPONSE_KEYS)} and gpu_xid_NUMBER"
            return f"unknown cause {name[:60]}{hint}"
        if name in _STOPPING_NOTHING and response == "restart":
            return f'{name}: {_STOPPING_NOTHING[name]}; expected "note" or "isolate", got "restart"'
        if response not in RESPONSE_NAMES:
            names = " or ".join(f'"{known}"' for known in RESPONSE_NAMES)
            return f"{name}: expected {names}, got {describe(response)}{nearest(response, RESPONSE_NAMES)}"
    return ""


def _braced(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _check_nul(value: Any) -> str:
    """No argument, path or environment variable can hold a NUL character; a name no `=` either."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if isinstance(value, dict):
        texts = [*value, *value.values()]
        bad = [name for name in value if not name or "=" in name]
        if bad:
            return f"{bad[0]!r} is no name of an environment variable"
    return "a NUL character can't be passed on" if any("\0" in text for text in texts) else ""
