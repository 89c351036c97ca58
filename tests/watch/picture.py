"""The pictures of docs/top.md, of a run that never was: `python -m tests.watch.picture` draws them anew."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from guardrun.supervisor.cli.top.lines import STYLES, Line, text_of
from guardrun.supervisor.cli.top.painting import Key, paint
from tests.watch.stories import view_of

DOCS = Path(__file__).parents[2] / "docs"
SVG = DOCS / "images" / "top.svg"
KEYS = (
    Key("s", "stacks"),
    Key("i", "incidents"),
    Key("r", "report"),
    Key("h", "hold"),
    Key("X", "restart"),
    Key("?", "help"),
    Key("q", "quit"),
)


def lines(ranks: int, width: int, height: int) -> list[Line]:
    """The story, painted."""
    return paint(view_of(ranks, 600 if ranks < 1000 else 20), width, height, age_s=0.3, window="10 min", keys=KEYS)


def capture(ranks: int, width: int = 80, height: int = 24) -> str:
    """Without colours."""
    return "\n".join(text_of(line).rstrip() for line in lines(ranks, width, height))


def draw() -> str:
    """With colours, as SVG."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines(8, 100, 26):
        text = Text()
        for piece in line:
            text.append(piece.text, " ".join(STYLES[name] for name in piece.style.split()))
        console.print(text, no_wrap=True, crop=True)
    # Without fonts from elsewhere: whoever looks at the page fetches nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="guardctl top", unique_id="top"), flags=re.S)


if __name__ == "__main__":
    SVG.write_text(draw())
    print(capture(8))
    print(capture(10_000))
