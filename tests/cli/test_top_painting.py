"""The view of a run, painted: each line as wide as the terminal, and no text of a run a command to it."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from guardrun.supervisor.cli.top.lines import Line, fit, spark, text_of, wrap
from guardrun.supervisor.cli.top.painting import Key, paint
from guardrun.supervisor.watch.rank_view import Ranks
from guardrun.supervisor.watch.run_view import Point, RunView
from tests.watch.picture import DOCS, SVG, capture, draw
from tests.watch.stories import STALL, view_of

KEYS = [Key("s", "stacks"), Key("i", "incidents"), Key("?", "help"), Key("q", "quit")]


def painted(view: RunView, width: int = 80, height: int = 24, **more: Any) -> list[Line]:
    return paint(view, width, height, **{"age_s": 0.2, "window": "10 min", "keys": KEYS, **more})


@pytest.fixture(scope="module")
def view() -> RunView:
    return view_of(8)


@pytest.mark.parametrize("size", [(20, 3), (40, 10), (80, 24), (81, 25), (139, 30), (140, 30), (200, 60), (300, 100)])
@pytest.mark.parametrize("ranks", [0, 1, 8, 300])
def test_every_line_fills_the_terminal(size: tuple[int, int], ranks: int) -> None:
    width, height = size
    lines = painted(view_of(ranks, 20), width, height, message="asked")
    assert len(lines) == height
    assert {sum(cell_len(piece.text) for piece in line) for line in lines} == {width}
    assert text_of(lines[-1]).rstrip().endswith("q quit")


def test_what_holds_the_run_up_is_said_first(view: RunView) -> None:
    text = [text_of(line) for line in painted(view)]
    assert "STALLED now" in text[0] and "holds the run up" in "".join(text)
    assert " ".join(part.strip() for part in text[2:4]) == STALL
    assert any(line.startswith(" Goodput  87%") and "detecting 31 s" in line for line in text)
    assert any(line.startswith(" 001 straggler  Rank 3") for line in text)


def test_an_answer_that_is_old_says_so(view: RunView) -> None:
    assert "STALLED 7 s ago" in text_of(painted(view, age_s=7.2)[0])
    over = msgspec.structs.replace(view, state="ended", is_over=True, outcome="failed, exit code 1", reason="It fell.")
    text = "\n".join(text_of(line) for line in painted(over, age_s=700.0))
    assert "ENDED " in text and "700 s" not in text and "failed, exit code 1" in text and "It fell." in text


def test_ten_thousand_ranks_in_little_work() -> None:
    huge = view_of(10_000, 20)
    began_s = time.process_time()
    text = [text_of(line) for line in painted(huge)]
    took_s = time.process_time() - began_s
    print(f"10,000 ranks painted in {took_s:.4f} s")
    assert took_s < 0.5
    shown = "\n".join(text)
    assert "Ranks 10,000 · 2 stand out · a sign is 17 nodes" in shown
    assert re.search(r"^ +1 +node-0 .*holds the run up", shown, re.M)
    assert re.search(r"^ +3 +node-0 .*works 1.6 × the median", shown, re.M)
    wide = "\n".join(text_of(line) for line in painted(huge, 200, 60))
    assert re.search(r"work a step +│.*│ 2\d\d ms … median", wide) and " a sign is 2 nodes" in wide


HOSTILE = "\x1b[2J\x1b]0;x\x07[red]bold[/red]\r\n\u202eevil \x9b31m\udc80 [link=http://x]y[/link]"


def test_what_a_run_says_is_text(view: RunView) -> None:
    """In every string that there is: control characters are blanks, markup stands as it was written."""
    data = msgspec.to_builtins(view)

    def spoil(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: spoil(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one, name) for one in value]
        return HOSTILE + value if isinstance(value, str) else value

    spoilt = msgspec.convert(spoil(data), RunView)
    for size in ((80, 24), (200, 60)):
        lines = painted(spoilt, *size, message=HOSTILE)
        text = "".join(text_of(line) for line in lines)
        assert text.isprintable(), [char for char in text if not char.isprintable()]
        assert "[red]bold[/red]" in text
        assert {sum(cell_len(piece.text) for piece in line) for line in lines} == {size[0]}


def test_wide_characters_do_not_push_lines_out(view: RunView) -> None:
    odd = msgspec.structs.replace(view, run_id="訓練" * 50, stall="停" * 200)
    assert {sum(cell_len(piece.text) for piece in line) for line in painted(odd)} == {80}


def test_a_curve() -> None:
    points = [Point(float(at), float(at)) for at in range(0, 80)]
    assert spark(points, 80.0, 8) == ["▁▂▃▄▅▆▇█"]
    assert spark(points, 80.0, 4, rows=2) == ["  ▃▇", "▂▆██"]
    assert spark([], 80.0, 8) == [""] and spark(points, 80.0, 0) == [""]
    # After the last point it goes on for some seconds, and ends.
    assert spark(points, 160.0, 8)[0].rstrip() == "▁▃▆█" and len(spark(points, 160.0, 8)[0]) == 8
    flat = spark([Point(0.0, 5.0), Point(4.0, 5.0)], 4.0, 4)
    assert flat == ["▁▁▁▁"]


def test_sentences_are_cut_at_blanks() -> None:
    assert wrap("a bb ccc dddd", 5, 2) == ["a bb", "ccc …"]
    assert wrap("", 5, 2) == [] and wrap("a xxxxxxxx", 5, 9) == ["a", "xxxxx", "xxx"]
    assert wrap("x" * 30, 5, 1) == ["xxx …"]
    assert text_of(fit([*painted(view_of(1, 10))[0]], 10)).endswith("…")


def test_the_page_shows_what_is_painted() -> None:
    """docs/top.md and its picture: `python -m tests.watch.picture` draws and prints them anew."""
    page = (DOCS / "top.md").read_text()
    assert capture(8) in page and capture(10_000) in page
    keys = page.partition("## For programs")[2].partition("## Keys")[0]
    assert [name for name in (*RunView.__struct_fields__, *Ranks.__struct_fields__) if f"`{name}`" not in keys] == []
    words = re.sub(r"<[^>]+>", "", draw())
    assert re.sub(r"<[^>]+>", "", SVG.read_text()) == words
    assert set(re.findall(r"https?://[\w.]+", SVG.read_text())) == {"http://www.w3.org", "https://www.textualize.io"}
