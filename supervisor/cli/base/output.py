"""guardctl's output: JSON for programs, tables for people; plain text where nobody sees colours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from textwrap import fill
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from guardrun.supervisor.base.printable import make_harmless_json

PIPE_COLUMNS = 4096
"""Into a pipe nothing is cut or folded: who reads it there searches it."""


def clean(text: str, keep_lines: bool = False) -> str:
    """Text that can do nothing to a terminal: control characters, an escape's first of all, become spaces."""
    return "".join(c if c.isprintable() or (keep_lines and c == "\n") else " " for c in text)


class Output:
    """Where a verb puts its answer."""

    def __init__(self, is_json: bool, environ: Mapping[str, str], file: IO[str] | None = None) -> None:
        self.is_json = is_json
        self._file = file or sys.stdout
        self._warned: set[str] = set()
        self.is_terminal = self._file.isatty()
        columns = environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else None if self.is_terminal else PIPE_COLUMNS
        self.console = Console(
            file=self._file,
            width=width,
            # With a width alone rich still takes a terminal that calls itself dumb for 80 columns wide.
            height=None if width is None else 25,
            highlight=False,
            markup=False,
            emoji=False,
            no_color="NO_COLOR" in environ or not self.is_terminal,
            force_terminal=self.is_terminal,
            _environ=dict(environ),
        )

    def json(self, data: Mapping[str, Any], is_line: bool = False) -> None:
        """Print one JSON object: indented, or as one line of many."""
        text = json.dumps(data, indent=None if is_line else 2, ensure_ascii=False, default=str)
        self._file.write(make_harmless_json(text) + "\n")
        self._file.flush()

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line; control characters in it are written out, line breaks kept.

        It goes on in the next between words alone: a path that was broken in two could not be copied.
        """
        width, lines = self.console.width, clean(text, keep_lines=True).split("\n")
        folded = "\n".join(
            line if cell_len(line) <= width else fill(line, width, break_long_words=False, break_on_hyphens=False)
            for line in lines
        )
        self.print(Text(folded, style=style), is_folded=True)

    def text(self, text: str) -> None:
        """Write text of lines as it stands: whoever made it has made it harmless."""
        self._file.write(text)
        self._file.flush()

    def print(self, what: RenderableType, *, is_folded: bool = False) -> None:
        """Print anything that rich can; on a pipe without the blanks it pads lines with.

        is_folded: its lines are as long as they shall be.
        """
        if self.is_terminal:
            self.console.print(what, soft_wrap=is_folded)
            return
        with self.console.capture() as capture:
            self.console.print(what, soft_wrap=is_folded)
        for line in capture.get().splitlines():
            self._file.write(line.rstrip() + "\n")
        self._file.flush()

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        """Print what `make_table` makes of these."""
        self.print(self.make_table(headings, rows, styles))

    def make_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> Table:
        """A table; columns in which every cell is empty are left out. styles: one a row."""
        used = [n for n, _ in enumerate(headings) if any(row[n] for row in rows)]
        table = Table(
            box=SIMPLE_HEAD if self.is_terminal else None,
            pad_edge=False,
            header_style="dim",
            show_header=any(headings),
        )
        for n in used:
            # Numbers and ids must not be torn; what is long folds.
            is_short = all(len(row[n]) <= 12 for row in rows)
            table.add_column(headings[n], overflow="fold", no_wrap=is_short and self.console.width >= 60)
        for index, row in enumerate(rows):
            style = styles[index] if index < len(styles) else ""
            table.add_row(*(Text(clean(row[n]), style=style) for n in used))
        return table

    def aside(self, message: str) -> None:
        """Say something beside the answer."""
        with suppress(OSError):
            sys.stderr.write(f"guardctl: {clean(message, keep_lines=True)}\n")

    def warn(self, message: str) -> None:
        """Likewise a warning, once."""
        if message not in self._warned:
            self._warned.add(message)
            self.aside(f"warning: {message}")

    def error(self, message: str) -> None:
        """Say why there is no answer: to a program on stdout too."""
        if self.is_json:
            self.json({"error": message})
        self.aside(message)


def silence_stdout() -> None:
    """After a reader has gone (`| head`): let the interpreter's last flush go nowhere instead of complaining."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(devnull)
