"""Ten thousand nodes in simulation, under guardrun and under torchrun: `make sim`.

    python benchmarks/sim/run.py                          two weeks, two rates, 3 seeds and 1: two hours on a core
    python benchmarks/sim/run.py --quick                  two days of 1,000 nodes, one seed: a minute
    python benchmarks/sim/run.py --nodes 2000 --days 7    another size; --days 7,3 --seeds 3,1: as many for each rate
    python benchmarks/sim/run.py --hiccups                2,048 nodes for a year, frozen and suspended now and then
    python benchmarks/sim/run.py --patience               what each hang.sensitivity costs, by how often the job saves
    python benchmarks/sim/run.py --write-docs             also puts them into docs/simulation.md or policy.md
    python benchmarks/sim/run.py --anew                   forget results of earlier calls (build/sim-*.jsonl)

What is assumed is printed first; docs/simulation.md explains it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent.parent
# In place of this folder, whose modules must be found as `benchmarks.…` only.
sys.path[0] = str(ROOT)

from benchmarks.sim import patience  # noqa: E402
from benchmarks.sim.failures import AGAIN_S, SENSED, TRUTHS  # noqa: E402
from benchmarks.sim.parameters import Parameters  # noqa: E402
from benchmarks.sim.table import play_all, play_hiccups, play_load, table  # noqa: E402
from guardrun.supervisor.engine.model.hang_patience import Sensitivity  # noqa: E402

BEGIN, END = "<!-- figures: make sim SIM_ARGS=--write-docs -->", "<!-- end of figures -->"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--days", default="14", help="one number, or one for each rate")
    parser.add_argument("--seeds", default="3,1", help="likewise")
    parser.add_argument("--rates", default="1,10", help="times the published rate")
    parser.add_argument("--sensitivity", choices=get_args(Sensitivity), default="normal", help="[hang] sensitivity")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hiccups", action="store_true")
    parser.add_argument("--patience", action="store_true")
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--no-load", action="store_true", help="without the day in which every rank is told")
    return parser.parse_args()


def _for_each(rates: list[float], text: str) -> list[float]:
    """A number for each rate; the last for those without."""
    numbers = [float(number) for number in text.split(",")]
    return [numbers[min(n, len(numbers) - 1)] for n in range(len(rates))]


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _assumed(parameters: Parameters) -> str:
    """Everything that is assumed, in lines."""
    lines = [
        f"{f.name} = {value if isinstance(value, str) else format(value, 'g')}"
        for f in fields(Parameters)
        if f.name not in ("seed", "rate")
        for value in [getattr(parameters, f.name)]
    ]
    shares = "; ".join(f"{truth.value} {share:g}%" for truth, share in TRUTHS.items())
    again = "; ".join(f"{truth.value}: after {seconds:g} s" for truth, seconds in AGAIN_S.items())
    sensed = "; ".join(f"{truth.value} {share:.0%}" for truth, share in SENSED.items())
    return f"{', '.join(lines)}\nfailures: {shares}\nbad nodes fail again: {again}\nand sensors tell: {sensed}"


def main() -> int:
    """Play, and print."""
    args = _arguments()
    if args.hiccups:
        nodes = 256 if args.quick else 2048
        print(play_hiccups(Parameters(nodes=nodes, pool=nodes + nodes // 2, days=60 if args.quick else 365), _show))
        return 0
    if args.patience:
        text = patience.table(1 if args.quick else 10, _show)
        _show("")
        print(text)
        if args.write_docs:
            _write_docs("policy.md", patience.BEGIN, text)
        return 0
    if args.quick:
        args.nodes, args.days, args.seeds = 1000, "2", "1"
    pool = args.nodes + max(600, args.nodes // 5)
    parameters = replace(Parameters(), nodes=args.nodes, pool=pool, sensitivity=args.sensitivity)
    rates = [float(rate) for rate in args.rates.split(",")]
    days = _for_each(rates, args.days)
    played = [replace(parameters, rate=rate, days=days[n]) for n, rate in enumerate(rates)]
    kept = ROOT / "build" / f"sim-{args.nodes}-{args.sensitivity}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    load = kept.with_suffix(".load.txt")
    if args.anew:
        kept.unlink(missing_ok=True)
        load.unlink(missing_ok=True)
    print(_assumed(parameters), flush=True)
    told = []
    if not args.no_load and not args.quick:
        if not load.exists():
            load.write_text(play_load(parameters, _show))
        told.append(load.read_text())
    print("".join(f"\n{text}" for text in told), flush=True)
    for chosen, number in zip(played, _for_each(rates, args.seeds), strict=True):
        seeds = f"median (range) of {number:g} seeds" if number > 1 else "one seed"
        results = play_all(chosen, int(number), kept, _show)
        _show("")
        time = "a day" if chosen.days == 1 else f"{chosen.days:g} days"
        told.append(
            f"{chosen.nodes:,} nodes of 8 GPUs, {time}, {chosen.stops_a_day:.0f} failures a day (x{chosen.rate:g}), "
            f"a checkpoint every {chosen.steps_a_save * chosen.step_s:.0f} s; {seeds}:\n\n{table(results)}"
        )
        print(f"\n{told[-1]}", flush=True)
    if args.write_docs:
        _write_docs("simulation.md", BEGIN, "\n\n".join(told))
    return 0


def _write_docs(name: str, begin: str, text: str) -> None:
    """Put the figures between the marks."""
    page = ROOT / "docs" / name
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
