"""Names of classes and functions are the field's words: some that were this project's own don't come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.project.purity import ROOT, product_files

WORDS_OF_CLASSES = {
    "Told", "Tidings", "Silent", "Heard", "Desk", "Deputy", "Station", "Gather", "Headless", "Stillness",
    "Doors", "Doorman", "Crowd", "News", "Undertaker", "Ward", "Mender", "Onsets", "Thinner", "Intake", "Vigil",
    "Turning", "Opening", "Standin", "Scribe", "Senses", "Strip", "Heart", "Spent", "Raised", "Strays", "Unmet",
    "Usual", "Falls", "Layers", "Strikes", "Meeting", "Summed", "Doing", "Blame", "Side", "Absence",
}  # fmt: skip
"""Words that no class has in its name."""
FUNCTIONS = {
    "told", "tell", "tells", "take", "say", "says", "stand", "left", "leave_out", "go_on", "held_against",
    "heard", "fell",
}  # fmt: skip
"""Names that no function or method has."""
TEXT = re.compile(r"\b(deputy|deputies|desk|doorman|heart|scribe|undertaker|vigil)\b", re.IGNORECASE)
"""Words that no docstring and no comment has: what they stood for has another name."""


def bad_names(source: str) -> Iterator[str]:
    """Names of a file's classes and functions that are on the lists; private ones, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            if WORDS_OF_CLASSES.intersection(re.findall(r"[A-Z][a-z0-9]*", node.name)):
                yield node.name
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.strip("_") in FUNCTIONS:
            yield node.name


def names_in_use() -> list[tuple[str, str]]:
    """(file, name) of all that is on the lists."""
    return [(str(path.relative_to(ROOT)), name) for path in product_files() for name in bad_names(path.read_text())]


def texts(source: str) -> Iterator[str]:
    """A file's docstrings (of attributes, too) and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_docstrings_and_comments_have_the_names_of_today() -> None:
    assert [text for text in texts('"""A desk."""\n\nx = "desk"  # deputy\n') if TEXT.search(text)] == [
        "A desk.",
        "# deputy",
    ]
    found = [
        (str(path.relative_to(ROOT)), text)
        for path in product_files()
        for text in texts(path.read_text())
        if TEXT.search(text)
    ]
    assert not found


def test_names_are_the_fields_words() -> None:
    assert not names_in_use(), "docs/glossary.md has the field's words"


@pytest.mark.parametrize(
    "source", ["class NodeTold: ...", "class Desk: ...", "def told(): ...", "class A:\n def _take(self): ..."]
)
def test_what_is_on_the_lists_is_found(source: str) -> None:
    assert list(bad_names(source))


@pytest.mark.parametrize("source", ["class TakeLook: ...", "class Paste: ...", "def take_look(): ...", "told = 1"])
def test_what_only_resembles_it_is_not(source: str) -> None:
    assert not list(bad_names(source))
