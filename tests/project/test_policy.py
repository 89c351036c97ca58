"""docs/policy.md says how patient guardrun is, as the code has it."""

from __future__ import annotations

from pathlib import Path

from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.hang_patience import NEVER_S, PROOF, WITHOUT, Grounds

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"


def cell(seconds: float) -> str:
    return "hard limit" if seconds >= NEVER_S else f"{seconds:g} s"


def row(grounds: Grounds) -> str:
    return f"| {grounds.words} | {' | '.join(map(cell, (grounds.eager, grounds.normal, grounds.patient)))} |"


def test_the_table_is_the_codes() -> None:
    page = PAGE.read_text()
    table = page.split("<!-- patience: begin", 1)[1].split("-->\n", 1)[1].split("<!-- patience: end -->", 1)[0]
    assert table.splitlines() == [
        "| what is seen | eager | normal | patient |",
        "|---|---|---|---|",
        "| **with proof** | | | |",
        *map(row, PROOF),
        "| **without** | | | |",
        *map(row, WITHOUT),
    ]


def test_every_patience_of_the_engine_is_in_it() -> None:
    fields = {name for name in Settings.__struct_fields__ if name.endswith("_patience_s")}
    assert {grounds.name for grounds in (*PROOF, *WITHOUT)} == fields


def test_proof_needs_the_same_patience_however_it_is_set() -> None:
    assert all(len({one.eager, one.normal, one.patient}) == 1 for one in PROOF)
    assert all(one.eager <= one.normal <= one.patient for one in WITHOUT)
