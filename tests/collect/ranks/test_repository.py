"""What git's own files say of a checkout: the commit, and which files are not those of the index."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.supervisor.collect.ranks.repository import blob_name, parse_index, read_repository

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


def make_git(folder: Path, head: str, files: dict[str, str]) -> None:
    (folder / ".git").mkdir()
    for name, text in {"HEAD": head, **files}.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("head", "files", "commit", "branch"),
    [
        ("ref: refs/heads/main\n", {"refs/heads/main": f"{COMMIT}\n"}, COMMIT, "main"),
        (
            "ref: refs/heads/a/b\n",
            {"packed-refs": f"# pack\n{OTHER} refs/heads/a\n{COMMIT} refs/heads/a/b\n"},
            COMMIT,
            "a/b",
        ),
        (f"{COMMIT}\n", {}, COMMIT, ""),
        ("ref: refs/heads/new\n", {}, "", "new"),
        ("ref: refs/../../../etc/passwd\n", {}, "", ""),
        ("ref: /etc/passwd\n", {}, "", ""),
        ("ref: refs/heads/main\n", {"refs/heads/main": "rm -rf\n"}, "", "main"),
        ("\n", {}, "", ""),
    ],
)
def test_the_commit_that_is_checked_out(
    tmp_path: Path, head: str, files: dict[str, str], commit: str, branch: str
) -> None:
    make_git(tmp_path, head, files)
    (tmp_path / "src").mkdir()
    found = read_repository(str(tmp_path / "src"), {})
    assert found is not None and (found.folder, found.commit, found.branch) == (str(tmp_path), commit, branch)


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Runs git, with no configuration of this machine's."""
    environ = {**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def run(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *who, *arguments], env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


def test_a_real_repository_and_a_worktree(tmp_path: Path, git: Callable[..., str]) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    git("init", "-q", "-b", "main", str(main))
    git("-C", str(main), "commit", "-q", "--allow-empty", "-m", "first")
    git("-C", str(main), "worktree", "add", "-q", "-b", "other", str(tree))
    git("-C", str(tree), "commit", "-q", "--allow-empty", "-m", "second")
    for folder, branch in ((main, "main"), (tree, "other")):
        found = read_repository(str(folder), {})
        assert found is not None
        assert (found.commit, found.branch) == (git("-C", str(folder), "rev-parse", "HEAD"), branch)


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_files_that_are_not_those_of_the_index(tmp_path: Path, git: Callable[..., str], version: str) -> None:
    folder = tmp_path / "main"
    git("init", "-q", str(folder))
    names = ["a.py", "pkg/bcd.py", "pkg/bce.py", "pkg/sub/é.py", "y" * 200 + ".py", "z.py"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    git("-C", str(folder), "add", ".")
    if version == "3":  # what is only to be added has an extended entry
        (folder / "later.py").write_text("")
        git("-C", str(folder), "add", "-N", "later.py")
    git("-C", str(folder), "update-index", "--index-version", version)
    index = parse_index((folder / ".git" / "index").read_bytes())
    assert set(names) <= set(index)
    for line in git("-C", str(folder), "-c", "core.quotePath=false", "ls-files", "-s").splitlines():
        about, name = line.split("\t")
        assert index[name] == about.split()[1]
    (folder / "pkg" / "bce.py").write_text("changed\n")
    (folder / "new.py").write_text("")
    files = [*names, "new.py"]
    blobs = {str(folder / name): blob_name((folder / name).read_bytes()) for name in files}
    found = read_repository(str(folder / "pkg"), {**blobs, "/elsewhere/x.py": "0" * 40})
    assert found is not None
    assert (found.is_compared, found.changed, found.untracked) == (True, ["pkg/bce.py"], ["new.py"])


@pytest.mark.parametrize(
    "data",
    [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"DIRC\0\0\0\x09\0\0\0\0", b"DIRC\0\0\0\4\0\0\0\3" + b"\xfe" * 400],
)
def test_an_index_that_is_none(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"index|subsection"):
        parse_index(data)
    make_git(tmp_path, f"{COMMIT}\n", {})
    (tmp_path / ".git" / "index").write_bytes(data)
    found = read_repository(str(tmp_path), {str(tmp_path / "a.py"): "0" * 40})
    assert found is not None and (found.commit, found.is_compared) == (COMMIT, False)


def test_an_index_that_grows_when_it_is_read() -> None:
    """Version 4: each entry has all of the name before it, and some more. Of 16 MB it would make terabytes."""
    entry = bytes(60) + b"\0\0" + b"\0" + b"x" * 1000 + b"\0"
    data = b"DIRC\0\0\0\4" + (500).to_bytes(4, "big") + entry * 500
    with pytest.raises(ValueError, match="longer than any path"):
        parse_index(data)


def test_an_index_with_a_number_of_a_million_digits() -> None:
    data = b"DIRC\0\0\0\4\0\0\0\1" + bytes(62) + b"\xff" * 1_000_000 + b"\0"
    began_s = time.thread_time()
    with pytest.raises(ValueError, match="digits"):
        parse_index(data)
    assert time.thread_time() - began_s < 1


def test_a_repository_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    found = read_repository(str(tmp_path), {})
    assert found is not None and (found.commit, found.branch) == ("", "")
