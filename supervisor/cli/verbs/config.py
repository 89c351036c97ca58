"""`guardctl config`: the effective configuration, and where each value is from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, find_run, guard_dir, read_run
from guardrun.supervisor.config import ConfigError, load_config


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guard-config", metavar="FILE", help="as for guardrun")
    parser.add_argument(
        "--run", metavar="RUN", help="what a run was started with, in place of what one started now gets"
    )


def _run(call: Call) -> int:
    arguments = call.arguments
    directory = guard_dir(arguments.guard_dir, call.environ, call.cwd)
    if arguments.run is not None:
        run_dir = find_run(arguments.run, directory, call.cwd)
        recorded = dict(read_run(run_dir).config)
        origins = recorded.pop("origins", {})
        warnings: list[str] = []
    else:
        run_dir = directory / "RUN"
        try:
            config = load_config(
                Path(arguments.guard_config) if arguments.guard_config else None, {}, call.environ, call.cwd
            )
        except ConfigError as error:
            raise CtlError("\n".join(error.problems)) from None
        recorded, origins, warnings = config.as_dict(), config.origins, config.warnings
    environment = _environment(recorded, run_dir, call)
    if call.out.is_json:
        call.out.json({"config": recorded, "origins": origins, "environment": environment, "warnings": warnings})
    else:
        _print(call.out, recorded, origins, environment, warnings)
    return OK


def _environment(config: dict[str, Any], run_dir: Path, call: Call) -> dict[str, dict[str, str]]:
    """What the ranks get in their environment by default: name → value, and origin (guardrun or environment)."""
    try:
        from guardrun.launcher.base.rank_environment import DEFAULTS, Subject, rank_defaults
    except ImportError:  # a part of guardrun that needs torch, and there is none: the rest can still be shown
        return {}
    subject = Subject(
        hard_timeout_s=float(config.get("hang", {}).get("hard_timeout_s", 0.0)),
        run_dir=run_dir,
        attempt=None,
        is_torchrun_agent=config.get("launcher", {}).get("agent") == "torchrun",
    )
    found = {name: {"value": value, "origin": "guardrun"} for name, value in rank_defaults(subject, {}).items()}
    chosen = rank_defaults(subject, call.environ)
    for default in DEFAULTS:
        for name in (*default.names, *default.old_names):
            if name in call.environ:
                found[name] = {"value": call.environ[name], "origin": "environment"}
            elif name in found and name not in chosen:
                del found[name]  # the user has set its alias
    return dict(sorted(found.items()))


def _print(
    out: Output,
    config: dict[str, Any],
    origins: dict[str, str],
    environment: dict[str, dict[str, str]],
    warnings: list[str],
) -> None:
    rows = [
        (f"{table}.{key}", _toml(value), origins.get(f"{table}.{key}", ""))
        for table, keys in config.items()
        for key, value in keys.items()
    ]
    out.table(("Key", "Value", "From"), rows, ["dim" if row[2] == "default" else "" for row in rows])
    if environment:
        out.line()
        out.table(
            ("Variable", "Value for the ranks", "From"),
            [(name, entry["value"], entry["origin"]) for name, entry in environment.items()],
        )
    for warning in warnings:
        out.line(f"warning: {warning}", "yellow")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }" if value else "{}"
    return json.dumps(value, ensure_ascii=False)


VERB = Verb("config", "the effective configuration and where each value is from", _add_arguments, _run)
