"""The worked examples of CONTRIBUTING.md, applied to a copy of the source, pass the tests that they come with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.purity import ROOT
from tests.support.forkserver import client

PAGE = ROOT / "CONTRIBUTING.md"
EXAMPLES = ("A detector", "A sensor", "A checkpoint format", "A pre-flight check", "A verb of guardctl")
SECTION = re.compile(r"^### (.+)\n((?:(?!^##).*\n)+)", re.MULTILINE)
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^# ([\w/]+\.(?:py|toml))(?:, below: +([^\n]+))?\n", re.MULTILINE)
COPIED = ("supervisor", "src", "tests")
LINKED = ("hooks", "launcher", "slurm", "systemd", "docs")
LIMIT_S = 240
"""Many times what it takes, for a machine that is busy; a test has 300 s."""


class Piece(NamedTuple):
    """A file, or (below: a line that it has) lines to add to one."""

    file: str
    below: str
    text: str


def parse_block(text: str) -> list[Piece]:
    """What a block of code is, by its marks. Raises ValueError where it does not begin with one."""
    unmarked, *parts = MARK.split(text)
    if unmarked or not parts:
        raise ValueError(f"a block without a mark: {text.partition(chr(10))[0]}")
    pieces = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [Piece(file, below or "", f"{code.rstrip()}\n") for file, below, code in pieces]


def pieces_of(page: str, example: str) -> list[Piece]:
    """All of an example, in order. Raises KeyError where the page has no such section."""
    return [piece for block in FENCED.findall(dict(SECTION.findall(page))[example]) for piece in parse_block(block)]


def apply(piece: Piece, tree: Path) -> None:
    """Raises ValueError where a new file is there already, or the line to add below is not there exactly once."""
    path = tree / piece.file
    if not piece.below:
        if path.exists():
            raise ValueError(f"{piece.file} is there already")
        path.write_text(piece.text)
        return
    lines = path.read_text().splitlines(keepends=True)
    places = [number for number, line in enumerate(lines, 1) if line.strip() == piece.below.strip()]
    if len(places) != 1:
        raise ValueError(f"{piece.file} has {len(places)} lines {piece.below.strip()!r}")
    path.write_text("".join([*lines[: places[0]], piece.text, *lines[places[0] :]]))


def lay_out(tree: Path, pieces: list[Piece]) -> None:
    """Make the copy, with what has been compiled of it (known by time and size, which copies keep), and apply these."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in LINKED:
        (tree / name).symlink_to(ROOT / name)
    for piece in pieces:
        apply(piece, tree)


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """python -m …, where guardrun and tests are the copy's: executed, also for a fixture of the module's."""
    with client.executed():
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


def its_tests(pieces: list[Piece]) -> list[str]:
    """The files of tests that an example comes with."""
    return [piece.file for piece in pieces if piece.file.startswith("tests/")]


def run_their_tests(tree: Path, *, is_listed: bool) -> dict[str, tuple[Counter[str], str]]:
    """Per example how often its tests passed, and failed; and what all of them printed.

    is_listed: with the examples' lines in the lists of what is there, too.
    """
    page = PAGE.read_text()
    pieces = {example: pieces_of(page, example) for example in EXAMPLES}
    lay_out(tree, [piece for of_one in pieces.values() for piece in of_one if is_listed or not piece.below])
    files = {example: its_tests(of_one) for example, of_one in pieces.items()}
    options = ["-q", "-rpfE", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = run(tree, "pytest", *options, *sorted({file for of_one in files.values() for file in of_one}))
    output = done.stdout + done.stderr
    assert done.returncode == (0 if is_listed else 1), output
    ends = re.findall(r"^(PASSED|FAILED|ERROR) ([\w/]+\.py)", done.stdout, re.MULTILINE)
    return {example: (Counter(end for end, file in ends if file in files[example]), output) for example in EXAMPLES}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Counter[str], str]]:
    """All examples in one copy, as they are written."""
    return run_their_tests(tmp_path_factory.mktemp("listed"), is_listed=True)


@pytest.fixture(scope="module")
def unlisted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Counter[str], str]]:
    """All examples in one copy, without their lines in the lists."""
    return run_their_tests(tmp_path_factory.mktemp("unlisted"), is_listed=False)


@pytest.mark.cold
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_passes_its_test(example: str, listed: dict[str, tuple[Counter[str], str]]) -> None:
    """Long on a busy machine: Python compiles what it imports of the copy."""
    ends, output = listed[example]
    assert ends["PASSED"] and set(ends) == {"PASSED"}, output


@pytest.mark.cold
@pytest.mark.parametrize("example", EXAMPLES)
def test_without_its_lines_in_the_lists_its_test_fails(
    example: str, unlisted: dict[str, tuple[Counter[str], str]]
) -> None:
    """Long on a busy machine: Python compiles what it imports of the copy."""
    ends, output = unlisted[example]
    assert ends["FAILED"], output


@pytest.mark.cold
def test_examples_are_in_the_style_of_the_rest(tmp_path: Path) -> None:
    pieces = [piece for example in EXAMPLES for piece in pieces_of(PAGE.read_text(), example)]
    lay_out(tmp_path, pieces)
    files = sorted({piece.file for piece in pieces if piece.file.endswith(".py")})
    for arguments in (
        ["ruff", "check", "--no-cache", *files],
        ["ruff", "format", "--diff", "--no-cache", *files],
        ["vulture"],
    ):
        done = run(tmp_path, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_has_a_test_and_a_line_in_a_list_and_no_block_is_outside() -> None:
    page = PAGE.read_text()
    found = {example: pieces_of(page, example) for example in EXAMPLES}
    assert sum(len(FENCED.findall(section)) for _, section in SECTION.findall(page)) == page.count("```python")
    for example, pieces in found.items():
        assert any(piece.file.startswith("tests/") for piece in pieces), example
        assert any(piece.below for piece in pieces), example


def test_blocks_are_read_by_their_marks() -> None:
    block = "# a.py, below:     b,\n    c,\n\n# d/e.py, below: f\ng\n"
    assert parse_block(block) == [Piece("a.py", "b,", "    c,\n"), Piece("d/e.py", "f", "g\n")]
    assert parse_block('# a.py\n"""Doc."""\n\n# A comment.\n') == [Piece("a.py", "", '"""Doc."""\n\n# A comment.\n')]
    with pytest.raises(ValueError, match="without a mark: x = 1"):
        parse_block("x = 1\n# a.py\n")


def test_a_line_that_is_gone_or_not_the_only_one_is_said(tmp_path: Path) -> None:
    piece = Piece("a.py", "b,", "    c,\n")
    path = tmp_path / "a.py"
    path.write_text("(\n    b,\n)\n")
    apply(piece, tmp_path)
    assert path.read_text() == "(\n    b,\n    c,\n)\n"
    for text, count in (("(\n)\n", 0), ("b,\nb,\n", 2)):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"a\.py has {count} lines 'b,'"):
            apply(piece, tmp_path)
    with pytest.raises(ValueError, match="is there already"):
        apply(Piece("a.py", "", ""), tmp_path)
