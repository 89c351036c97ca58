"""Files that are the user's alone: what counts as such, and what is opened, added to and written."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.base.own_files import (
    SECRET,
    Looks,
    NotOwnError,
    find_fault,
    is_private_group,
    make_folders,
    open_folder,
    open_to_add,
    read_own,
    write_file,
    write_own,
)
from tests.support.neighbours import NEIGHBOUR, VICTIM, named_user

ME = Looks(VICTIM)
FOLDER, FILE = stat.S_IFDIR, stat.S_IFREG


def found(mode: int, uid: int = VICTIM, gid: int = 0) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


# Judging ----------------------------------------------------------------------------------------------------------


def test_what_nobody_else_may_write_is_ones_own() -> None:
    for mode in (FOLDER | 0o700, FOLDER | 0o755, FOLDER | 0o2750, FILE | 0o600, FILE | 0o644):
        assert find_fault(found(mode), ME) == ""


def test_what_others_may_write_is_not() -> None:
    assert find_fault(found(FOLDER | 0o755, uid=NEIGHBOUR), ME) == f"belongs to uid {NEIGHBOUR}, not to uid {VICTIM}"
    assert find_fault(found(FOLDER | 0o775), ME) == "may be written by group root (mode 0775)"
    assert find_fault(found(FOLDER | 0o1777), ME) == "may be written by anybody (mode 1777)"
    assert find_fault(found(FILE | 0o666), ME) == "may be written by anybody (mode 0666)"
    assert "ACL" in find_fault(found(FOLDER | 0o770, gid=VICTIM), ME, has_acl=True)


def test_a_file_is_safe_in_a_folder_that_lets_nobody_in() -> None:
    """As an earlier guardrun left them under a umask of 002: 0664 in 0700."""
    assert find_fault(found(FILE | 0o664), ME, within=0o700) == ""
    assert find_fault(found(FILE | 0o666), ME, within=0o710).startswith("may be written by group")
    assert find_fault(found(FILE | 0o664), ME, within=0o755) != ""


def test_roots_file_is_nobodys_trick_and_roots_folder_is_not_ones_own() -> None:
    assert find_fault(found(FILE | 0o644, uid=0), ME) == ""
    assert find_fault(found(FOLDER | 0o755, uid=0), ME) != ""


def test_where_a_file_system_keeps_neither_owners_nor_permissions_nothing_is_held_against_it() -> None:
    """vfat, SMB, an NFS server that squashes: what one makes oneself looks just the same there."""
    assert find_fault(found(FOLDER | 0o777, uid=0), Looks(0, has_modes=False)) == ""
    assert find_fault(found(FILE | 0o777, uid=65534), Looks(65534, has_modes=False)) == ""
    assert find_fault(found(FOLDER | 0o777, uid=65534), Looks(65534)) != "", "modes are kept, owners are not"


def test_a_group_of_ones_own_is_oneself() -> None:
    assert is_private_group(VICTIM, VICTIM), "of the same number, and without a name"
    assert not is_private_group(NEIGHBOUR, VICTIM) and not is_private_group(0, VICTIM)
    assert find_fault(found(FOLDER | 0o2775, gid=VICTIM), ME) == ""


@pytest.mark.real("useradd")
def test_a_named_group_of_ones_own_is_oneself_until_somebody_joins() -> None:
    with named_user("a") as me, named_user("b") as other:
        assert is_private_group(me.uid, me.uid) and not is_private_group(other.uid, me.uid)
        subprocess.run(["usermod", "-aG", me.name, other.name], check=True, timeout=60)
        assert not is_private_group(me.uid, me.uid)
        said = find_fault(found(FOLDER | 0o770, uid=me.uid, gid=me.uid), Looks(me.uid))
        assert said == f"may be written by group {me.name} (mode 0770)"


# Opening ----------------------------------------------------------------------------------------------------------


def test_links_are_followed_up_to_the_folder_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "lustre" / "run").mkdir(mode=0o700, parents=True)
    (tmp_path / "lustre" / "run" / "run.json").write_text("{}")
    (tmp_path / "scratch").symlink_to("lustre")
    assert read_own(tmp_path / "scratch" / "run" / "run.json") == b"{}"
    (tmp_path / "lustre" / "link").symlink_to("run")
    with pytest.raises(NotOwnError, match="link is a link"):
        read_own(tmp_path / "lustre" / "link" / "run.json")
    (tmp_path / "lustre" / "run" / "other.json").symlink_to("run.json")
    with pytest.raises(NotOwnError, match=r"other\.json is a link"):
        read_own(tmp_path / "lustre" / "run" / "other.json")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "run.json")
    for attempt in (read_own, open_to_add):
        with pytest.raises(NotOwnError, match="is no file"):
            attempt(tmp_path / "run.json")
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    with pytest.raises(NotOwnError, match="is no file"):
        read_own(tmp_path / "run.json")


def test_what_is_not_there_is_just_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_own(tmp_path / "run.json")
    with pytest.raises(FileNotFoundError):
        read_own(tmp_path / "nowhere" / "run.json")
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(OSError, match="too large"):
        read_own(tmp_path / "large", limit=4)


@pytest.mark.real("root")
def test_a_folder_that_was_exchanged_is_neither_read_nor_added_to_nor_written(tmp_path: Path) -> None:
    """Whoever may rename a run directory puts their own in its place."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o777)
    (folder / "guardrun.log").write_text("")
    (folder / "checkpoints.json").write_text("{}")
    os.chown(folder, NEIGHBOUR, NEIGHBOUR)
    for attempt in (
        lambda: open_to_add(folder / "guardrun.log"),
        lambda: read_own(folder / "checkpoints.json"),
        lambda: write_own(folder / "summary.json", b"{}"),
        lambda: open_folder(folder),
    ):
        with pytest.raises(NotOwnError, match=f"run belongs to uid {NEIGHBOUR}"):
            attempt()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints.json", "guardrun.log"]


