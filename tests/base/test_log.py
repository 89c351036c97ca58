"""The supervisor's log: a file, or nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from guardrun.supervisor.base.log import log, set_up_log


@pytest.fixture(autouse=True)
def _defaults_again() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_lines_are_json_with_their_fields(tmp_path: Path) -> None:
    file = set_up_log(tmp_path / "log")
    assert file is not None
    log.info("happened", what="it")
    file.close()
    line = json.loads((tmp_path / "log").read_text())
    assert (line["event"], line["what"], line["level"]) == ("happened", "it", "info")


def test_where_no_file_can_be_opened_nothing_is_logged_and_nobody_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert set_up_log(tmp_path / "no" / "log") is None
    log.error("happened")
    assert capfd.readouterr() == ("", "")
