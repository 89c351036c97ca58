"""What the view's screens are made of, by textual: painted lines, pages to scroll, lists to choose from, a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from guardrun.supervisor.cli.base.output import clean
from guardrun.supervisor.cli.top.lines import BOLD, DIM, STYLES, TITLE, Line, Piece, fit, wrap

MAX_LINES = 50_000


def strip_of(line: Line, width: int) -> Strip:
    """A line as textual has it."""
    segments = [Segment(piece.text, _style(piece.style)) for piece in fit(line, width) if piece.text]
    return Strip(segments, width)


def _style(names: str) -> Style:
    return Style.parse(" ".join(STYLES[name] for name in names.split()))


def _hints(*keys: tuple[str, str]) -> Line:
    return [piece for key, label in keys for piece in (Piece(f" {key}", BOLD), Piece(f" {label} ", DIM))]


class Canvas(Widget):
    """Lines as they were painted for its size."""

    def __init__(self, painted: Callable[[int, int], list[Line]]) -> None:
        super().__init__()
        self._painted = painted
        self.lines: list[Line] = []

    def repaint(self) -> None:
        """Paint anew."""
        self.lines = self._painted(self.size.width, self.size.height)
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Paint for the new size."""
        self.repaint()

    def render_line(self, y: int) -> Strip:
        """One line of it."""
        return strip_of(self.lines[y] if y < len(self.lines) else [], self.size.width)


class Page(ScrollView, can_focus=True):
    """Lines of which more are there than fit; with a cursor, where one may be chosen."""

    def __init__(self, lines: Sequence[Line], has_cursor: bool = False) -> None:
        super().__init__()
        self.lines = list(lines[:MAX_LINES])
        self.cursor = 0 if has_cursor else -1
        wide = max((sum(len(piece.text) for piece in line) for line in self.lines), default=0)
        self.virtual_size = Size(min(wide, 1000), len(self.lines))

    def move(self, by: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + by, 0), len(self.lines) - 1)
        top, high = round(self.scroll_offset.y), self.size.height
        if not top <= self.cursor < top + high:
            self.scroll_to(y=max(0, self.cursor - high // 2), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of what is in sight."""
        left, top = self.scroll_offset
        place = top + y
        line = self.lines[place] if place < len(self.lines) else []
        if place == self.cursor and line:
            line = [Piece("".join(piece.text for piece in line), TITLE)]
        return strip_of(line, self.size.width + left).crop(left, left + self.size.width)


class Reading(Screen[None]):
    """A page with a title: stacks, an incident, the log, help."""

    BINDINGS: ClassVar[list[Any]] = [
        ("escape,q,enter", "back", ""),
        ("j", "down", ""),
        ("k", "up", ""),
        ("space", "page", ""),
    ]

    def __init__(self, title: str, lines: Sequence[Line], at_end: bool = False) -> None:
        super().__init__()
        self._title, self._page, self._at_end = title, Page(lines), at_end

    def compose(self) -> ComposeResult:
        """A title, lines, keys."""
        yield Bar([Piece(f" {clean(self._title)}", TITLE)], TITLE)
        yield self._page
        yield Bar(_hints(("↑ ↓ PgUp PgDn", "scroll"), ("q", "back")))

    def on_mount(self) -> None:
        """Begin where it is read from."""
        self._page.focus()
        if self._at_end:
            self._page.scroll_end(animate=False)

    def _action_back(self) -> None:
        self.dismiss(None)

    def _action_down(self) -> None:
        self._page.scroll_down(animate=False)

    def _action_up(self) -> None:
        self._page.scroll_up(animate=False)

    def _action_page(self) -> None:
        self._page.scroll_page_down(animate=False)


class Bar(Widget):
    """One line."""

    def __init__(self, line: Line, rest: str = "") -> None:
        """rest: the style of what is left of the line."""
        super().__init__()
        self._line, self._rest = line, rest

    def show(self, line: Line) -> None:
        """Another one."""
        self._line = line
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line."""
        line = fit(self._line, self.size.width)
        if self._rest and len(line) > len(self._line):
            line[-1] = Piece(line[-1].text, self._rest)
        return strip_of(line, self.size.width)


class Choosing(Screen[int | None]):
    """Lines of which one is chosen: answers its place, or None."""

    BINDINGS: ClassVar[list[Any]] = [
        ("escape,q", "leave", ""),
        ("enter", "take", ""),
        *[(key, f"move({by})", "") for key, by in (("up,k", -1), ("down,j", 1), ("pageup", -10), ("pagedown", 10))],
        ("home", "move(-100000)", ""),
        ("end", "move(100000)", ""),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title, self._page = title, Page(lines, has_cursor=True)
        self._page.can_focus = False

    def compose(self) -> ComposeResult:
        """A title, lines, keys."""
        yield Bar([Piece(f" {clean(self._title)}", TITLE)], TITLE)
        yield self._page
        yield Bar(_hints(("↑ ↓", "choose"), ("Enter", "show"), ("q", "back")))

    def _action_move(self, by: int) -> None:
        self._page.move(by)

    def _action_take(self) -> None:
        self.dismiss(self._page.cursor)

    def _action_leave(self) -> None:
        self.dismiss(None)


class Asking(Screen[bool]):
    """Whether something is to be done to a run: yes only by typing the word, letter by letter, and Enter."""

    BINDINGS: ClassVar[list[Any]] = [("escape", "leave", "")]

    def __init__(self, word: str, sentence: str) -> None:
        super().__init__()
        self._word, self._sentence, self._typed = word, sentence, ""

    def compose(self) -> ComposeResult:
        """The question."""
        yield Bar([Piece(f" {self._word}?", TITLE)], TITLE)
        yield Canvas(self._painted)

    def _painted(self, width: int, height: int) -> list[Line]:
        said: list[Line] = [[], *([Piece(f" {line}")] for line in wrap(self._sentence, width - 2, 6)), []]
        said.append([Piece(f" Type {self._word} and press Enter; Esc leaves it: ", BOLD), Piece(f"{self._typed}▏")])
        return said

    def on_key(self, event: events.Key) -> None:
        """Take a letter, or an answer."""
        if event.key == "enter":
            self.dismiss(self._typed == self._word)
        elif event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character.isalpha() and event.is_printable:
            self._typed = (self._typed + event.character)[-40:]
        self.query_one(Canvas).repaint()

    def _action_leave(self) -> None:
        self.dismiss(False)
