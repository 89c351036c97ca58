"""The configuration's layers, read and laid over each other, the later one winning.

built-in defaults, the system's file, ./guardrun.toml (or [tool.guardrun] in ./pyproject.toml), --guard-config,
GUARDRUN_<TABLE>_<KEY>, --guard-<table>-<key>. All problems of all layers are collected and told at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.config.tables import TABLES, Config, ConfigError
from guardrun.supervisor.config.values import (
    KEYS,
    NotParsedError,
    TomlError,
    check_value,
    nearest,
    parse_text,
    read_toml_text,
)

SYSTEM_FILE = Path("/etc/guardrun/guardrun.toml")
PROJECT_FILES = ("guardrun.toml", "pyproject.toml")
PREFIX = "GUARDRUN_"
RESERVED = ("GUARDRUN_DIR", "GUARDRUN_RUN_ID", "GUARDRUN_HOOKS", "GUARDRUN_TOKEN", "GUARDRUN_AGENT_SOCKET")
RESERVED_PREFIX = "GUARDRUN_RESUME_"
FLAG_PREFIX = "--guard-"
OTHER_FLAGS = {
    "--max-restarts": ("restart", "max_restarts"),
    "--guard-preflight": ("preflight", "level"),
    "--guard-spares": ("fleet", "spares"),
    "--guard-join": ("fleet", "join"),
}
"""Flags that stand for a key without bearing its name: torchrun's own, and a short one."""

GONE = {
    r"hang\.\w+\.patience\.s": 'hang.sensitivity ("eager", "normal" or "patient") and hang.scale have taken its place',
    r"hang\.look\.(gap|every)\.s": "it is gone, as looks follow hang.floor_s",
    r"gc\.warmup\.steps": "it is gone: the warm-up is five steps",
}
"""Keys that there were, as dotted words, and what is to be known of each."""

VARIABLES = {f"{PREFIX}{table}_{key}".upper(): (table, key) for table, keys in KEYS.items() for key in keys}
FLAGS = {f"{FLAG_PREFIX}{table}-{key}".replace("_", "-"): (table, key) for table, keys in KEYS.items() for key in keys}


class _Pile:
    """The layers laid so far."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        self.origins = {f"{table}.{key}": "default" for table, keys in KEYS.items() for key in keys}
        self.warnings: list[str] = []
        self.problems: list[str] = []

    def put(self, table: str, key: str, value: Any, where: str, origin: str) -> None:
        """Lay one value over what was; where begins the sentence if it is no good."""
        converted, wrong = check_value(table, key, value)
        if wrong:
            self.problems.append(f"{where}: {wrong}")
            return
        self.values[table][key] = converted
        self.origins[f"{table}.{key}"] = origin

    def put_text(self, table: str, key: str, text: str, where: str) -> None:
        try:
            value = parse_text(table, key, text)
        except NotParsedError as error:
            self.problems.append(f"{where}: {error}")
            return
        self.put(table, key, value, where, where)

    def put_document(self, document: dict[str, Any], file: str, prefix: str = "") -> None:
        for table, keys in document.items():
            if table not in TABLES:
                self.problems.append(f"{file}: {_unknown_table(prefix, table, keys)}")
            elif not isinstance(keys, dict):
                self.problems.append(f"{file}: {prefix}{table}: expected a table, as in [{prefix}{table}]")
            else:
                self._put_table(table, keys, file, prefix)

    def _put_table(self, table: str, keys: dict[str, Any], file: str, prefix: str) -> None:
        for key, value in keys.items():
            if key in KEYS[table]:
                self.put(table, key, value, f"{file}: {prefix}{table}.{key}", file)
            else:
                hint = _replaced(f"{table}.{key}") or nearest(key, list(KEYS[table])) or _elsewhere(key)
                hint = hint or f"; valid keys: {', '.join(KEYS[table])}"
                self.problems.append(f"{file}: unknown key {prefix}{table}.{key}{hint}")


def load_config(
    cli_config: Path | None,
    flags: dict[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    system_file: Path = SYSTEM_FILE,
    *,
    why_no_project: str = "",
) -> Config:
    """The effective configuration.

    flags: by the name of the flag (`--guard-hang-floor-s`, `--max-restarts`) or by `table.key`; a value that is a
    string is read as one from the environment would be, None is as if the flag weren't there.
    why_no_project: why what lies in cwd is left out. Raises ConfigError, with every problem of every layer.
    """
    pile = _Pile()
    _put_file(pile, system_file, must_exist=False)
    if why_no_project:
        _leave_project(pile, cwd, why_no_project)
    else:
        _put_project(pile, cwd)
    if cli_config is not None:
        _put_file(pile, cwd / cli_config, must_exist=True)
    _put_environment(pile, environ)
    _put_flags(pile, flags)
    if pile.problems:
        raise ConfigError(pile.problems)
    config = msgspec.convert(pile.values, known_type(Config))
    config = msgspec.structs.replace(config, origins=pile.origins, warnings=pile.warnings)
    if 0 < config.hang.hard_timeout_s < config.hang.floor_s:
        config.warnings.append(
            f"hang.hard_timeout_s ({config.hang.hard_timeout_s:g}) is less than hang.floor_s ({config.hang.floor_s:g})"
        )
    return config


def _put_file(pile: _Pile, file: Path, must_exist: bool) -> None:
    document = _read_toml(pile, file, must_exist)
    if document is not None:
        pile.put_document(document, str(file))


def _put_project(pile: _Pile, cwd: Path) -> None:
    own, project = (cwd / name for name in PROJECT_FILES)
    tables = _read_project(pile, project)
    if not own.exists():
        if tables is not None:
            pile.put_document(tables, str(project), "tool.guardrun.")
        return
    _put_file(pile, own, must_exist=False)
    if tables is not None:
        pile.warnings.append(f"{project}: [tool.guardrun] is not used, because {own} is there")


def _leave_project(pile: _Pile, cwd: Path, why: str) -> None:
    left = [name for name in PROJECT_FILES if os.path.lexists(cwd / name)]
    if left[:1] == [PROJECT_FILES[0]]:  # a pyproject.toml alone need hold nothing of ours
        pile.warnings.append(f"{cwd / left[0]} is not gone by: {why}")


def _read_project(pile: _Pile, project: Path) -> dict[str, Any] | None:
    """[tool.guardrun]. Somebody else's broken pyproject.toml is only worth a warning: torchrun would not care."""
    try:
        text = project.read_text(encoding="utf-8")
        tables = read_toml_text(text).get("tool", {}).get("guardrun")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except TomlError as error:
        (pile.problems if "guardrun" in text else pile.warnings).append(f"{project}: not valid TOML: {error}")
        return None
    except (OSError, UnicodeDecodeError, AttributeError) as error:
        pile.warnings.append(f"{project}: not read: {error}")
        return None
    if tables is not None and not isinstance(tables, dict):
        pile.problems.append(f"{project}: tool.guardrun: expected a table, as in [tool.guardrun.hang]")
        return None
    return tables


