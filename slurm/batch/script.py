"""A batch script from guardrun.sbatch: its `#SBATCH` lines and its few variables are filled, the rest stays. Pure."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from guardrun.launcher.base.script_place import find_script
from guardrun.supervisor.config.load import FLAG_PREFIX, FLAGS

# Script command -----------------------------------------------------------------------------------------------------
# What stands behind `guardctl sbatch … --`: flags of guardrun and torchrun, the script, its arguments.
#
# Told apart by the rules of guardrun's own command line, without torch, which takes seconds to load. What a newer torch
# knows beside this is taken for a flag without a value.


TORCH_VALUES = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr", "max-restarts"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "monitor-interval", "start-method", "role"),
    *("event-log-handler", "log-dir", "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters"),
    *("duplicate-stderr-filters", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
)
TORCH_SWITCHES = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}
GUARD_VALUES = ("guard-config", "guard-dir", "guard-run-id", "guard-preflight", "guard-spares", "guard-join")
GUARD_SWITCHES = ("guard-off", "guard-ignore-quarantine", "guard-version")


class Given(NamedTuple):
    """The part that a batch script depends on; empty where it was not given."""

    script: str = ""
    is_file: bool = False
    """The script is looked for as a file: neither a module (-m), nor a program (--no-python), nor standard input."""
    nnodes: str = ""
    nproc_per_node: str = ""
    node_rank: str = ""
    spares: str = ""
    run_dir: str = ""
    """--guard-dir."""
    run_id: str = ""
    is_standalone: bool = False
    is_off: bool = False
    unknown: tuple[str, ...] = ()
    """Flags of guardrun's that it does not know."""
    trouble: str = ""
    """Why guardrun would refuse all of it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def make_parser() -> argparse.ArgumentParser:
    """Every flag, and whether it takes a value: that is all it knows of them."""
    parser = _Parser(add_help=False)
    for name in (*TORCH_VALUES, *GUARD_VALUES, *(flag.removeprefix("--") for flag in FLAGS)):
        parser.add_argument(*_spellings(name), dest=name)
    for name in (*TORCH_SWITCHES, *GUARD_SWITCHES, "help"):
        parser.add_argument(*_spellings(name), dest=name, action="store_true")
    return parser


def read_command(words: Sequence[str]) -> Given:
    """What of it matters."""
    parser = make_parser()
    place = find_script(parser, words)
    try:
        found, unknown = parser.parse_known_args(list(words if place is None else words[:place]))
    except ValueError as error:
        return Given(trouble=str(error))
    flags = vars(found)
    text = {name: value or "" for name, value in flags.items() if not isinstance(value, bool)}
    script = "" if place is None else words[place]
    return Given(
        script=script,
        is_file=_is_file(script, flags),
        nnodes=text["nnodes"],
        nproc_per_node=text["nproc-per-node"],
        node_rank=text["node-rank"],
        spares=text["guard-spares"] or text["guard-fleet-spares"],
        run_dir=text["guard-dir"],
        run_id=text["guard-run-id"],
        is_standalone=flags["standalone"],
        is_off=flags["guard-off"],
        unknown=tuple(word for word in unknown if word.startswith(FLAG_PREFIX)),
    )


def _is_file(script: str, flags: Mapping[str, Any]) -> bool:
    is_program = flags["no-python"] and not flags["run-path"]
    return script not in ("", "-") and not flags["module"] and not is_program


def _spellings(name: str) -> list[str]:
    """torchrun takes both."""
    short = [SHORT[name]] if name in SHORT else ["-h"] if name == "help" else []
    both = {f"--{name}", f"--{name.replace('-', '_')}"} if not name.startswith("guard-") else {f"--{name}"}
    return [*short, *sorted(both)]


# Script -------------------------------------------------------------------------------------------------------------


TEMPLATE = "guardrun.sbatch"
SIGNAL = "USR2@180"
"""Three minutes, of which Slurm may take one: enough for the checkpoints of most, and little of a day."""

_OPTION = re.compile(r"##?SBATCH --(?P<name>[a-z-]+)(=.*)?")
_VARIABLE = re.compile(r"(?P<name>[A-Z_]+)=.*")
_PLAIN = re.compile(r"[^\s\"'\\\\#]+")
_COMMAND = "    train.py"


class JobWish(NamedTuple):
    """What a job is to be."""

    command: tuple[str, ...]
    """The script and its arguments; more flags of guardrun may stand before it."""
    nodes: int = 1
    """That train."""
    spares: int = 0
    ranks: str = "auto"
    """--nproc-per-node, in torchrun's ways to say it."""
    name: str = "train"
    guardrun: str = "guardrun"
    """The program."""
    options: Mapping[str, str | None] = {}
    """Of sbatch, by long name: a value, empty for an option without one; None takes it out of the template."""


