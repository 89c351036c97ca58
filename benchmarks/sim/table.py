"""All that is compared, played one after the other, and the table of it."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.sim import account as use
from benchmarks.sim.account import Account
from benchmarks.sim.failures import OWN, Truth, draw
from benchmarks.sim.load import peak_bytes
from benchmarks.sim.parameters import DAY_S, Parameters
from benchmarks.sim.torchrun import AS_INSTALLED, Torchrun
from benchmarks.sim.world import World
from guardrun.supervisor.engine.state.job_nodes import Standing

Show = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    spares: int = 0
    least: float = 0.0
    """Share of the nodes with which the job goes on."""
    recovers: float | None = None
    """torchrun, with this share of restarts that recover; None: guardrun."""


CASES = (
    Case("torchrun, as installed", recovers=AS_INSTALLED),
    Case("torchrun, all its restarts recover", recovers=1.0),
    Case("guardrun, no spare"),
    Case("guardrun, no spare, shrinks by up to 1%", least=0.99),
    Case("guardrun, 16 spares", spares=16),
    Case("guardrun, 64 spares", spares=64),
)


@dataclass
class Result:
    """One case, at one rate, with one seed."""

    case: str
    rate: float
    seed: int
    days: float
    ratio: float
    stops: int
    ends: int
    a_stop_s: dict[str, float]
    waiting: float
    """Share of the time in which the job waited for a person."""
    false_stops: int = 0
    evicted: int = 0
    innocents: int = 0
    quarantined: int = 0
    """Well, and lost because of a switch."""
    swaps: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    """Of the engine."""
    events: int = 0
    largest_s: float = 0.0
    largest: str = ""


def play(parameters: Parameters, case: Case, show: Show) -> Result:
    """Play one."""
    chosen = replace(parameters, spares=case.spares, least=round(case.least * parameters.nodes))
    began = time.monotonic()

    def progress(now_s: float) -> None:
        spent_s = time.monotonic() - began
        show(f"{case.name}, rate x{chosen.rate:g}, seed {chosen.seed}: day {now_s / DAY_S:.1f}, {spent_s:.0f} s")

    if case.recovers is not None:
        return _result(case, chosen, Torchrun(chosen, draw(chosen), recovers=case.recovers).run())
    world = World(chosen, progress=progress).run()
    result = _result(case, chosen, world.account)
    result.cpu_s, result.events = world.load.cpu_s, world.load.events
    result.largest_s, result.largest = world.load.largest_s, world.load.largest
    return result


def _result(case: Case, parameters: Parameters, account: Account) -> Result:
    parts = {name: account.a_stop(name) for name in (use.DETECTING, use.STOPPING, use.STARTING, use.REDOING)}
    return Result(
        case=case.name,
        rate=parameters.rate,
        seed=parameters.seed,
        days=parameters.days,
        ratio=account.ratio,
        stops=account.stops,
        ends=account.ends,
        a_stop_s=parts,
        waiting=account.of(use.WAITING) / account.wall_s,
        false_stops=account.false_stops,
        evicted=account.evicted,
        innocents=account.innocents,
        quarantined=account.quarantined_innocents,
        swaps=account.swaps,
        reasons=dict(account.reasons),
    )


def play_all(parameters: Parameters, seeds: int, kept: Path, show: Show) -> list[Result]:
    """All cases at one rate; those that are in the file of results are not played again."""
    results = [Result(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    rate, days = parameters.rate, parameters.days
    known = {(r.case, r.rate, r.seed, r.days) for r in results}
    gc.disable()  # nothing here is in cycles, and there are millions of objects
    for seed in range(seeds):
        for case in CASES:
            if (case.name, rate, seed, days) in known:
                continue
            result = play(replace(parameters, seed=seed), case, show)
            gc.collect()
            results.append(result)
            with kept.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    return [r for r in results if (r.rate, r.days) == (rate, days) and r.seed < seeds]


def play_load(parameters: Parameters, show: Show) -> str:
    """A day with every rank told to the engine, for what it costs the coordinator."""
    gc.disable()
    chosen = replace(parameters, days=1.0, spares=16, ranks_a_node=8, is_whole=True)
    began = time.process_time()
    world = World(chosen, progress=lambda now_s: show(f"a day of 80,000 ranks: hour {now_s / 3600:.0f}")).run()
    load, spent_s = world.load, time.process_time() - began
    gc.enable()
    per_stop = load.events / max(world.account.stops, 1)
    return (
        f"One day of {chosen.nodes * 8:,} ranks, every exit told: {world.account.stops} stops, {load.events:,} events "
        f"({per_stop:,.0f} a stop), {spent_s:.0f} s of CPU time, the virtual world's included; the largest event "
        f"({load.largest}) {load.largest_s:.1f} s; peak memory {peak_bytes() / 2**20:,.0f} MiB"
    )


def play_hiccups(parameters: Parameters, show: Show) -> str:
    """Nodes that do not run for a while, and are well: by themselves, and beside failures of nodes and scripts."""
    gc.disable()
    chosen = replace(parameters, spares=16, freezes_a_node_year=4.0, suspends_a_day=1.0, outages_a_switch_year=0.0)
    every = draw(chosen)
    hiccups = [failure for failure in every if failure.truth in (Truth.FREEZE, Truth.SUSPEND)]
    frozen = sum(failure.truth is Truth.FREEZE for failure in hiccups)
    lines = [
        f"{chosen.nodes:,} nodes and 16 spares of {chosen.pool:,}, {chosen.days:g} days: "
        f"{frozen:,} freezes of 1 to 60 s, {len(hiccups) - frozen} suspends of the whole job for up to an hour; "
        "half of all links close on waking.\n"
    ]
    for name, failures in (("nothing else", hiccups), ("the usual failures beside them", every)):
        world = World(chosen, failures, progress=lambda now_s: show(f"hiccups: day {now_s / DAY_S:.0f}")).run()
        gc.collect()
        failed = {chosen.names[failure.node] for failure in failures if failure.truth in OWN}
        fleet = world.engine.state.fleet
        out = [m.node for m in fleet.members.values() if m.standing is Standing.OUT] if fleet else []
        account = world.account
        lines.append(
            f"- {name}: ETTR {account.ratio:.1%}, {account.stops:,} stops; left out and failed: "
            f"{sum(node in failed for node in out)}; innocents left out: {sum(node not in failed for node in out)}, "
            f"drained: {account.quarantined_innocents}"
        )
    gc.enable()
    return "\n".join(lines)


# Showing -----------------------------------------------------------------------------------------------

HEAD = (
    "| | ETTR | stops | runs ended | a stop: detect | stop | start | redo | waits for a person "
    "| evicted | innocent | quarantined, well | stopped, well | swaps | engine CPU s a day |\n" + "|---" * 15 + "|"
)


def _of(values: list[float], form: str) -> str:
    """Median, with the range where there is one."""
    low, middle, high = min(values), statistics.median(values), max(values)
    text = format(middle, form)
    return text if format(low, form) == format(high, form) else f"{text} ({format(low, form)}–{format(high, form)})"


def table(results: list[Result]) -> str:
    """The table of one rate."""
    lines = [HEAD]
    for case in CASES:
        mine = [r for r in results if r.case == case.name]
        if not mine:
            continue
        seconds = [_of([r.a_stop_s[name] for r in mine], ".0f") + " s" for name in mine[0].a_stop_s]
        cells = [
            case.name,
            _of([r.ratio for r in mine], ".1%"),
            _of([r.stops for r in mine], ".0f"),
            _of([r.ends for r in mine], ".0f"),
            *seconds,
            _of([r.waiting for r in mine], ".1%"),
        ]
        if case.recovers is None:
            counts = ("evicted", "innocents", "quarantined", "false_stops", "swaps")
            cells += [_of([float(getattr(r, name)) for r in mine], ".0f") for name in counts]
            cells.append(_of([r.cpu_s / r.days for r in mine], ".1f"))
        else:
            cells += ["–"] * 6
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
