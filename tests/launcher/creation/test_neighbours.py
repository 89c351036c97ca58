"""Run directories among users who do not trust each other: what is continued, and what is refused; daily life beside.

The neighbours are real users of this machine; root is the victim where a whole guardrun is run.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from guardrun.launcher.base.socket_folder import MARK, remove_socket_folder
from guardrun.launcher.base.terminal_lines import Log
from guardrun.launcher.creation.run_continuation import LOCK_FILE
from guardrun.launcher.creation.run_creation import LATEST, OpenRun, RunIdError, Wish, open_run
from guardrun.supervisor.checkpoints.chooser import Chooser
from guardrun.supervisor.collect.ranks.look_files import write_look
from guardrun.supervisor.config import Config
from guardrun.supervisor.daemon.action_performer import KEEP_LOOKS, keep_chooser, prune_looks
from guardrun.supervisor.daemon.earlier_runs import read_past
from guardrun.supervisor.rundir.run_directory import read_run_file, write_run_file
from tests.report.samples import rank_look
from tests.support.guardrun_run import GuardrunStarter
from tests.support.neighbours import NEIGHBOUR, VICTIM, make_passable, named_user, python_as, shell_as
from tests.support.slowmount import slow_mount
from tests.support.waiting import wait_until

Open = Callable[[str], OpenRun]

PRELOAD = """
import encodings.ascii, tempfile
from pathlib import Path
from guardrun.launcher.creation.run_creation import RunIdError, Wish, open_run
from guardrun.supervisor.config import Config
import guardrun.slurm.client.job_environment, guardrun.supervisor.rundir.journal
"""
OPEN = """
os.umask(0o002)
directory, run_id = Path(sys.argv[1]), sys.argv[2]
sockets = Path(tempfile.mkdtemp(dir=sys.argv[3])) / "guardrun-aaaaaaaa"
wish = Wish(
    config=Config(), directory=directory, run_id=run_id or None, command=[], script=[], name="t", cwd=Path.cwd()
)
try:
    run = open_run(wish, sockets, {})
except RunIdError as error:
    print("refused:", error)
else:
    print("continued" if run.is_continued else "made", run.path, run.warning)
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A guard directory of root's in which everybody may make folders, as in /tmp."""
    folder = make_passable(tmp_path) / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a run of this user's in ./runs; let go again, as by a guardrun that was killed."""
    runs: list[OpenRun] = []

    def open_it(run_id: str, directory: Path = tmp_path / "runs") -> OpenRun:
        wish = Wish(config=Config(), directory=directory, run_id=run_id, command=[], script=[], name="t", cwd=tmp_path)
        run = open_run(wish, tmp_path / "guardrun-aaaaaaaa", {})
        runs.append(run)
        return run

    yield open_it
    for run in runs:
        let_go(run)


def let_go(run: OpenRun) -> Path:
    """As a guardrun leaves its run that was killed."""
    if run.ownership is not None:
        run.ownership.release()
        run.ownership = None
        file = read_run_file(run.path)
        file.launcher_start += 1
        write_run_file(run.path, file)
    return run.path


