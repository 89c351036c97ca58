"""`guardctl flame RANK`: what a rank does for some seconds, as a table of lines and as a flame graph."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.own_files import name_user
from guardrun.supervisor.cli.base.verb import (
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    add_run_option,
    find_run,
    guard_dir,
    is_anybodys,
    write_named,
)
from guardrun.supervisor.cli.verbs.order import ask_run, find_living, who_asks
from guardrun.supervisor.cli.views.flame_view import print_flame
from guardrun.supervisor.report.flame_graph import Sampled, as_data, build, flame_svg, training_thread

SECONDS, MOST_SECONDS = 20.0, 300.0
RATE, MOST_RATE = 50, 200
NATIVE_RATE = 10
"""Each of these samples stops the rank for milliseconds."""
FOLDER = "flames"
MARGIN_S = 100.0
"""Beyond the seconds: how long a node may take to answer, and to be known not to."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ranks", metavar="RANK", nargs="*", type=int, help="global ranks (default: 0)")
    add_run_option(parser)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help=f"for how long (default: {SECONDS:g})"
    )
    parser.add_argument(
        "--rate", metavar="N", type=int, help=f"samples a second (default: {RATE}; with --native {NATIVE_RATE})"
    )
    parser.add_argument(
        "--native", action="store_true", help="functions of C and C++ libraries, too; pauses the rank for each sample"
    )
    parser.add_argument("--output", metavar="DIR", help="where the drawings go (default: RUN/flames)")


def _run(call: Call) -> int:
    arguments, out = call.arguments, call.out
    ranks, seconds, native = sorted(set(arguments.ranks)) or [0], arguments.seconds, arguments.native
    rate = arguments.rate if arguments.rate is not None else NATIVE_RATE if native else RATE
    if not 1 <= seconds <= MOST_SECONDS:
        out.error(f"--seconds is from 1 to {MOST_SECONDS:g}")
        return USAGE
    if not 1 <= rate <= MOST_RATE:
        out.error(f"--rate is from 1 to {MOST_RATE}")
        return USAGE
    find_living(call)  # before a folder is made, and before it is said that something is being done
    folder = _folder(call)
    if not out.is_json:
        paused = f", paused {rate} times a second for it: other ranks wait meanwhile" if native else ""
        out.aside(f"watching for {seconds:g} s{paused}. It ends by itself, also without guardctl")
    asked = {"ranks": ranks, "what": "flame", "arguments": {"rate": rate, "native": native}, "seconds": seconds}
    data = ask_run(call, "examine", {**asked, "who": who_asks()}, seconds + MARGIN_S)
    nodes = data.get("nodes", {})
    missing = {int(number): str(why) for number, why in data.get("missing", {}).items()}
    answer: dict[str, Any] = {"ranks": {}, "missing": data.get("missing", {}), "nodes": nodes}
    ended = time.gmtime()
    try:
        told = {int(number): msgspec.convert(one, Sampled) for number, one in data.get("ranks", {}).items()}
        threads = {number: training_thread(build(sampled.folded()), sampled.pid) for number, sampled in told.items()}
    except (msgspec.ValidationError, ValueError) as error:
        raise CtlError(f"the answer is not one of this version of guardrun: {error}") from None
    for number, sampled in sorted(told.items()):
        heading = f"Rank {number} on {nodes.get(str(number), '?')}"
        files = _write(folder, number, heading, sampled, ended)
        answer["ranks"][str(number)] = {**as_data(sampled), "files": [str(path) for path in files]}
        if not out.is_json:
            print_flame(out, heading, sampled, threads[number])
            out.line(f"drawn: {files[0]} (speedscope and others read {files[1].name})")
    if out.is_json:
        out.json(answer)
    else:
        for number, why in sorted(missing.items()):
            out.line(f"Rank {number}: {why}", "yellow")
    return OK if answer["ranks"] else NO


def _folder(call: Call) -> Path:
    """Where the drawings go; there, so that nobody waits for what can't be written. Raises CtlError."""
    if call.arguments.output:
        folder = Path(call.cwd, call.arguments.output)
    else:
        run_dir = find_run(call.arguments.run, guard_dir(call.arguments.guard_dir, call.environ, call.cwd), call.cwd)
        if is_anybodys() and (whose := run_dir.stat().st_uid) != os.geteuid():
            raise CtlError(f"{run_dir} is {name_user(whose)}'s: root writes nothing there; say where with --output DIR")
        folder = Path(run_dir, FOLDER)
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise CtlError(f"{folder} can't be made: {error.strerror or error}") from None
    return folder


def _write(folder: Path, number: int, heading: str, sampled: Sampled, ended: time.struct_time) -> tuple[Path, Path]:
    """The drawing, and the samples that other programs draw. Raises CtlError."""
    native = ", native" if sampled.native else ""
    title = (
        f"{heading}: {sampled.seconds:.0f} s, {sampled.rate} times a second{native}, {time.strftime('%F %TZ', ended)}"
    )
    stem = f"rank-{number}-{time.strftime('%Y%m%dT%H%M%SZ', ended)}"
    drawing, samples = folder / f"{stem}.svg", folder / f"{stem}.folded"
    write_named(drawing, flame_svg(sampled, title).encode("utf-8", "replace"))
    write_named(samples, sampled.folded().encode("utf-8", "replace"))
    return drawing, samples


VERB = Verb("flame", "what a rank does for some seconds: its hottest lines, and a flame graph", _add_arguments, _run)
