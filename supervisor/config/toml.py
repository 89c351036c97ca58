"""TOML's reader: the standard library's, or before Python 3.11 tomli, which it was made from."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TomlError = tomllib.TOMLDecodeError


def read_toml_text(text: str) -> dict[str, Any]:
    """Raises TomlError, whose message has line and column."""
    return tomllib.loads(text)