class ScriptError(ValueError):
    """What cannot stand in a batch script; one sentence."""


def read_template() -> str:
    """The template as it is installed."""
    return (Path(__file__).parents[1] / TEMPLATE).read_text(encoding="utf-8")


def render(wish: JobWish, template: str) -> str:
    """The batch script. Raises ScriptError."""
    options = {
        "job-name": wish.name,
        "nodes": str(wish.nodes + wish.spares),
        "no-kill": "" if wish.nodes + wish.spares > 1 else None,
    } | dict(wish.options)
    variables = {
        "NODES": str(wish.nodes),
        "SPARES": str(wish.spares),
        "RANKS": shlex.quote(wish.ranks),
        "GUARDRUN": shlex.quote(wish.guardrun),
    }
    given = read_command(wish.command)
    if given.run_dir:
        variables["RUNS"] = shlex.quote(given.run_dir)
    if given.run_id:
        variables["RUN_ID"] = shlex.quote(given.run_id)
    _check([*wish.command, *(value for value in options.values() if value), wish.ranks, wish.guardrun])
    lines, last = _fill(template.splitlines(), options, variables, wish.command)
    known = {match["name"] for line in template.splitlines() if (match := _OPTION.fullmatch(line))}
    more = [_option(name, value) for name, value in options.items() if name not in known and value is not None]
    lines[last + 1 : last + 1] = more
    return "\n".join(lines) + "\n"


def _fill(
    template: Sequence[str], options: Mapping[str, str | None], variables: Mapping[str, str], command: Sequence[str]
) -> tuple[list[str], int]:
    """The filled lines, and the index of the last that is an option."""
    lines: list[str] = []
    remarks: list[str] = []
    """Read, and not yet written: those above an option go where it goes."""
    last = 0
    for line in template:
        if line.startswith("# "):
            remarks.append(line)
        elif match := _OPTION.fullmatch(line):
            if filled := _fill_option(line, match["name"], options):
                lines += [*remarks, filled]
                last = len(lines) - 1
            remarks = []
        else:
            lines += [*remarks, _fill_line(line, variables, command)]
            remarks = []
    return lines, last


def _fill_option(line: str, name: str, options: Mapping[str, str | None]) -> str:
    """The option's line; empty where it is not wanted: said so, or only shown in the template."""
    if name not in options:
        return "" if line.startswith("##") else line
    value = options[name]
    return "" if value is None else _option(name, value)


def _fill_line(line: str, variables: Mapping[str, str], command: Sequence[str]) -> str:
    match = _VARIABLE.fullmatch(line)
    if match and match["name"] in variables:
        return f"{match['name']}={variables[match['name']]}"
    return f"    {shlex.join(command)}" if line == _COMMAND else line


def _option(name: str, value: str) -> str:
    if not value:
        return f"#SBATCH --{name}"
    return f"#SBATCH --{name}={value if _PLAIN.fullmatch(value) else _quoted(value)}"


def _quoted(value: str) -> str:
    """As sbatch reads it: double quotes, a backslash before those within."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check(texts: Sequence[str]) -> None:
    for text in texts:
        if any(not c.isprintable() for c in text):
            raise ScriptError(f"{text[:60]!r} cannot stand in a batch script: it holds a line break or the like")
