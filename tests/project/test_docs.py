"""Links in the documentation lead somewhere, and its commands exist."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

from guardrun.supervisor.config.load import load_config
from tests.project.purity import FOLDERS, ROOT

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


def test_links_lead_somewhere() -> None:
    assert {page: broken for page in PAGES if (broken := broken_links(page))} == {}


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`?make ([a-z-]+)\b", commands(page))}
    assert named
    assert named <= targets


def is_output(block: str) -> bool:
    return block.startswith("```console\n$ ")


def commands(page: Path) -> str:
    """What a page shows as code: fenced blocks and spans; of what a command printed, the command alone."""
    text = page.read_text()
    blocks = [
        re.sub(r"^(?!\$ ).*\n", "", block, flags=re.M) if is_output(block) else block for block in FENCE.findall(text)
    ]
    return "\n".join([*blocks, *re.findall(r"`[^`\n]+`", FENCE.sub("", text))])


def test_verbs_of_guardctl_in_the_docs_exist() -> None:
    named = {verb for page in PAGES for verb in re.findall(r"\bguardctl ([a-z]+)", commands(page))}
    usage = help_of("guardctl")
    assert {"status", "show"} <= named
    assert {verb for verb in named if not re.search(rf"\b{verb}\b", usage)} == set()


def test_flags_of_guardrun_in_the_docs_exist() -> None:
    named = {flag for page in PAGES for flag in re.findall(r"--guard-[a-z_-]*[a-z]", commands(page))}
    assert "--guard-off" in named
    assert {flag for flag in named if flag not in help_of("guardrun")} == set()


def settings_in(page: Path) -> list[str]:
    """The TOML blocks of a page."""
    return re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_settings_in_the_docs_are_valid(tmp_path: Path) -> None:
    for text in (text for page in PAGES for text in settings_in(page)):
        name = "pyproject.toml" if "[tool.guardrun" in text else "guardrun.toml"
        (tmp_path / name).write_text(text)
        load_config(None, {}, {}, tmp_path, system_file=tmp_path / "none")
        (tmp_path / name).unlink()


README_LINES = 130
"""Three screens."""


def rows(page: Path) -> list[str]:
    """Lines of a page's tables."""
    return [line for line in page.read_text().splitlines() if line.startswith("|")]


def test_the_readme_has_the_figures_of_the_last_bench() -> None:
    """Each row of the README's that names the bench's page is found there, numbers and what was missed."""
    bench = rows(ROOT / "docs" / "benchmarks.md")
    named = [row for row in rows(ROOT / "README.md") if "(docs/benchmarks.md)" in row]
    assert named
    for row in named:
        measured = [cell.strip() for cell in row.split("|")[2].split(",")]
        assert all(any(f"| {cell}" in line for line in bench) for cell in measured), row
        is_missed = any(f"| {measured[0]}" in line and "MISSED" in line for line in bench)
        assert ("**missed**" in row) is is_missed, row


def test_the_architecture_names_every_room() -> None:
    """Folders of the product that hold code, and of those below only the first level."""
    folders = {path.parent.relative_to(ROOT) for top in FOLDERS for path in (ROOT / top).glob("*/*.py")}
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## The folders")[2].partition("###")[0]
    missing = [str(one) for one in folders if f"`{one}/`" not in table and f"`{one.name}/`" not in table]
    assert folders and not missing


def test_the_readme_fits_three_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    long = [line for line in lines if len(line) > 120 and not line.startswith(("|", "guardrun: "))]
    assert not long


def test_the_demos_settings_are_those_of_the_readme() -> None:
    demo = load_config(None, {}, {}, ROOT / "examples" / "demo")
    assert demo.checkpoint.dir == "out"
    assert demo.checkpoint.resume_args == ["--resume", "{path}"]


@functools.cache
def help_of(program: str) -> str:
    """What --help prints."""
    path = Path(sys.executable).with_name(program)
    return subprocess.run([path, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


PLACE = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)


def missing_places(text: str) -> list[str]:
    """Rows of tables that begin with a file and a function (or method) of it, where one of them is not there."""
    missing = []
    for file, name in PLACE.findall(text):
        path = ROOT / file
        if not path.is_file() or name not in functions_in(path):
            missing.append(f"{file} {name}")
    return missing


def functions_in(path: Path) -> set[str]:
    """`function` and `Class.method`, as defined there."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


def test_files_and_functions_that_walks_name_exist() -> None:
    pages = {page: page.read_text() for page in PAGES}
    assert len(PLACE.findall(pages[ROOT / "docs" / "architecture.md"])) > 20
    assert {page: missing_places(text) for page, text in pages.items() if missing_places(text)} == {}


FILE = re.compile(r"`((?:supervisor|launcher|hooks|slurm|systemd|tests|benchmarks|examples|docs)/[\w./-]+\.\w+)`")


def test_files_that_pages_name_exist() -> None:
    named = [(page, name) for page in PAGES for name in FILE.findall(page.read_text())]
    assert [(page, name) for page, name in named if not (ROOT / name).is_file()] == []


def test_places_that_are_missing_are_found() -> None:
    beats, gone = "hooks/beat/heartbeat.py", "hooks/gone.py"
    rows = f"| `{beats}` | `Heartbeat._beat` | a |\n| `{beats}` | `beat` | b |\n| `{gone}` | `run` | c |\n"
    assert missing_places(rows) == [f"{beats} beat", f"{gone} run"]


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `thing`, twice\n[a](#a-thing-twice) [b](#no) [c](gone.md) [d](https://x.invalid/)\n[e](page.md)\n"
    )
    assert broken_links(page) == ["#no", "gone.md"]
