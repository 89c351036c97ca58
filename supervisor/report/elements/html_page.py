"""Pages from `templates/`: self-contained, and whatever a stack or a message holds stays text on them.

jinja2 takes 50 ms to import, and the templates as long to compile: nothing here does so before the first page, or
`load_soon`. Both are files of guardrun's installation, which may lie on a mount that has died: they are read by a
thread of their own, and waited for no longer than LOAD_S.
"""

from __future__ import annotations

import functools
import html
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from guardrun.supervisor.base.printable import make_harmless

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jinja2 import Environment

TEMPLATES = Path(__file__).parents[1] / "templates"
STYLE = (TEMPLATES / "page.css").read_text(encoding="utf-8")
LOAD_S = 5.0

T = TypeVar("T")


def load_soon() -> None:
    """Begin to load the templates, so that a page that is written soon need not wait for them. Never raises."""
    with suppress(RuntimeError):  # no more threads may be started
        _loading()


def render(template: str, **values: Any) -> str:
    """The page that a template makes of values.

    Raises what jinja2 raises, ImportError where it is not installed, TimeoutError where its files can't be read.
    """
    return environment().get_template(template).render(values)


def environment(limit_s: float | None = None) -> Environment:
    """All templates, compiled; waited for no longer than that, None: LOAD_S. Raises as render does."""
    from concurrent import futures

    limit_s = LOAD_S if limit_s is None else limit_s
    try:
        return _loading().result(limit_s)
    except futures.TimeoutError:  # before Python 3.11 another than TimeoutError
        raise TimeoutError(f"{TEMPLATES} could not be read within {limit_s:g} s") from None


@functools.cache
def _loading() -> Future[Environment]:
    from concurrent.futures import Future

    found: Future[Environment] = Future()

    def load() -> None:
        try:
            found.set_result(_load())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=load, name="guardrun-templates", daemon=True).start()
    return found


def _load() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loaded = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_as_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    for name in loaded.list_templates(extensions=["html", "css"]):
        loaded.get_template(name)
    return loaded


def _as_shown(value: Any) -> Any:
    """What is escaped next: text that turns nothing around, numbers no longer than places on a drawing need."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value  # what a macro has made is escaped already, and all that turns or steers is not printable
    return make_harmless(value.replace("\r", "\n"))


def plain_page(title: str, heading: str, said: str) -> str:
    """A page that needs no template: what is left where those can't be loaded, or fail. It links to incident.json."""
    title, heading, said = (html.escape(make_harmless(text)) for text in (title, heading, said))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{heading}</h1>\n"
        f"<section>\n<h2>The rest of this page could not be made</h2>\n<pre>{said}</pre>\n</section>\n"
        '<footer>All that is known is in <a href="incident.json">incident.json</a>.</footer>\n'
        "</main>\n</body>\n</html>\n"
    )


class Guard:
    """Has each part of a page stand for itself: one that cannot be made must not cost the page."""

    def __init__(self) -> None:
        self.empty: list[str] = []
        """Headings of the parts that had nothing to show."""

    def __call__(self, heading: str, make: Callable[[], T]) -> tuple[T | str, str]:
        """What make answers, without blanks around it, and why it has none."""
        try:
            made: T | str = make()
            if isinstance(made, str):
                made = made.strip()
        except Exception as error:
            return "", f"{type(error).__name__}: {error}"[:500]
        if not made:
            self.empty.append(heading)
        return made, ""


class Table(NamedTuple):
    """Cells under headings."""

    columns: list[tuple[str, str]]
    """Heading and kind of each: wide may wrap, narrow stays on one line."""
    rows: list[tuple[str, list[str]]]
    """Of each the kind (culprit, odd or nothing) and the cells."""


def make_table(
    headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], wide: Sequence[str] = ()
) -> Table | None:
    """Rows of (kind, cells), without the columns that are empty; None where there are no rows."""
    if not rows:
        return None
    used = [n for n in range(len(headings)) if any(cells[n] for _, cells in rows)]
    columns = [(headings[n], "wide" if headings[n] in wide else "narrow") for n in used]
    return Table(columns, [(kind, [cells[n] for n in used]) for kind, cells in rows])
