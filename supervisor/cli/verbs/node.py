"""`guardctl node`: which nodes are quarantined, by whom and why; isolating one, and releasing it."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, read_config, this_node
from guardrun.supervisor.cli.verbs import node_history
from guardrun.supervisor.cli.views import node_view
from guardrun.supervisor.config import Config
from guardrun.supervisor.health.quarantine_rules import MACHINES, Isolation, Record, counting, end_of, holding
from guardrun.supervisor.quarantine.record_places import Place, absolute_folders, find_places, names_here
from guardrun.supervisor.quarantine.records import Written, isolate_node, read_all, read_node, release_node
from guardrun.supervisor.report.elements.quantities import iso_time, parse_iso_time

DEFAULT_CAUSE = "manual"
_CAUSE = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_DURATION = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m(?:in)?)?\s*(?:(\d+)s)?")


class _World(NamedTuple):
    """What the verbs below stand on."""

    here: str
    """This node's name."""
    is_cluster: bool
    """There is a folder that all nodes see."""
    config: Config
    call: Call
    now_wall_s: float

    def places(self, node: str) -> list[Place]:
        return places_of(self.config, self.call, node)


def places_of(config: Config, call: Call, node: str) -> list[Place]:
    """Where a node's record is kept, as this configuration has it."""
    folders = absolute_folders(config.node.state_dir, config.node.shared_dir, call.cwd)
    return find_places(*folders, call.environ, node)


def person(call: Call) -> str:
    """Who is at the keyboard: with sudo the one who called it. Never a name of guardrun's own."""
    name = call.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""
    if not name:
        try:
            name = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # no name for this number, as in many containers
            name = f"uid {os.geteuid()}"
    return f"user {name}" if name in MACHINES else name


def parse_until(text: str, now_wall_s: float) -> float:
    """`2h`, `1d12h`, `90m`, or a time, `2026-11-22T10:00Z`, as seconds since the epoch. Raises CtlError."""
    example = "expected a duration as in 2h, 90m or 1d12h, or a time as in 2026-11-22T10:00Z"
    match = _DURATION.fullmatch(text.strip())
    if match and any(match.groups()):
        days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
        until = now_wall_s + ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
    else:
        try:
            until = parse_iso_time(text)
        except ValueError:
            raise CtlError(f"--until {text}: {example}") from None
    if not now_wall_s < until < 253402300800.0:  # year 9999, datetime's last
        raise CtlError(f"--until {text}: {example}, in the future")
    return until


# What is shown ---------------------------------------------------------------------------------------------------


def as_data(node: str, record: Record, troubles: list[str], now_wall_s: float) -> dict[str, Any]:
    """A node for programs: state is `free`, `quarantined`, or `unknown` where something could not be read."""
    held = counting(record, now_wall_s, os.getuid())
    return {
        "node": node,
        "state": "quarantined" if held else "unknown" if troubles else "free",
        "isolations": [_isolation_data(one, record, now_wall_s) for one in record.isolations],
        "releases": [{"who": one.who, "at": iso_time(one.at_wall_s), "reason": one.reason} for one in record.releases],
    }


def _isolation_data(one: Isolation, record: Record, now_wall_s: float) -> dict[str, Any]:
    over = end_of(one, record, now_wall_s)
    return {
        "cause": one.cause,
        "who": one.who,
        **({} if one.uid is None else {"uid": one.uid, "is_for_owner_alone": one.is_for_owner_alone}),
        "since": iso_time(one.since_wall_s),
        "until": None if one.until_wall_s is None else iso_time(one.until_wall_s),
        "summary": one.summary,
        "evidence": one.evidence,
        "run_id": one.run_id,
        "incident": one.incident,
        "holds": over is None,
        "ended": over or "",
    }


def _list(world: _World) -> int:
    call = world.call
    known = read_all(world.places(world.here))
    records = {world.here: Record(), **known.records}
    nodes = [as_data(node, record, known.troubles, world.now_wall_s) for node, record in sorted(records.items())]
    if call.out.is_json:
        call.out.json({"nodes": nodes, "troubles": known.troubles})
    else:
        node_view.print_list(call.out, nodes, known.troubles)
    return OK


def _show(world: _World) -> int:
    call, node = world.call, world.call.arguments.node or world.here
    places = world.places(node)
    record, troubles = read_node(places, node)
    data = as_data(node, record, troubles, world.now_wall_s)
    paths = [str(place.path) for place in places]
    if call.out.is_json:
        call.out.json({**data, "troubles": troubles, "paths": paths})
    else:
        node_view.print_node(call.out, data, troubles, paths)
    return OK


# What is changed -------------------------------------------------------------------------------------------------


def _isolate(world: _World) -> int:
    arguments = world.call.arguments
    node = arguments.node
    if not _is_reachable(world):
        raise CtlError(_unreachable(world))
    if not _CAUSE.fullmatch(arguments.cause):
        raise CtlError(f"--cause {arguments.cause}: expected a word of small letters, digits, '_' and '-'")
    isolation = Isolation(
        cause=arguments.cause,
        who=person(world.call),
        since_wall_s=world.now_wall_s,
        summary=arguments.reason,
        until_wall_s=parse_until(arguments.until, world.now_wall_s) if arguments.until else None,
    )
    try:
        written, _ = isolate_node(world.places(node), node, isolation, world.now_wall_s)
    except OSError as error:
        raise CtlError(f"{node} could not be isolated: {error.strerror or error}") from None
    return _print_outcome(
        world, node, written, f"{node} is quarantined: new runs are refused there until guardctl node release"
    )