def _read_toml(pile: _Pile, file: Path, must_exist: bool) -> dict[str, Any] | None:
    try:
        return read_toml_text(file.read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            pile.problems.append(f"{file}: no such file")
    except OSError as error:
        pile.problems.append(f"{file}: not readable: {error.strerror}")
    except UnicodeDecodeError as error:
        pile.problems.append(f"{file}: not valid TOML: not UTF-8 at byte {error.start}")
    except TomlError as error:
        pile.problems.append(f"{file}: not valid TOML: {error}")
    return None


def _put_environment(pile: _Pile, environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or name.startswith(RESERVED_PREFIX):
            continue
        if name in VARIABLES:
            pile.put_text(*VARIABLES[name], environ[name], name)
        else:
            hint = _replaced(name) or _nearest_after(PREFIX, name, list(VARIABLES))
            pile.warnings.append(f"{name}: guardrun knows no such environment variable{hint}")


def _put_flags(pile: _Pile, flags: dict[str, Any]) -> None:
    for flag, value in flags.items():
        if value is None:
            continue
        name = flag.replace("_", "-") if flag.startswith("--") else f"{FLAG_PREFIX}{flag}".translate({46: 45, 95: 45})
        target = FLAGS.get(name) or OTHER_FLAGS.get(name)
        if target is None:
            hint = _replaced(name) or _nearest_after(FLAG_PREFIX, name, list(FLAGS))
            pile.problems.append(f"unknown flag {name}{hint}")
        elif isinstance(value, str):
            pile.put_text(*target, value, name)
        else:
            pile.put(*target, value, name, name)


def _nearest_after(prefix: str, word: str, choices: list[str]) -> str:
    """As nearest, without the prefix that all share, which would make anything near."""
    full = {choice[len(prefix) :].lower(): choice for choice in choices}
    hint = nearest(word[len(prefix) :], list(full))
    return next((hint.replace(f" {short}?", f" {name}?") for short, name in full.items() if f" {short}?" in hint), "")


def _unknown_table(prefix: str, table: str, value: Any) -> str:
    if isinstance(value, dict):
        valid = ", ".join(f"[{prefix}{name}]" for name in TABLES)
        return f"unknown table [{prefix}{table}]{nearest(table, list(TABLES)) or f'; valid tables: {valid}'}"
    return f"unknown key {prefix}{table}: keys stand in a table{_elsewhere(table)}"


def _replaced(name: str) -> str:
    """What has taken the place of a key, variable or flag that there is no more."""
    words = re.sub(r"\W|_", ".", name.lower())
    return next((f"; {what}" for pattern, what in GONE.items() if re.search(rf"\b{pattern}$", words)), "")


def _elsewhere(key: str) -> str:
    """`; did you mean hang.floor_s?` for a key that another table has."""
    homes = {name: f"{table}.{name}" for table, keys in KEYS.items() for name in keys}
    hint = nearest(key, list(homes))
    return next((f"; did you mean {full}?" for name, full in homes.items() if hint == f"; did you mean {name}?"), "")
