"""What a person asks of a run by the page: hold, let go, restart, trace; and to see its stacks.

Each goes the way of guardctl's verb of that name, and stands in the journal as asked for by guardctl web.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.asking import ALL, ask_run, examine, who_asks
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.some_steps import SECONDS, STEPS
from guardrun.supervisor.cli.base.verb import Call, CtlError
from guardrun.supervisor.cli.verbs.order import ask_stacks
from guardrun.supervisor.cli.verbs.trace import WHAT
from guardrun.supervisor.cli.web.watched_run import encode
from guardrun.supervisor.engine.observation.stack_grouping import group_data, group_looks
from guardrun.supervisor.report.module_table import describe, grown, sum_up
from guardrun.supervisor.rundir.traces import read_newest

WHO = "by guardctl web"
MAX_GROUPS = 64
MAX_MISSING = 64
MAX_TRACES = 8
MAX_MODULES = 30
KEPT = 5
ORDERS: dict[str, str] = {
    "hold": "held: guardrun watches and changes nothing until it is let go",
    "unhold": "no longer held: guardrun acts again",
    "restart": "asked: this attempt ends, and the next goes on from the newest checkpoint",
    "trace": f"{STEPS} steps are traced; see modules",
}
"""What can be asked for, and what is said once it has been."""


class Act:
    """Something that was asked of a run."""

    def __init__(self, order: str) -> None:
        self.order, self.at_s = order, time.time()
        self.state, self.text = "asking", ""

    def data(self) -> dict[str, Any]:
        """For the page."""
        return {"order": self.order, "at": round(self.at_s, 1), "state": self.state, "text": self.text}


class Orders:
    """Those to one run."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir, self._environ = run_dir, environ
        self._acts: deque[Act] = deque(maxlen=KEPT)

    def acts(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [act.data() for act in reversed(self._acts)]

    def find_reason_not_to(self, order: str) -> str:
        """Why it can't be asked now; empty: it can. Tracing goes on for a while: what does not wait for it may pass."""
        going_on = [act.order for act in self._acts if act.state == "asking"]
        if order in going_on or (going_on and going_on != ["trace"]):
            return f"{going_on[0]} is being asked already"
        return ""

    def begin(self, order: str) -> Callable[[], None]:
        """Note it. Answers what asks; that raises nothing."""
        act = Act(order)
        self._acts.append(act)

        def ask() -> None:
            try:
                act.text = self._ask(order)
                act.state = "done"
            except CtlError as error:
                act.state, act.text = "failed", str(error)[:1000]
            except Exception as error:  # a mistake of ours: the page says so
                act.state, act.text = "failed", f"{error!r}"[:500]

        return ask

    def _ask(self, order: str) -> str:
        call = self._call()
        if order == "trace":
            steps = {"steps": STEPS, "seconds": SECONDS}
            examined = examine(call, WHAT, ALL, steps, SECONDS)
            if not examined.ranks:
                raise CtlError(next(iter(examined.missing.values()), "no rank was there to trace"))
            return f"{len(examined.ranks)} ranks traced" if len(examined.ranks) != 1 else "one rank traced"
        data = ask_run(call, order, {"who": who_asks(call)})
        return str(data.get("text") or ORDERS[order])[:1000]

    def _call(self) -> Call:
        arguments = argparse.Namespace(run=str(self._run_dir), guard_dir=None, rank=None)
        return Call(arguments, self._environ, self._run_dir, Output(True, self._environ), WHO)

    # Looking inside ---------------------------------------------------------------------------------------------------

    def stacks(self) -> tuple[bytes, float]:
        """What every rank is doing now, equal stacks once; and that they are asked again after ten seconds at most."""
        at = round(time.time(), 1)
        try:
            data, looks = ask_stacks(self._call())
        except CtlError as error:
            return encode({"at": at, "error": str(error)}), 3.0
        except Exception as error:  # a mistake of ours: the page says so
            return encode({"at": at, "error": f"the stacks can't be shown: {error!r}"[:500]}), 10.0
        groups = group_looks(looks)
        missing = sorted(data.get("missing", {}).items(), key=lambda one: int(one[0]))
        document = {
            "at": at,
            "error": "",
            "ranks": len(looks),
            "groups": [group_data(group) for group in groups[:MAX_GROUPS]],
            "left_out": max(0, len(groups) - MAX_GROUPS),
            "missing": missing[:MAX_MISSING],
            "missing_count": len(missing),
        }
        return encode(document), 10.0

    def modules(self) -> bytes:
        """The last trace, a table a rank."""
        traces = read_newest(self._run_dir)
        shown = []
        for trace in traces[:MAX_TRACES]:
            sums = sum_up(trace.rows, trace.steps)
            rows = [
                {
                    "module": one.module,
                    "stage": one.stage,
                    "count": one.count,
                    "mean_s": one.mean_s,
                    "total_s": one.total_s,
                    "share": one.share,
                    "grown": grown(one),
                }
                for one in sums[:MAX_MODULES]
            ]
            shown.append(
                {
                    "rank": trace.rank,
                    "node": trace.node,
                    "said": describe(trace),
                    "rows": rows,
                    "left_out": max(0, len(sums) - MAX_MODULES),
                }
            )
        return encode({"traces": shown, "left_out": max(0, len(traces) - MAX_TRACES), "acts": self.acts()})
