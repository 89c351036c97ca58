"""The part of docs/query.md that says what each table has; `python -m tests.query.schema_page` writes it anew."""

from __future__ import annotations

from guardrun.supervisor.query.run_query import TABLES
from tests.project.purity import ROOT

PAGE = ROOT / "docs" / "query.md"
BEGIN, END = "## Tables\n", "## Limits\n"


def render() -> str:
    """As `guardctl query --schema` has it."""
    parts = [BEGIN]
    for table in TABLES:
        live = " Of a living run: now." if table.is_live else ""
        parts.append(f"\n### {table.name}\n\n{table.doc}{live}\n\n| column | type | |\n|---|---|---|\n")
        parts += [f"| `{one.name}` | {one.type} | {one.doc} |\n" for one in table.columns]
    return "".join([*parts, "\n"])


def current(page: str) -> str:
    """What the page has of it."""
    return page[page.index(BEGIN) : page.index(END)]


def main() -> None:
    page = PAGE.read_text()
    PAGE.write_text(page.replace(current(page), render()))


if __name__ == "__main__":
    main()