def _release(world: _World) -> int:
    from guardrun.slurm.client.drain import lift_drain

    arguments = world.call.arguments
    node, who = arguments.node, person(world.call)
    if not _is_reachable(world):
        lifted = lift_drain(node, world.call.environ)
        if not lifted.is_done:
            raise CtlError("; ".join(filter(None, [lifted.text, _unreachable(world)])))
        return _tell_drain(world, lifted.text)
    before, _ = read_node(world.places(node), node)
    others = [one for one in holding(before, world.now_wall_s) if not one.is_automatic and one.who != who]
    if others and not arguments.override:
        first = others[0]
        why = f" ({first.summary.rstrip('.')})" if first.summary else ""
        raise CtlError(
            f"{node} was isolated by {first.who} for {first.cause}{why}, not by guardrun: ask them, or --override"
        )
    try:
        written, left = release_node(
            world.places(node), node, who, world.now_wall_s, arguments.reason, is_overriding=arguments.override
        )
    except OSError as error:
        raise CtlError(f"{node} could not be released: {error.strerror or error}") from None
    if left:
        raise CtlError(f"{node} is still quarantined: {left[0].cause}, by {left[0].who}")
    lifted = lift_drain(node, world.call.environ)
    return _print_outcome(world, node, written, f"{node} is released: runs may start there again", lifted.text)


def _is_reachable(world: _World) -> bool:
    """Say whether what is written here reaches the node of the command line."""
    return world.is_cluster or world.call.arguments.node in names_here(world.call.environ)


def _unreachable(world: _World) -> str:
    node = world.call.arguments.node
    return (
        f"this node is {world.here}, and {node} cannot see what is kept here: do it there, or name a folder that"
        " all nodes see ([node] shared_dir)"
    )


def _tell_drain(world: _World, lifted: str) -> int:
    """Slurm, unlike a record on the node itself, can be told from anywhere."""
    node, out = world.call.arguments.node, world.call.out
    trouble = f"a quarantine that is kept on {node} itself, should there be one, ends there: guardctl node release"
    if out.is_json:
        data = as_data(node, Record(), [trouble], world.now_wall_s)
        out.json({**data, "paths": [], "troubles": [trouble], "slurm": lifted})
    else:
        out.line(lifted)
        out.line(trouble, "dim")
    return OK


def _print_outcome(world: _World, node: str, written: Written, done: str, slurm: str = "") -> int:
    """slurm: what became of the node's drain there; empty: there was none of guardrun's."""
    out = world.call.out
    paths = [str(path) for path in written.paths]
    if out.is_json:
        data = as_data(node, written.record, [], world.now_wall_s)
        out.json({**data, "paths": paths, "troubles": written.troubles, **({"slurm": slurm} if slurm else {})})
    else:
        out.line(done)
        if slurm:
            out.line(slurm)
        out.line(f"kept in {', '.join(paths)}" if paths else "it was so already", "dim")
        if not world.config.node.state_dir and is_for_one_user(world.places(node), written):
            out.line(
                "it holds for your own runs: other users' go by what root has kept (sudo guardctl node …)", "yellow"
            )
        node_view.print_troubles(out, written.troubles)
    return OK


def is_for_one_user(places: Sequence[Place], written: Written) -> bool:
    """Say whether a change was kept where no other user's runs look."""
    shared = {place.path for place in places if place.is_shared}
    is_root_elsewhere = any(place.path.parent == SYSTEM_FOLDER and not place.is_written for place in places)
    return is_root_elsewhere and bool(written.paths) and not shared & set(written.paths)


# The command line ------------------------------------------------------------------------------------------------


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guard-config", metavar="FILE", help="as for guardrun")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add(actions, "list", "all nodes of which anything is known", _list)
    show = _add(actions, "show", "one node: what was said of it, by whom, and what holds", _show)
    show.add_argument("node", metavar="NODE", nargs="?", help="default: this node")
    isolate = _add(actions, "isolate", "let no new run start on a node", _isolate)
    isolate.add_argument("node", metavar="NODE")
    isolate.add_argument("--cause", default=DEFAULT_CAUSE, help=f"a word (default: {DEFAULT_CAUSE})")
    isolate.add_argument("--reason", default="", metavar="TEXT", help="a sentence for whoever is refused")
    isolate.add_argument("--until", metavar="WHEN", help="2h, 1d12h, 2026-11-22T10:00Z (default: until released)")
    release = _add(actions, "release", "let runs start there again", _release)
    release.add_argument("node", metavar="NODE")
    release.add_argument("--reason", default="", metavar="TEXT", help="what was done about it")
    release.add_argument("--override", action="store_true", help="also what another person isolated")
    node_history.add(actions)


def _add(actions: Any, name: str, text: str, run: Callable[[_World], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    # As those of `guardctl node` itself: they may stand before or after the action.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")
    parser.add_argument("--guard-config", metavar="FILE", default=argparse.SUPPRESS, help="as for guardrun")
    parser.set_defaults(run_action=lambda call: run(_world(call)))
    return parser


def _world(call: Call) -> _World:
    config = read_config(call, is_written_by=True)
    return _World(this_node(call.environ), bool(config.node.shared_dir), config, call, time.time())


def _run(call: Call) -> int:
    code: int = call.arguments.run_action(call)
    return code


VERB = Verb("node", "nodes: quarantined ones, isolating and releasing, what has been on this one", _add_arguments, _run)
