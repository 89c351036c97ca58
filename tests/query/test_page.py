"""docs/query.md has the tables and columns that there are, and its queries can be asked."""

from __future__ import annotations

import re
from pathlib import Path

from guardrun.supervisor.query.bounds import Bounds
from guardrun.supervisor.query.run_query import RunQuery
from guardrun.supervisor.rundir.run_directory import RunFile
from tests.query.schema_page import PAGE, current, render


def test_the_page_has_the_schema() -> None:
    assert current(PAGE.read_text()) == render(), "python -m tests.query.schema_page writes it anew"


def test_the_pages_queries_can_be_asked(full: tuple[Path, RunFile]) -> None:
    queries = re.findall(r'^guardctl query .*"(SELECT .*)"', PAGE.read_text(), re.MULTILINE)
    assert len(queries) == 2
    for sql in queries:
        assert RunQuery(*full, None, "it is over", Bounds()).answer(sql).answer.rows
