"""What tests of ranks' shared pages have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.rank.rank import Rank
from guardrun.supervisor.collect.ranks import look


@pytest.fixture
def own_limits() -> None:
    """For a test of how long a look may take: the limits are those that it really has."""


@pytest.fixture(autouse=True)
def long_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks have time for a py-spy that starts slowly, as on a busy machine; not with own_limits."""
    if "own_limits" not in request.fixturenames:
        monkeypatch.setattr(look, "TIMEOUT_S", 20.0)
        monkeypatch.setattr(look, "limit_s", lambda *_: 60.0)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """One in this process, whose pages are in the test's folder."""
    monkeypatch.setenv("RANK", "0")
    return Rank({"sockets": str(tmp_path)}, 0)