def open_as(uid: int, directory: Path, run_id: str, cwd: Path) -> str:
    done = python_as(uid, OPEN, directory, run_id, cwd, preload=PRELOAD, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# A neighbour's trap -----------------------------------------------------------------------------------------------


@pytest.mark.real("root")
def test_a_run_that_a_neighbour_has_laid_out_is_not_continued(shared: Path, tmp_path: Path) -> None:
    """All of it: what is unpickled, the folder that is removed, the files that are added to. By a whole guardrun."""
    precious = tmp_path / "guardrun-precious"
    precious.mkdir()
    (precious / "file").write_text("as it was")
    shell_as(
        NEIGHBOUR,
        f"""
        mkdir -m 755 slurm-79
        printf '{{"run_id": "slurm-79", "node": "%s", "socket_dir": {json.dumps(str(precious))}}}' "$(hostname)" \
            > slurm-79/run.json
        echo '{{"checkpoints": ["/tmp/evil.pt"]}}' > slurm-79/checkpoints.json
        for name in events.jsonl guardrun.log notify.log .owner; do
            ln -s {shlex.quote(str(precious / "file"))} slurm-79/$name
        done
        """,
        shared,
    )
    starter = GuardrunStarter(tmp_path)
    try:
        done = starter.run(
            ["--guard-run-id=slurm-79", "--guard-dir", str(shared)],
            script="import pathlib; pathlib.Path('ran').touch()",
        )
    finally:
        starter.close()
    assert done.returncode == 2 and not (tmp_path / "ran").exists(), done
    assert f"run slurm-79 is not continued: {shared / 'slurm-79'} belongs to uid {NEIGHBOUR}" in done.stderr
    assert "Traceback" not in done.stderr
    assert (precious / "file").read_text() == "as it was"
    assert len(list((shared / "slurm-79").iterdir())) == 6


@pytest.mark.real("useradd")
def test_each_users_runs_are_their_own_in_a_folder_that_they_share(shared: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with named_user("a") as neighbour:
        assert open_as(neighbour.uid, shared, "job", tmp_path).startswith(f"made {shared / 'job'}")
        assert open_as(neighbour.uid, shared, "job", tmp_path).startswith(f"continued {shared / 'job'}"), "umask 002"
        said = open_as(VICTIM, shared, "job", tmp_path)
        assert said.startswith(f"refused: run job is not continued: {shared / 'job'} belongs to {neighbour.name} (uid ")
        assert said.endswith("choose another --guard-run-id") and "\n" not in said
        assert open_as(VICTIM, shared, "", tmp_path).startswith(f"made {shared}"), "a run of one's own is unaffected"


@pytest.mark.real("root")
@pytest.mark.parametrize(
    ("trap", "said"),
    [
        ("ln -s elsewhere job", "is a link"),
        ("ln -s nowhere job", "is a link"),
        ("mkfifo job", "holds no run"),
        ("mkdir -m 700 job", f"belongs to uid {NEIGHBOUR}"),
        ("mkdir -m 777 job; echo {} > job/run.json; touch job/.owner", f"belongs to uid {NEIGHBOUR}"),
    ],
)
def test_what_else_a_neighbour_puts_in_its_place(shared: Path, tmp_path: Path, trap: str, said: str) -> None:
    tmp_path.chmod(0o1777)
    shell_as(NEIGHBOUR, trap, shared)
    assert said in open_as(VICTIM, shared, "job", tmp_path)


def test_files_that_others_may_have_written_are_not_gone_by(opened: Open, tmp_path: Path) -> None:
    path = let_go(opened("job"))
    path.chmod(0o755)
    for name, mode in (("run.json", 0o666), ("checkpoints.json", 0o646), ("kept", 0o777)):
        entry = path / name
        if name == "kept":
            entry.mkdir()
        else:
            entry.touch()
        usual = entry.stat().st_mode
        entry.chmod(mode)
        with pytest.raises(RunIdError, match=rf"{name} may be written by anybody .*chmod -R go-w \S*/job") as refused:
            opened("job")
        assert "\n" not in str(refused.value)
        entry.chmod(usual)
    (path / "summary.json").symlink_to("run.json")
    with pytest.raises(RunIdError, match=r"summary\.json is a link"):
        opened("job")
    (path / "summary.json").unlink()
    (path / "outputs").symlink_to("/tmp")  # the user's own affair
    assert opened("job").is_continued


@pytest.mark.real("root")
def test_a_file_that_a_neighbour_left_in_ones_own_run_is_not_gone_by(opened: Open) -> None:
    path = let_go(opened("job"))
    (path / "checkpoints.json").write_text("{}")
    os.chown(path / "checkpoints.json", NEIGHBOUR, NEIGHBOUR)
    with pytest.raises(RunIdError, match=rf"checkpoints\.json belongs to uid {NEIGHBOUR}"):
        opened("job")


@pytest.mark.real("root")
def test_a_neighbours_runs_change_nobodys_patience(opened: Open, tmp_path: Path) -> None:
    """What they say of stalls, and of how a script resumes, is theirs alone; runs of one's own count."""
    own, theirs = let_go(opened("own")), let_go(opened("theirs"))
    for path, place in ((own, "a.py:1 in f"), (theirs, "b.py:1 in g")):
        (path / "summary.json").write_text(json.dumps({"stalls": [{"place": place, "seconds": 900.0}]}))
    os.chown(theirs, NEIGHBOUR, NEIGHBOUR)
    assert read_past(opened("now").path).stalls == {"a.py:1 in f": 900.0}


# Guard directories ------------------------------------------------------------------------------------------------


def test_where_everybody_may_rename_a_run_it_is_kept_elsewhere_and_none_is_continued(
    opened: Open, tmp_path: Path
) -> None:
    path = let_go(opened("job"))
    runs = path.parent
    runs.chmod(0o777)
    with pytest.raises(RunIdError, match=rf"job is not continued: anybody may rename .* \(chmod o-w {runs}, or chmod"):
        opened("job")
    run = opened("other")
    assert run.path.parents[1] == tmp_path / f"guardrun-runs-{os.getuid()}" and f"chmod o-w {runs}" in run.warning
    runs.chmod(0o1777)
    assert opened("job").is_continued, "sticky, as /tmp"


def test_a_link_on_the_way_to_the_guard_directory_is_daily_life(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "lustre").mkdir()
    (tmp_path / "runs").symlink_to("lustre")
    let_go(opened("job"))
    assert opened("job").is_continued and (tmp_path / "lustre" / "job").is_dir()


@pytest.mark.real("root")
def test_a_project_that_shares_its_folder_goes_on(tmp_path: Path) -> None:
    """Set-group-id, umask 002: each member's runs are their own, and continued by them alone."""
    project = make_passable(tmp_path) / "project"
    project.mkdir()
    os.chown(project, VICTIM, VICTIM)
    project.chmod(0o2775)
    (tmp_path / "t").mkdir()
    (tmp_path / "t").chmod(0o1777)
    assert open_as(VICTIM, project / "runs", "job", tmp_path / "t").startswith("made")
    said = "others of the project keep theirs there, too, and rename nobody's"
    assert stat.S_IMODE((project / "runs").stat().st_mode) == 0o3775, said
    assert stat.S_IMODE((project / "runs" / "job").stat().st_mode) & 0o777 == 0o700
    assert open_as(VICTIM, project / "runs", "job", tmp_path / "t").startswith("continued")
    # As an earlier guardrun wrote its files under that umask, and as `chmod -R g+w` leaves them for a group of one.
    for entry in (project / "runs" / "job", *(project / "runs" / "job").iterdir()):
        entry.chmod(entry.stat().st_mode | 0o020)
    assert open_as(VICTIM, project / "runs", "job", tmp_path / "t").startswith("continued")
    # Of a group that others may be in, this is refused, and what to type is said.
    os.chown(project / "runs" / "job", VICTIM, 100)
    said = open_as(VICTIM, project / "runs", "job", tmp_path / "t")
    assert "may be written by group users (mode" in said and f"chmod -R go-w {project}/runs/job" in said, said


def test_a_folder_that_an_earlier_guardrun_made_for_a_project_is_made_sticky(opened: Open, tmp_path: Path) -> None:
    """One that the user has named stays as it is: its members may be meant to clear it up."""
    for name, mode in (("guardrun-runs", 0o1775), ("runs", 0o775)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o775)
        assert opened("job", tmp_path / name).path.parent == tmp_path / name  # type: ignore[call-arg]
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


@pytest.mark.real("root")
def test_root_in_a_container_over_a_users_folder(opened: Open, tmp_path: Path) -> None:
    """The folder is uid 1000's by a bind mount: root's runs in it are root's; a user's are not continued as root."""
    (tmp_path / "runs").mkdir()
    os.chown(tmp_path / "runs", VICTIM, VICTIM)
    path = let_go(opened("job"))
    run = opened("job")
    assert run.is_continued
    let_go(run)
    os.chown(path, VICTIM, VICTIM)
    with pytest.raises(RunIdError, match=f"belongs to uid {VICTIM}"):
        opened("job")


@pytest.mark.real("sshfs")
@pytest.mark.parametrize("options", ["uid=65534,gid=65534,umask=000", "uid=65534,gid=65534"])
def test_a_file_system_that_keeps_no_owners_is_daily_life(opened: Open, tmp_path: Path, options: str) -> None:
    """All is nobody's there, as on an NFS server that squashes; or everybody's as well (0777), as on SMB or vfat."""
    behind, at = tmp_path / "behind", tmp_path / "runs"
    behind.mkdir()
    at.mkdir()
    with slow_mount(behind, at, 0.0, options=options):
        path = let_go(opened("job"))
        assert path.parent == at and path.stat().st_uid == 65534
        assert ("umask" in options) == bool(path.stat().st_mode & 0o002)
        run = opened("job")
        assert run.is_continued and not run.warning and run.path == path
        keep_chooser(path, open_chooser_of_nothing())
        log = Log(path)
        log.write("ended")
        assert log.close()
        assert (path / "checkpoints.json").stat().st_size and (path / "guardrun.log").stat().st_size
        let_go(run)


def open_chooser_of_nothing() -> Chooser:
    return Chooser(time.time(), "", "auto", 1, "/")


def test_a_umask_of_nothing_lets_nobody_write(opened: Open, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = opened("job", tmp_path / "a" / "b")  # type: ignore[call-arg]
        assert write_look(run.path / "looks" / "0-1", [rank_look(0)], {}) == ""
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "b", run.path, *(p for p in run.path.rglob("*") if p.is_dir())):
        assert not path.lstat().st_mode & 0o022, path
    assert (tmp_path / "a" / "b" / LATEST).is_symlink()


def test_what_an_earlier_guardrun_left_open_in_a_closed_run_is_daily_life(opened: Open) -> None:
    """Under a umask of 002 or 0 its folder of looks, and its files, were open to a group, or to all: in 0700."""
    path = let_go(opened("job"))
    (path / "looks").mkdir()
    for entry in path.iterdir():
        entry.chmod(0o777)
    assert path.stat().st_mode & 0o777 == 0o700 and opened("job").is_continued


# Socket folders ---------------------------------------------------------------------------------------------------


def test_only_a_socket_folder_is_removed(opened: Open, tmp_path: Path) -> None:
    """By its name, its mark and its owner, whatever run.json says."""
    names = ("guardrun-runs-0", "guardrun-treasures", "guardrun-abcdefg1", "precious", "guardrun-ABCDEFGH")
    for name in names:
        (tmp_path / name).mkdir()
        if name != "guardrun-abcdefg1":
            (tmp_path / name / MARK).touch()
    (tmp_path / "guardrun-abcdefg2").symlink_to("guardrun-abcdefg3")
    (tmp_path / "guardrun-abcdefg3").mkdir()
    (tmp_path / "guardrun-abcdefg3" / MARK).touch()
    for name in (*names, "guardrun-abcdefg2"):
        remove_socket_folder(tmp_path / name)
        assert (tmp_path / name).is_dir(), name
    run = opened("job")
    path = let_go(run)
    file = read_run_file(path)
    file.socket_dir = str(tmp_path / "guardrun-abcdefg3")
    write_run_file(path, file)
    let_go(opened("job"))
    assert not (tmp_path / "guardrun-abcdefg3").exists()


def test_looks_are_removed_in_the_runs_own_folder_alone(opened: Open, tmp_path: Path) -> None:
    path, elsewhere = opened("job").path, tmp_path / "elsewhere"
    for number in range(KEEP_LOOKS + 5):
        (elsewhere / str(number)).mkdir(parents=True)
    (path / "looks").symlink_to(elsewhere)
    prune_looks(path, [])
    assert len(list(elsewhere.iterdir())) == KEEP_LOOKS + 5
    (path / "looks").unlink()
    elsewhere.rename(path / "looks")
    prune_looks(path, [])
    assert len(list((path / "looks").iterdir())) == KEEP_LOOKS


# A record that is broken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"", b'{"run_id": "job", "no', b"\0" * 512, b"\xff\xfe", None])
def test_a_torn_record_costs_the_record_and_not_the_run(opened: Open, torn: bytes | None) -> None:
    first = opened("job")
    began_s = first.file.created_wall_s - 100
    wall = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(began_s + 2))
    lines = [
        {"n": 0, "t": 2.0, "wall": wall, "event": {"type": "run_opened", "session": 0}},
        {"n": 1, "t": 50.0, "wall": wall, "event": {"type": "run_continued", "session": 3}},
        {"n": 2, "t": 60.5, "wall": wall, "event": {"type": "said", "text": '"session":77'}},
    ]
    (first.path / "events.jsonl").write_bytes(
        b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    )
    let_go(first)
    if torn is None:
        (first.path / "run.json").unlink()
    else:
        (first.path / "run.json").write_bytes(torn)
    os.utime(first.path / LOCK_FILE, (0, 0))
    second = opened("job")
    assert second.is_continued and second.file.session == 4 and "the run goes on" in second.warning
    assert second.file.created_wall_s == pytest.approx(began_s, abs=1.5)
    assert second.file.clock_base_s == pytest.approx(100, abs=10)
    assert torn is None or (first.path / "run.json.torn").read_bytes() == torn
    assert read_run_file(first.path).session == 4


def test_a_run_whose_record_is_torn_goes_on_by_a_whole_guardrun(tmp_path: Path) -> None:
    """Cut off by SIGKILL, its run.json torn: its journal counts on, and its script is run to the end."""
    starter = GuardrunStarter(tmp_path)
    script = "import os, pathlib, time\npathlib.Path('pid').touch()\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    try:
        run = starter.start(["--guard-run-id=job"], script=script)
        path = tmp_path / "guardrun-runs" / "job"
        journal = path / "events.jsonl"
        wait_until((tmp_path / "pid").exists, 60, "the rank")
        wait_until(lambda: journal.exists() and '"attempt_started"' in journal.read_text(), 60, "the journal")
        for process in run.find("guardrund"):
            with suppress(ProcessLookupError):  # what it had just forked
                os.kill(process.pid, signal.SIGSTOP)  # it would write the run's end
        run.close()
        (path / "run.json").write_text("{")
        os.utime(path / LOCK_FILE, (0, 0))
        (tmp_path / "go").touch()
        done = starter.run(["--guard-run-id=job"], script=script)
    finally:
        starter.close()
    assert done.returncode == 0 and "the run goes on, by its journal" in done.stderr, done
    kinds = [json.loads(line).get("event", {}).get("type") for line in journal.read_text().splitlines()]
    assert kinds.count("run_continued") == 1 and done.summary is not None and done.summary["outcome"] == "finished"
