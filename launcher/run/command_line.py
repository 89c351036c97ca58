"""The command line: torch's own parser, with guardrun's flags in a group of their own.

guardrun's flags are options of the same parser, so that whatever torch's parser knows (values, abbreviations, where
the script begins) holds for them too. What follows the script is never looked at.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from guardrun import __version__
from guardrun.launcher.base.script_place import find_script
from guardrun.supervisor.config.load import FLAG_PREFIX, FLAGS
from guardrun.supervisor.config.values import nearest

_DEST_PREFIX = "guard_"
_CONFIG_DEST_PREFIX = "guard_key:"


@dataclass(frozen=True)
class Flags:
    """A parsed command line."""

    torch: argparse.Namespace
    """What torchrun's parser would have returned."""
    is_max_restarts_given: bool
    """By flag or by PET_MAX_RESTARTS."""
    is_node_rank_given: bool = True
    """By flag or by PET_NODE_RANK."""
    is_master_given: bool = True
    """Likewise, --master-addr."""
    config: Path | None = None
    dir: Path | None = None
    run_id: str | None = None
    is_off: bool = False
    is_quarantine_ignored: bool = False
    keys: dict[str, str] | None = None
    """`--guard-TABLE-KEY` flags, and short ones, as load_config takes them."""

    def for_config(self) -> dict[str, Any]:
        """The flags that stand for keys of the configuration."""
        flags: dict[str, Any] = dict(self.keys or {})
        if self.is_max_restarts_given:
            flags["--max-restarts"] = self.torch.max_restarts
        return flags


def parse_flags(arguments: Sequence[str], make_parser: Callable[[], argparse.ArgumentParser]) -> Flags:
    """Parse guardrun's and torchrun's flags.

    make_parser: torch.distributed.run.get_args_parser.
    Raises SystemExit as argparse does: 2 with a message for a user's mistake, 0 for --help.
    """
    parser = make_parser()
    parser.prog = "guardrun"
    usage = parser.format_usage().partition("guardrun")[2].rstrip()
    parser.usage = "%(prog)s [--guard-… …]" + usage.replace("%", "%%")  # guardrun's own are in the help, in a group
    restarts = _forget_default(parser, "max_restarts")
    node_rank = _forget_default(parser, "node_rank")
    master = _forget_default(parser, "master_addr")
    _add_guard_flags(parser)
    place = find_script(parser, arguments)
    shown = arguments if place is None else arguments[: place + 1]
    namespace, unknown = parser.parse_known_args(list(shown))
    if unknown:
        _refuse(parser, unknown)
    namespace.training_script_args = [] if place is None else list(arguments[place + 1 :])
    is_given = namespace.max_restarts is not None
    if not is_given:
        namespace.max_restarts = restarts
    is_node_rank_given = namespace.node_rank is not None
    if not is_node_rank_given:
        namespace.node_rank = node_rank
    is_master_given = namespace.master_addr is not None
    if not is_master_given:
        namespace.master_addr = master
    own = {name: namespace.__dict__.pop(name) for name in list(vars(namespace)) if name.startswith(_DEST_PREFIX)}
    return Flags(
        torch=namespace,
        is_max_restarts_given=is_given,
        is_node_rank_given=is_node_rank_given,
        is_master_given=is_master_given,
        config=own["guard_config"],
        dir=own["guard_dir"],
        run_id=own["guard_run_id"],
        is_off=own["guard_off"],
        is_quarantine_ignored=own["guard_ignore_quarantine"],
        keys={
            name[len(_CONFIG_DEST_PREFIX) :]: value
            for name, value in own.items()
            if name.startswith(_CONFIG_DEST_PREFIX) and value is not None
        },
    )


def _forget_default(parser: argparse.ArgumentParser, dest: str) -> Any:
    """Take an option's built-in default away, so that not given can be told from given; PET_* counts as given."""
    default = parser.get_default(dest)
    if f"PET_{dest.upper()}" not in os.environ:
        parser.set_defaults(**{dest: None})
    return default


def _add_guard_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("guardrun", "guardrun's own flags; they stand before the script")
    group.add_argument("--guard-config", type=Path, metavar="FILE", help="a configuration file (TOML)")
    group.add_argument("--guard-dir", type=Path, metavar="DIR", help="where runs are kept (default: guardrun-runs)")
    group.add_argument("--guard-run-id", metavar="ID", help="this run's name; one that is unfinished is continued")
    group.add_argument(
        "--guard-preflight",
        dest=_CONFIG_DEST_PREFIX + "--guard-preflight",
        metavar="LEVEL",
        help="what is looked at before the first attempt: off, quick (the default) or full",
    )
    group.add_argument(
        "--guard-spares",
        dest=_CONFIG_DEST_PREFIX + "--guard-spares",
        metavar="K",
        help="nodes beyond those of --nnodes, which wait to take the place of one that is left out",
    )
    group.add_argument(
        "--guard-join",
        dest=_CONFIG_DEST_PREFIX + "--guard-join",
        metavar="FILE",
        help="where the head says how to reach it; only needed where the nodes share no folder of runs",
    )
    group.add_argument("--guard-ignore-quarantine", action="store_true", help="run on a quarantined node all the same")
    group.add_argument("--guard-off", action="store_true", help="plain torchrun, nothing else")
    group.add_argument("--guard-version", action="version", version=f"guardrun {__version__}")
    for flag, (table, key) in FLAGS.items():
        group.add_argument(flag, dest=_CONFIG_DEST_PREFIX + flag, metavar="VALUE", help=f"as [{table}] {key}")


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    ours = next((word.partition("=")[0] for word in unknown if word.startswith(FLAG_PREFIX)), None)
    if ours is None:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    valid = [flag for action in parser._actions for flag in action.option_strings if flag.startswith(FLAG_PREFIX)]
    short = {flag[len(FLAG_PREFIX) :]: flag for flag in valid}
    hint = nearest(ours[len(FLAG_PREFIX) :], list(short))
    for name, flag in short.items():
        hint = hint.replace(f" {name}?", f" {flag}?")
    parser.error(f"unknown flag {ours}{hint or '; guardrun --help lists them'}")
