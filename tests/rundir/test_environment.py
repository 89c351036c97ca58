"""RUN/environment.json: a record where it says anything new, as many as there is room for."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.rundir.environment import (
    MAX_RECORDS,
    NAME,
    Environment,
    FileDigest,
    add_environment,
    read_environments,
)


def test_only_what_is_new_is_added(tmp_path: Path) -> None:
    first = Environment(seed=1, files={"train.py": FileDigest(digest="00", size_bytes=1)})
    assert add_environment(tmp_path, first)
    assert not add_environment(tmp_path, msgspec.structs.replace(first, attempt=1, session=1, wall_s=9.0))
    changed = msgspec.structs.replace(first, attempt=2, files={"train.py": FileDigest(digest="11", size_bytes=1)})
    assert add_environment(tmp_path, changed)
    assert read_environments(tmp_path) == ([first, changed], "")


def test_the_first_ones_and_the_last_are_kept(tmp_path: Path) -> None:
    for seed in range(MAX_RECORDS + 9):
        add_environment(tmp_path, Environment(seed=seed))
    found, _ = read_environments(tmp_path)
    assert [one.seed for one in found] == [*range(MAX_RECORDS - 1), MAX_RECORDS + 8]


def test_none_was_recorded(tmp_path: Path) -> None:
    assert read_environments(tmp_path) == ([], "")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"records": 3}', '{"records": [{"seed": "x"}]}', "[" * 100_000])
def test_what_cannot_be_read_is_said_and_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    found, why = read_environments(tmp_path)
    assert found == [] and "none of this version" in why
    assert add_environment(tmp_path, Environment(seed=1))
    assert read_environments(tmp_path) == ([Environment(seed=1)], "")


def test_a_later_version_says_more(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"schema": 1, "records": [{"seed": 3, "weather": "fair"}], "more": 1}')
    assert read_environments(tmp_path) == ([Environment(seed=3)], "")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_no_file_of_its_own(tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").write_text('{"records": [{"seed": 3}]}')
        (tmp_path / NAME).symlink_to("elsewhere")
    else:
        os.mkfifo(tmp_path / NAME)
    found, why = read_environments(tmp_path)
    assert found == [] and why
