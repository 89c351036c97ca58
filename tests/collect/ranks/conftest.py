"""What tests of ranks' shared pages have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.rank.rank import Rank


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """One in this process, whose pages are in the test's folder."""
    monkeypatch.setenv("RANK", "0")
    return Rank({"sockets": str(tmp_path)}, 0)
