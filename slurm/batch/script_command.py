"""What stands behind `guardctl sbatch … --`: flags of guardrun and torchrun, the script, its arguments. Pure.

Told apart by the rules of guardrun's own command line, without torch, which takes seconds to load. What a newer torch
knows beside this is taken for a flag without a value.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from guardrun.launcher.base.script_place import find_script
from guardrun.supervisor.config.load import FLAG_PREFIX, FLAGS

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
