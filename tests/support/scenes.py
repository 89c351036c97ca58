"""What docs/debugging.md shows of a command is what it printed in the test that plays the scene.

A block of the page has a name; the test that plays its scene has it checked here, or, with `--write-scenes`, written.
Numbers may differ, and what a machine that is busy has to say besides; every word of the page must be there.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shlex
import socket
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "debugging.md"
WRITE = "--write-scenes"
COLUMNS = 120
"""Of the terminal of which the page shows a part."""
NODE = "node-a"
"""What this machine is called there."""
BLOCK = re.compile(r"(?<=^<!-- scene: )([\w -]+) -->\n```console\n(.*?)```$", re.MULTILINE | re.DOTALL)
_ALIKE = (
    (re.compile(r"\b[RSD](?= {2,}\d+$)", re.MULTILINE), "STATE"),  # before a process ID, at the end of a table's row
    (re.compile(r"\b\d{8}-\d{6}-([\w.-]+?)-[0-9a-f]{4}\b"), r"ID-\1"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "DIGEST"),
    (re.compile(r"\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?"), "0"),
    (re.compile(r"\b0\s+(?:ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b0\s+(?:[kMG]B|B)\b"), "SIZE"),
    (re.compile(r"\b(?:about\s+|0\s+to\s+)TIME"), "TIME"),
    (re.compile(r"\b(?:sleeping|running|uninterruptible wait)\b"), "STATE"),
)

is_written = False
"""Set where pytest's command line asks for it."""


def guardctl(folder: Path, *arguments: str) -> str:
    """What `guardctl` prints of a run that is over, to a person in this folder; in this process, so it costs little."""
    # The conftest imports this module; few tests need these.
    from guardrun.supervisor.cli.base.output import Output
    from guardrun.supervisor.cli.base.verb import Call
    from guardrun.supervisor.cli.guardctl import make_parser

    text = io.StringIO()
    parsed = make_parser(arguments).parse_args(arguments)
    parsed.run_verb(Call(parsed, os.environ, folder, Output(False, {"COLUMNS": str(COLUMNS)}, text)))
    return text.getvalue()


def check(name: str, command: str, printed: str, folder: Path, *, until: str = "") -> None:
    """Hold a block of the page against what a command printed in a folder.

    until: a regular expression; the page shows no more from the first line on that it matches.
    """
    printed = _mask(printed, folder).strip("\n")
    if is_written:
        end = re.search(until, printed, re.MULTILINE) if until else None
        shown = printed if end is None else printed[: end.start()].rstrip("\n") + "\n…"
        _write(name, "\n".join([f"$ {command}", *(line.rstrip() for line in shown.splitlines())]) + "\n")
        return
    block = blocks().get(name, "")
    first, _, shown = block.partition("\n")
    assert first == f"$ {command}", f"the page has {first!r} for the scene {name!r}"
    missing = words_of(shown) - words_of(printed)
    assert not missing, f"{' '.join(missing)} is no longer printed ({WRITE} writes the page anew):\n{printed}"


def words_of(text: str) -> Counter[str]:
    """Its words, wherever a line or a cell ends; numbers are alike, and so are times and sizes with their units."""
    for pattern, instead in _ALIKE:
        text = pattern.sub(instead, text)
    return Counter(word for word in (word.strip(".,;:()") for word in text.split()) if word.strip("─━╌-…|"))


def blocks() -> dict[str, str]:
    """The page's, by name."""
    found = [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text())]
    assert len(dict(found)) == len(found), "a name stands twice"
    return dict(found)


def command_of(block: str) -> list[str]:
    """The words after the prompt."""
    return shlex.split(block.splitlines()[0].removeprefix("$ "))


def _write(name: str, block: str) -> None:
    """Several workers write one page."""
    with PAGE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        start = f"<!-- scene: {name} -->\n```console\n"
        before, found, rest = text.partition(start)
        if not found:
            raise AssertionError(f"{PAGE} has no place for the scene {name!r}")
        after = rest[rest.index("```") :]
        file.seek(0)
        file.truncate()
        file.write(before + start + block + after)


def _mask(text: str, folder: Path) -> str:
    """As where somebody else has it: his node, his folder."""
    for path in dict.fromkeys((str(folder), str(folder.resolve()))):
        text = text.replace(f"{path}/", "").replace(path, ".")
    text = text.replace(sys.executable, "python")
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", NODE, text)
