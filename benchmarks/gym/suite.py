"""The command: which cases under which launchers, several at a time, and where their results go."""

from __future__ import annotations

import argparse
import fnmatch
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gym.case import Case, Decoy, Fault
from benchmarks.gym.decoys import DECOYS, HOUR
from benchmarks.gym.docs import write_docs
from benchmarks.gym.emu import tables
from benchmarks.gym.emu.decoys import EMU_DECOYS
from benchmarks.gym.emu.faults import EMU_FAULTS
from benchmarks.gym.emu.launchers import launchers_on_devices
from benchmarks.gym.faults import FAULTS
from benchmarks.gym.launchers import BY_NAME, GYM, LAUNCHERS, ROOT, Launcher, guardrun_at
from benchmarks.gym.observation import Observation
from benchmarks.gym.patience import Patience, played_at, played_on_devices
from benchmarks.gym.play import Turn, play
from benchmarks.gym.results import Header, Results, key_of
from benchmarks.gym.score import score_decoy, score_fault
from benchmarks.gym.summary import as_markdown, score_all
from benchmarks.machine import describe
from tests.emu.build import build

DOCS = ROOT / "docs" / "gym.md"
CASES: tuple[Case, ...] = (*FAULTS, *DECOYS)
EMU_CASES: tuple[Case, ...] = (*EMU_FAULTS, *EMU_DECOYS)
EMU_LAUNCHERS = ("guardrun", "torchrun")


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, write. Returns the exit status: 0 where every case could be played."""
    arguments = _parse(argv)
    results = Results(arguments.results)
    if arguments.fresh:
        arguments.results.unlink(missing_ok=True)
    header = results.open(Header(machine=describe(), command=_command(arguments)))
    turns = choose_turns(arguments)
    if not arguments.show:
        if arguments.emu:
            build()
        done = {key_of(seen) for seen in results.read() if seen.patience == patience_of(arguments, seen.launcher)}
        left = [t for t in turns if (t.case.name, t.launcher.name, t.repeat, t.seed) not in done]
        _tell(f"{len(left)} cases to play, {len(turns) - len(left)} already in {os.path.relpath(results.path)}")
        play_all(left, results, arguments)
    wanted = {(t.case.name, t.launcher.name, t.repeat, t.seed) for t in turns}
    seen = [one for one in results.read() if key_of(one) in wanted]
    names = [name for name in BY_NAME if name in arguments.launchers]
    faults, healthy = (EMU_FAULTS, EMU_DECOYS) if arguments.emu else (FAULTS, (*DECOYS, HOUR))
    played, decoys = score_all(faults, healthy, seen)
    print(tables.as_markdown(played, decoys, names) if arguments.emu else as_markdown(played, decoys, names))
    if arguments.write_docs:
        write_docs(DOCS, header, played, decoys, names, is_emu=arguments.emu)
        _tell(f"written: {os.path.relpath(DOCS)}")
    troubled = [one for one in seen if one.trouble]
    for one in troubled:
        _tell(f"could not be played: {one.case} under {one.launcher}: {one.trouble}\n{one.output_tail}")
    return 1 if troubled or len(seen) < len(wanted) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="faults and decoys under guardrun, torchrun and ft_launcher")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="how often to play each case")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the step of each planting")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases by name; several with several --only")
    parser.add_argument("--launchers", metavar="A,B", help=f"default: {','.join(BY_NAME)}")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="cases at a time; default %(default)s")
    parser.add_argument(
        "--sensitivity", choices=("normal", "eager"), default="normal", help="guardrun's; default %(default)s"
    )
    parser.add_argument(
        "--scale", type=float, default=0.1, metavar="F", help="of its times without proof; default %(default)s"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="default: .gym/results.jsonl, emu.jsonl or save-with.jsonl"
    )
    parser.add_argument("--fresh", action="store_true", help="begin a new results file")
    parser.add_argument("--show", action="store_true", help="play nothing; show what the results file holds")
    parser.add_argument("--hour", action="store_true", help="instead: decoys for an hour in one run, under guardrun")
    parser.add_argument(
        "--emu", action="store_true", help="instead: the cases on the emulated device, under guardrun and torchrun"
    )
    parser.add_argument(
        "--save-with", action="store_true", help="under guardrun alone, and the script calls save_with() and step()"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of each run in .gym/runs")
    parser.add_argument("--write-docs", action="store_true", help="also put the tables into docs/gym.md")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.scale <= 1:
        parser.error("--scale is more than 0, and at most 1")
    if arguments.hour and arguments.emu:
        parser.error("--hour is not played on the emulated device")
    if arguments.save_with and (arguments.hour or arguments.emu):
        parser.error("--save-with is for the faults over gloo")
    kept = "emu" if arguments.emu else "save-with" if arguments.save_with else "results"
    arguments.results = arguments.results or GYM / f"{kept}.jsonl"
    known = EMU_LAUNCHERS if arguments.emu else ("guardrun",) if arguments.save_with else tuple(BY_NAME)
    chosen = arguments.launchers.split(",") if arguments.launchers else list(known)
    arguments.launchers = ["guardrun"] if arguments.hour else chosen
    for name in arguments.launchers:
        if name not in known:
            parser.error(f"no launcher {name!r}; there are {', '.join(known)}")
        if not BY_NAME[name].is_there and not arguments.show:
            parser.error(f"{name} is not installed ({os.path.relpath(BY_NAME[name].program)}); `make gym` installs it")
    cases = EMU_CASES if arguments.emu else CASES
    if arguments.only and not any(_is_wanted(case, arguments.only) for case in cases):
        parser.error(f"no case matches; there are {', '.join(case.name for case in cases)}")
    return arguments


def _command(arguments: argparse.Namespace) -> str:
    parts = ["python benchmarks/gym/run.py", f"--repeat {arguments.repeat} --seed {arguments.seed}"]
    parts += [f"--only {only}" for only in arguments.only or []]
    flags = (("--hour", arguments.hour), ("--emu", arguments.emu), ("--save-with", arguments.save_with))
    parts += [flag for flag, is_given in flags if is_given]
    parts.append(f"--sensitivity {arguments.sensitivity} --scale {arguments.scale:g}")
    return " ".join([*parts, f"--launchers {','.join(arguments.launchers)} --jobs {arguments.jobs}"])


def patience_of(arguments: argparse.Namespace, launcher: str) -> Patience | None:
    """With which it is played; None: it knows none."""
    played = played_on_devices if arguments.emu else played_at
    return played(arguments.sensitivity, arguments.scale) if launcher == "guardrun" else None


def launchers_of(arguments: argparse.Namespace) -> list[Launcher]:
    """Those wanted, guardrun as patient as it is wanted."""
    if arguments.emu:
        there = launchers_on_devices(arguments.sensitivity, arguments.scale)
        return [launcher for launcher in there if launcher.name in arguments.launchers]
    known = [launcher for launcher in LAUNCHERS if launcher.name in arguments.launchers]
    patience = played_at(arguments.sensitivity, arguments.scale)
    environment = {"GYM_SAVE_WITH": "1"} if arguments.save_with else None
    return [guardrun_at(patience, environment) if launcher.name == "guardrun" else launcher for launcher in known]


def _is_wanted(case: Case, only: Sequence[str] | None) -> bool:
    return only is None or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in only)


def choose_turns(arguments: argparse.Namespace) -> list[Turn]:
    """Every case wanted, the longest first, else in an order that the seed shuffles."""
    launchers = launchers_of(arguments)
    if arguments.hour:
        return [Turn(HOUR, launchers[0], 0, arguments.seed)]
    turns = [
        Turn(case, launcher, repeat, arguments.seed)
        for repeat in range(arguments.repeat)
        for case in (EMU_CASES if arguments.emu else CASES)
        if _is_wanted(case, arguments.only)
        for launcher in launchers
    ]
    random.Random(arguments.seed).shuffle(turns)
    return sorted(turns, key=lambda turn: -turn.lasts_s)


def play_all(turns: Sequence[Turn], results: Results, arguments: argparse.Namespace) -> None:
    """Some at a time. Leaves with the first exception, when all processes are ended."""
    lock = threading.Lock()
    stop = threading.Event()

    def one(turn: Turn) -> None:
        began_s = time.monotonic()
        folder = GYM / "runs" / f"{turn.case.name}-{turn.launcher.name}-{turn.repeat}"
        seen = play(turn, folder, keep=arguments.keep, stop=stop)
        with lock:
            results.append(seen)
            took = f"{time.monotonic() - began_s:6.0f} s"
            _tell(f"{took}  {turn.launcher.name:11} {turn.case.name:20} {verdict(turn, seen)}")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(one, turn) for turn in turns]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def verdict(turn: Turn, seen: Observation) -> str:
    """What came of it, in a line."""
    if seen.trouble:
        return f"TROUBLE: {seen.trouble}"
    if isinstance(turn.case, Decoy):
        decoy = score_decoy(turn.case, seen)
        return "left alone" if decoy.is_clean else f"NOT LEFT ALONE: {decoy}"
    assert isinstance(turn.case, Fault)
    score = score_fault(turn.case, seen)
    if not score.found:
        return f"NOT FOUND within {seen.cap_s:g} s" if seen.returncode is None else "NOT FOUND"
    missed = score.misses(turn.case, seen.patience)
    after = f"after {score.verdict_s:.1f} s" if score.verdict_s is not None else ""
    after += f", acted on after {score.acted_s:.1f} s" if score.acted_s is not None else ""
    return f"{score.cause} {list(score.culprits)} {after}" + (f"  FALLS SHORT: {', '.join(missed)}" if missed else "")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
