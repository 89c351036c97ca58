"""The command: which items, how long, and where their figures go."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.docs import write_docs
from benchmarks.item import Bench, CannotMeasure, Effort, Item
from benchmarks.items.agent_flood import AgentFloodItem
from benchmarks.items.cold_hooks import ColdHooksItem
from benchmarks.items.coordinator import CoordinatorItem
from benchmarks.items.engine import EngineItem
from benchmarks.items.fleet import FleetItem
from benchmarks.items.gc_policy import GcPolicyItem
from benchmarks.items.hang import HangItem
from benchmarks.items.kill import KillItem
from benchmarks.items.node_agent import NodeAgentItem
from benchmarks.items.snapshots import SnapshotItem
from benchmarks.items.socket_desk import SocketItem
from benchmarks.items.startup import StartupItem
from benchmarks.items.stderr_pipe import StderrItem
from benchmarks.items.step_hook import StepHookItem
from benchmarks.items.supervisor_cost import SupervisorCostItem
from benchmarks.items.throughput import EmuThroughputItem, ThroughputItem
from benchmarks.machine import describe
from benchmarks.report import Failure, Report
from benchmarks.table import as_rich

ROOT = Path(__file__).resolve().parent.parent
JSON = ROOT / "build" / "bench.json"
DOCS = ROOT / "docs" / "benchmarks.md"

ITEMS: tuple[Item, ...] = (
    StartupItem(),
    StderrItem(),
    ThroughputItem(),
    EmuThroughputItem(),
    StepHookItem(),
    ColdHooksItem(),
    GcPolicyItem(),
    SupervisorCostItem(),
    NodeAgentItem(),
    AgentFloodItem(),
    KillItem(),
    HangItem(),
    FleetItem(),
    EngineItem(),
    SocketItem(),
    SnapshotItem(),
    CoordinatorItem(),
)


def main(argv: Sequence[str] | None = None, items: Sequence[Item] = ITEMS) -> int:
    """Measure, print, write. Returns the exit status."""
    arguments = _parse(argv, items)
    report = _load(arguments.from_json) if arguments.from_json else _measure(arguments, items)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"{report.machine}\n{report.machine.date} UTC, {report.command}", highlight=False)
    console.print(as_rich(report))
    if not arguments.from_json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        console.print(f"Every sample: {os.path.relpath(arguments.json)}")
    for failure in report.failures:
        _tell(f"not measured: {failure.item}: {failure.reason}")
    if arguments.write_docs:
        write_docs(DOCS, report)
        console.print(f"Written: {os.path.relpath(DOCS)}")
    return 1 if report.failures else 0


def _parse(argv: Sequence[str] | None, items: Sequence[Item]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="guardrun beside torchrun, in figures")
    effort = parser.add_mutually_exclusive_group()
    for name, text in ((Effort.QUICK, "does every measurement work?"), (Effort.FULL, "also what takes minutes")):
        effort.add_argument(
            f"--{name.value}", dest="effort", action="store_const", const=name, default=Effort.NORMAL, help=text
        )
    names = [item.name for item in items]
    parser.add_argument("--only", action="append", choices=names, metavar="ITEM", help=f"one of {', '.join(names)}")
    parser.add_argument("--json", type=Path, default=JSON, metavar="FILE", help="where the samples go")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="show an earlier run instead of measuring")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    if arguments.write_docs and not arguments.from_json and (arguments.only or arguments.effort is Effort.QUICK):
        parser.error("--write-docs wants a whole run: without --quick and --only")
    return arguments


def _measure(arguments: argparse.Namespace, items: Sequence[Item]) -> Report:
    flags = [] if arguments.effort is Effort.NORMAL else [f"--{arguments.effort.value}"]
    flags += [f"--only {name}" for name in arguments.only or []]
    report = Report(machine=describe(), command=" ".join(["python benchmarks/run.py", *flags]))
    if report.machine.is_busy:
        _tell(f"The machine is busy (load {report.machine.load_1m:.1f}): don't trust the figures.")
    began = time.monotonic()
    for item in items:
        if arguments.only and item.name not in arguments.only:
            continue
        _tell(f"{item.title} …")
        at = time.monotonic()
        try:
            report.figures += item.measure(Bench(arguments.effort, lambda text: _tell(f"  {text}")))
        except CannotMeasure as error:
            report.figures += error.figures
            report.failures.append(Failure(item=item.name, reason=str(error)))
        except Exception:  # a bug of the benchmark's must not cost the other figures
            report.failures.append(Failure(item=item.name, reason=traceback.format_exc()))
        _tell(f"  {time.monotonic() - at:.0f} s")
    report.took_s = round(time.monotonic() - began, 1)
    return report


def _load(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
