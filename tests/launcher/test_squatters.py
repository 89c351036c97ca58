"""Files beside the join file that another user has made first, in a folder that both may write."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.guardrun_run import GuardrunRun
from tests.support.neighbours import NEIGHBOUR, VICTIM, make_passable, python_as

pytestmark = pytest.mark.real("root")

PRELOAD = "from pathlib import Path\nfrom guardrun.launcher.run.job_nodes import FleetError, check_lead, open_lead"
CHECK = """
try:
    check_lead(Path(sys.argv[1]), None)
    open_lead(Path(sys.argv[1])).acquire()
except FleetError as error:
    print(error)
else:
    print("leads")
"""


@pytest.fixture
def join(tmp_path: Path) -> Path:
    folder = make_passable(tmp_path) / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder / ".join-none-29400@here"


def left_by_neighbour(path: Path, age_s: float = 0.0, mode: int = 0o600) -> Path:
    path.touch()
    path.chmod(mode)
    os.chown(path, NEIGHBOUR, NEIGHBOUR)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def checked(join: Path) -> str:
    done = python_as(VICTIM, CHECK, join, preload=PRELOAD, cwd=join.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("suffix", ["", ".lock"])
@pytest.mark.parametrize("age_s", [-10_000.0, 0.0, 10_000.0])
def test_in_a_sticky_folder_it_is_said_whose_it_is(join: Path, suffix: str, age_s: float) -> None:
    left = left_by_neighbour(join.with_name(join.name + suffix), age_s)
    said = checked(join)
    assert f"{left} belongs to uid {NEIGHBOUR}, not to {VICTIM}" in said and "--guard-join=FILE" in said


def test_a_link_in_the_locks_place_is_its_makers(join: Path) -> None:
    lock = join.with_name(f"{join.name}.lock")
    lock.symlink_to("nowhere")
    os.chown(lock, NEIGHBOUR, NEIGHBOUR, follow_symlinks=False)
    assert f"{lock} belongs to uid {NEIGHBOUR}" in checked(join)


def test_a_file_of_the_leads_that_a_neighbour_holds(join: Path) -> None:
    join.parent.chmod(0o777)  # in a sticky one the kernel may refuse to open it (fs.protected_regular)
    lead = left_by_neighbour(join.with_name(f"{join.name}.lead"), mode=0o666)
    with lead.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert f"{lead} belongs to uid {NEIGHBOUR}, not to {VICTIM}, and is held" in checked(join)
    assert checked(join) == "leads"


def test_where_it_can_be_removed_a_crashed_writers_lock_is_in_nobodys_way(join: Path) -> None:
    join.parent.chmod(0o777)
    left_by_neighbour(join.with_name(f"{join.name}.lock"), age_s=100)
    assert checked(join) == "leads"


def test_ones_own_lock_is_no_squatters(join: Path) -> None:
    lock = join.with_name(f"{join.name}.lock")
    lock.touch()
    os.chown(lock, VICTIM, VICTIM)
    assert checked(join) == "leads"


def test_the_head_ends_with_2_within_10_seconds(start_guardrun: Callable[..., GuardrunRun], tmp_path: Path) -> None:
    left_by_neighbour(tmp_path / "join.lock", age_s=-10_000)
    began_s = time.monotonic()
    run = start_guardrun(
        [
            "--nnodes=2",
            "--node-rank=0",
            "--master-addr=127.0.0.1",
            "--master-port=29517",
            f"--guard-join={tmp_path / 'join'}",
        ],
        script="raise SystemExit('a rank was started')\n",
    )
    done = run.wait()
    assert done.returncode == 2 and time.monotonic() - began_s < 60
    assert f"join.lock belongs to uid {NEIGHBOUR}" in done.stderr
    assert "a rank was started" not in done.stderr
