"""Links in the documentation lead somewhere, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.purity import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get where it is shown: lower case, dashes, no other marks."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`?make ([a-z-]+)\b", commands(page))}
    assert named
    assert named <= targets


def commands(page: Path) -> str:
    """What a page shows as code: fenced blocks and spans."""
    text = page.read_text()
    return "\n".join([*FENCE.findall(text), *re.findall(r"`[^`\n]+`", FENCE.sub("", text))])


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `thing`, twice\n[a](#a-thing-twice) [b](#no) [c](gone.md) [d](https://x.invalid/)\n[e](page.md)\n"
    )
    assert broken_links(page) == ["#no", "gone.md"]
