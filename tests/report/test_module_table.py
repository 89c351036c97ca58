"""Rows of single calls are summed up by module and stage; what they do not show is said."""

from __future__ import annotations

import pytest

from guardrun.supervisor.report.module_table import ModuleSum, describe, grown, sum_up
from guardrun.supervisor.rundir.traces import ModuleTrace, TraceRow

MIB = 1 << 20
ROWS = [
    TraceRow(4, "a", "forward", 0.010, 100 * MIB),
    TraceRow(4, "", "forward", 0.030, 110 * MIB),
    TraceRow(4, "a", "backward", 0.020, 104 * MIB),
    TraceRow(5, "a", "forward", 0.030, 112 * MIB),
    TraceRow(5, "a", "backward", 0.020, -1),
    TraceRow(6, "a", "forward", 0.060, 112 * MIB),
]


def trace(**changes: object) -> ModuleTrace:
    given = {"rows": ROWS, "steps": [(4, 0.1), (5, 0.1)], **changes}
    return ModuleTrace(number=1, rank=1, node="node-a", attempt=0, at_s=9.0, **given)  # type: ignore[arg-type]


def test_calls_are_summed_up() -> None:
    first, second, third = sum_up(ROWS, [(4, 0.1), (5, 0.1)])
    assert (first.module, first.stage, first.count, first.total_s) == ("a", "forward", 3, pytest.approx(0.1))
    assert first.mean_s == pytest.approx(0.1 / 3)
    assert first.share == pytest.approx(0.2), "step 6 was not traced to its end"
    assert first.grew_bytes == 8 * MIB, "104 to 112; what came first has nothing before it"
    assert (second.module, second.grew_bytes, grown(second)) == ("a", -6 * MIB, "-6 MB")
    assert (third.module, third.grew_bytes, grown(third)) == ("(whole)", 10 * MIB, "+10 MB")


def test_what_is_not_known_is_left_open() -> None:
    (one,) = sum_up([TraceRow(1, "a", "forward", 0.1, -1)] * 2, [])
    assert one == ModuleSum(module="a", stage="forward", count=2, mean_s=0.1, total_s=0.2, share=None, grew_bytes=None)
    assert grown(one) == "" and sum_up([], [(1, 0.0)]) == []


def test_what_the_table_is_of() -> None:
    assert describe(trace()) == ["steps 4 to 5, 100 ms each; 6 calls of modules."]
    assert describe(trace(steps=[(4, 0.0123)]))[0] == "step 4, 12.3 ms each; 6 calls of modules."

    def others(**changes: object) -> str:
        return " ".join(describe(trace(**changes))[1:])

    assert "before as many steps as were asked for" in others(is_cut=True)
    assert describe(trace(steps=[]))[0].startswith("no step was traced from first to last")
    assert "For 1,200 more there was no room" in others(left_out=1200)
    assert "Times are the host's" in others(memory="device") and others(memory="host") == ""
    assert others(compiled=["", "b"], compiled_count=9).endswith("nothing is known: (whole), b, and 7 more.")
    assert others(compiled=["b"], compiled_count=1).endswith("nothing is known: b.")
    assert "ended because something was compiled" in others(is_compiled=True)