def test_a_folder_that_became_writable_for_others_is_still_added_to(tmp_path: Path) -> None:
    """As by a nightly `chmod -R g+w` over a project: the run that lives there goes on being written."""
    tmp_path.chmod(0o2777)
    write_own(tmp_path / "summary.json", b"{}")
    with open(open_to_add(tmp_path / "guardrun.log"), "ab") as file:
        file.write(b"x")
    with pytest.raises(NotOwnError, match="may be written by anybody"):
        read_own(tmp_path / "summary.json")


# Writing ----------------------------------------------------------------------------------------------------------


def test_no_link_is_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    for name in ("page.html", f".page.html.{os.getpid()}"):
        (tmp_path / name).symlink_to(precious)
    write_file(tmp_path / "page.html", b"new")
    assert precious.read_text() == "as it was"
    assert (tmp_path / "page.html").read_text() == "new" and not (tmp_path / "page.html").is_symlink()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"page\.html"):
        write_file(tmp_path / "page.html", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    write_file(tmp_path / ("é" * 127), b"x")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("mask", "folder", "file"),
    [(0, 0o755, 0o644), (0o002, 0o1775, 0o644), (0o022, 0o755, 0o644), (0o077, 0o700, 0o600)],
)
def test_umasks(tmp_path: Path, mask: int, folder: int, file: int) -> None:
    os.umask(mask)
    make_folders(tmp_path / "a" / "b")
    write_file(tmp_path / "a" / "b" / "page.html", b"")
    os.close(open_to_add(tmp_path / "a" / "b" / "log"))
    write_file(tmp_path / "keys", b"", SECRET, is_exact=True)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/page.html", "a/b/log")] == [
        folder & 0o777,
        folder,
        file,
        file,
    ]
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert os.umask(mask) == mask, "as it was"


def test_folders_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    make_folders(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "b")
