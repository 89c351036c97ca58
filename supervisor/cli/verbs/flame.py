"""`guardctl flame RANK`: what a rank does for some seconds, as a table of lines and as a flame graph."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.cli.base.asking import examine, find_living, not_understood, print_missing
from guardrun.supervisor.cli.base.verb import (
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    add_run_option,
    named_run,
    whose_else,
    write_named,
    write_page,
)
from guardrun.supervisor.cli.views.flame_view import print_flame
from guardrun.supervisor.report.flame_graph import Flame, Sampled, as_data, flame_svg, unpack

SECONDS, MOST_SECONDS = 20.0, 300.0
RATE, MOST_RATE = 50, 200
NATIVE_RATE = 10
"""Each of these samples stops the rank for milliseconds."""
FOLDER = "flames"


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
    examined = examine(call, "flame", ranks, {"rate": rate, "native": native}, seconds)
    try:
        flames = {
            number: unpack(msgspec.convert(one, known_type(Sampled))) for number, one in sorted(examined.ranks.items())
        }
    except ValueError as error:
        raise not_understood(error) from None
    ended, told = time.gmtime(), {}
    for number, flame in flames.items():
        heading = examined.heading(number)
        files = _write(folder, number, heading, flame, ended)
        if out.is_json:
            told[str(number)] = {**as_data(flame), "files": [str(path) for path in files]}
        else:
            print_flame(out, heading, flame)
            out.line(f"drawn: {files[0]} (speedscope and others read {files[1].name})")
    if out.is_json:
        out.json({"ranks": told, "missing": examined.data.get("missing", {}), "nodes": examined.data.get("nodes", {})})
    else:
        print_missing(out, examined.missing)
    return OK if flames else NO


def _folder(call: Call) -> Path:
    """Where the drawings go; there, so that nobody waits for what can't be written. Raises CtlError."""
    if call.arguments.output:
        folder = Path(call.cwd, call.arguments.output)
    else:
        run_dir = named_run(call)
        if whose := whose_else(run_dir):
            raise CtlError(f"{run_dir} is {whose}'s: root writes nothing there; say where with --output DIR")
        folder = Path(run_dir, FOLDER)
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise CtlError(f"{folder} can't be made: {error.strerror or error}") from None
    return folder


def _write(folder: Path, number: int, heading: str, flame: Flame, ended: time.struct_time) -> tuple[Path, Path]:
    """The drawing, and the samples that other programs draw. Raises CtlError."""
    sampled = flame.sampled
    native = ", native" if sampled.native else ""
    title = (
        f"{heading}: {sampled.seconds:.0f} s, {sampled.rate} times a second{native}, {time.strftime('%F %TZ', ended)}"
    )
    stem = f"rank-{number}-{time.strftime('%Y%m%dT%H%M%SZ', ended)}"
    drawing, samples = folder / f"{stem}.svg", folder / f"{stem}.folded"
    write_page(drawing, lambda: flame_svg(flame, title))
    write_named(samples, flame.folded.encode("utf-8", "replace"))
    return drawing, samples


VERB = Verb("flame", "what a rank does for some seconds: its hottest lines, and a flame graph", _add_arguments, _run)
