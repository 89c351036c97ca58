"""What becomes of the moments that a killed training has noted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.job import Moment
from benchmarks.machine import describe
from benchmarks.recovery import (
    CONTENDERS,
    DOCS,
    IMPORTING,
    WARM,
    Recovery,
    Report,
    Sample,
    as_table,
    find_durations,
    find_recovery,
    main,
    render,
)

S = 1_000_000_000


def at(second: float, what: str, rank: int = 0, attempt: int = 0) -> Moment:
    return Moment(what=what, at_ns=int(second * S), attempt=attempt, rank=rank, pid=100 + 10 * attempt + rank)


BEFORE = [at(second, f"step {second + 18}", rank) for second in (1, 2, 3) for rank in (0, 1)] + [at(4, "killed", 1)]
RESTARTED = [at(4.5 + rank, "first", rank, 1) for rank in (0, 1)] + [
    at(7 + rank, "imported", rank, 1) for rank in (0, 1)
]
REDONE = [at(9, "step 21", 0, 1), at(9, "step 21", 1, 1), at(10, "step 22", 0, 1), at(10.5, "step 22", 1, 1)]


def test_steps_from_the_last_save_are_done_again() -> None:
    """A rank that notes its last step late has done it once."""
    late = [moment for moment in BEFORE if (moment.what, moment.rank) != ("step 21", 0)] + [at(4.1, "step 21")]
    for before in (BEFORE, late):
        found = find_recovery(before + RESTARTED + REDONE)
        assert found == Recovery(first_s=1.5, imported_s=4.0, new_s=6.0, all_s=6.5, again=1)
    found = find_recovery(late + RESTARTED + REDONE[2:])
    assert found is not None and found.again == 0


def test_a_survivor_trains_on_and_the_one_that_was_killed_follows() -> None:
    """torchft: only one process is started anew; its step 21 is not one that it had done."""
    alone = [
        at(5, "step 22"),
        at(5.5, "first", 1, 1),
        at(6, "imported", 1, 1),
        at(7, "step 24"),
        at(7, "step 24", 1, 1),
    ]
    found = find_recovery(BEFORE + alone)
    assert found == Recovery(first_s=1.5, imported_s=2.0, new_s=1.0, all_s=3.0, again=0)


@pytest.mark.parametrize("moments", [[], BEFORE[:-1], BEFORE, BEFORE + RESTARTED + REDONE[:-1]])
def test_it_is_not_over_before_every_rank_has_done_a_new_step(moments: list[Moment]) -> None:
    assert find_recovery(moments) is None


def test_what_a_rank_stands_for_is_from_its_beginning_to_its_end() -> None:
    """One that was cut short, as another began with the next attempt, is none."""
    moments = [at(1, "save began"), at(1.5, "save ended"), at(2, "save began"), at(3, "save ended", attempt=1)]
    assert find_durations(moments, "save") == [0.5]
    assert find_durations(moments, "copy") == []


def sample(
    contender: str, again: int | None, *, has_imports: bool = False, copy_s: list[float] | None = None
) -> Sample:
    times = Recovery(first_s=0.1, imported_s=1.0, new_s=2.0, all_s=2.5, again=again or 0)
    return Sample(
        contender=contender,
        has_imports=has_imports,
        recovery=None if again is None else times,
        save_s=[0.004, 0.006],
        copy_s=copy_s or [],
        beside_mb=150.0,
    )


def test_the_table_has_a_line_for_each_that_was_run() -> None:
    lines = as_table([sample("guardrun", 3), sample("torchrun", 5), sample("torchrun", None)]).splitlines()
    assert lines[2] == (
        "| torchrun | 2, 1 not gone on | 0.100 s | 1.00 s | 2.00 s | 2.50 s | 5 | 5.00 ms (4.00 … 6.00) "
        "| 150 MB (150 … 150) |"
    )
    assert lines[3].startswith("| guardrun | 1 | 0.100 s |")
    assert len(lines) == 4


def test_copies_into_memory_are_told_beside_saves() -> None:
    assert "; a copy 2.00 ms |" in as_table([sample("guardrun, snapshot", 1, copy_s=[0.002])])


def test_what_could_not_be_measured_is_named() -> None:
    samples = [sample("torchrun", 1), sample("torchrun", 1, has_imports=True)]
    text = render(Report(machine=describe(), command="it", samples=samples, missing=["torchft (not installed)"]))
    assert text.count("| torchrun |") == 2
    assert "Not measured: torchft (not installed).\n" in text


def test_an_earlier_run_is_shown_and_its_failures_are_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for again, status in ((2, 0), (None, 1)):
        report = Report(machine=describe(), command="it", samples=[sample("torchrun", again)], missing=[])
        (tmp_path / "it.json").write_bytes(msgspec.json.encode(report))
        assert main(["--from-json", str(tmp_path / "it.json")]) == status
        assert "| torchrun | 1" in capsys.readouterr().out


def test_the_page_names_every_contender() -> None:
    names = [contender.name for contender in CONTENDERS]
    assert len(set(names)) == len(names)
    assert {WARM, *IMPORTING} <= set(names)
    page = DOCS.read_text()
    assert [name for name in names if f"`{name}`" not in page] == []
