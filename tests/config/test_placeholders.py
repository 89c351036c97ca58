from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.config import fill_placeholders
from guardrun.supervisor.config.values import unknown_placeholders


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--resume={path}", "--resume=/out/ckpt_40.pt"),
        ("{dir}/x/{step}", "/out/x/40"),
        ("+model={a: 1}", "+model={a: 1}"),
        ("{}", "{}"),
        ("plain", "plain"),
    ],
)
def test_fill(text: str, filled: str) -> None:
    assert fill_placeholders(text, "/out/ckpt_40.pt", 40, "/out") == filled
    assert unknown_placeholders(text) == []


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert fill_placeholders("{path}", "/{step}", 1, "/{path}") == "/{step}"


@given(st.text())
def test_any_text_is_either_known_or_named(text: str) -> None:
    filled = fill_placeholders(text, "P", 1, "D")
    if not unknown_placeholders(text):
        assert not any(f"{{{name}}}" in filled for name in ("path", "step", "dir")) or "{" in text
