"""Does the suite still bite? Mistakes are planted in a copy of the project, and tests must notice: `make mutants`.

    python tests/mutants/run.py                  all of them, each against the tests that the table names
    python tests/mutants/run.py --only NAME      one (several: --only NAME --only OTHER)
    python tests/mutants/run.py --part core      core or edge
    python tests/mutants/run.py --suite quick    against all that `make test-quick` runs; all: that `make test` runs
    python tests/mutants/run.py -j 2             two at a time, each in a copy of its own
    python tests/mutants/run.py --list           what there is

Nothing is planted in the checkout itself. Ends with 0 where each was caught, with 1 where one survived or could not be
tried, or where the named tests fail without any.
"""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# In place of this folder, whose modules must be found as `tests.…` only.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.mutants.core import CORE  # noqa: E402
from tests.mutants.edge import EDGE  # noqa: E402
from tests.mutants.mutation import Mutation  # noqa: E402
from tests.mutants.tree import Tree  # noqa: E402
from tests.mutants.trial import (  # noqa: E402
    NAMED,
    SUITES,
    BaselineError,
    Outcome,
    Verdict,
    attempt,
    check_named,
    failing_anyway,
)

PARTS = {"core": CORE, "edge": EDGE}
MUTATIONS = (*CORE, *EDGE)


def main() -> int:
    """The command line."""
    arguments = _parse()
    chosen = [m for m in PARTS.get(arguments.part, MUTATIONS) if not arguments.only or m.name in arguments.only]
    if arguments.list:
        for mutation in chosen:
            print(f"{_part(mutation):4}  {mutation.name:{_width(chosen)}}  {mutation.breaks}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Tree(Path(folder) / f"tree-{number}") for number in range(min(arguments.jobs, len(chosen)))]
        print("where nothing is planted …", flush=True)
        try:
            without = _baseline(trees[0], chosen, arguments.suite)
        except BaselineError as error:
            print(f"{error}\nThis must pass where nothing is planted.")
            return 1
        outcomes = _try_all(trees, chosen, arguments.suite, without)
    return _tell(outcomes, arguments.suite)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=[m.name for m in MUTATIONS])
    parser.add_argument("--part", choices=PARTS, default="")
    parser.add_argument("--suite", choices=[NAMED, *SUITES], default=NAMED)
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def _baseline(tree: Tree, chosen: list[Mutation], suite: str) -> list[str]:
    """Tests of a suite that are left out, as they fail without a mutation. Raises BaselineError."""
    if suite == NAMED:
        check_named(tree, list(dict.fromkeys(test for mutation in chosen for test in mutation.caught_by)))
        return []
    failing = failing_anyway(tree, suite)
    for test in failing:
        print(f"left out, as it fails without a mutation: {test}", flush=True)
    return failing


def _try_all(trees: list[Tree], chosen: list[Mutation], suite: str, without: list[str]) -> list[Outcome]:
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(number: int, mutation: Mutation) -> Outcome:
        tree = free.get()
        try:
            outcome = attempt(tree, mutation, number, suite, without)
        finally:
            free.put(tree)
        print(f"{mutation.name}: {outcome.verdict.value}", flush=True)
        return outcome

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, range(len(chosen)), chosen))


def _tell(outcomes: list[Outcome], suite: str) -> int:
    """The table of what became of them; returns the exit status."""
    uncaught = [outcome for outcome in outcomes if outcome.verdict is not Verdict.CAUGHT]
    print(f"\n{time.strftime('%Y-%m-%d')}, {'the tests named' if suite == NAMED else f'make {SUITES[suite]}'}:")
    for outcome in outcomes:
        print(_line(outcome, [one.mutation for one in outcomes]))
    for outcome in uncaught:
        print(f"\n{outcome.mutation.name} ({outcome.mutation.file}): {outcome.mutation.breaks}\n{outcome.detail}")
    quick = sum(outcome.is_by_quick for outcome in outcomes)
    by_quick = f", {quick} by a quick test" if suite == NAMED else ""
    print(f"\n{len(outcomes) - len(uncaught)} of {len(outcomes)} caught{by_quick}")
    return 1 if uncaught else 0


def _line(outcome: Outcome, chosen: list[Mutation]) -> str:
    mutation = outcome.mutation
    start = f"{_part(mutation):4}  {mutation.name:{_width(chosen)}}"
    return f"{start}  {outcome.verdict.value:8}  {outcome.took_s:5.1f} s  {outcome.test}".rstrip()


def _part(mutation: Mutation) -> str:
    return "core" if mutation in CORE else "edge"


def _width(chosen: list[Mutation]) -> int:
    return max(len(mutation.name) for mutation in chosen)


if __name__ == "__main__":
    # Leave through every `with`: nothing of the copies stays.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    sys.exit(main())
