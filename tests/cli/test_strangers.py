"""guardctl on other users' runs, and root's guardctl in other users' folders. The users are real ones."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.verbs.node_agent import check_program
from guardrun.supervisor.query.run_query import TABLES
from guardrun.supervisor.rundir.run_directory import read_run_file
from guardrun.supervisor.wire.control_messages import CONTROL_SOCKET, Answer
from tests.cli.conftest import NODE, Ctl, FakeSupervisor, make_run, record_journal
from tests.support.neighbours import NEIGHBOUR, VICTIM, make_passable, named_user, python_as, shell_as

pytestmark = pytest.mark.real("root")

PRELOAD = """
import encodings.ascii, encodings.idna, decimal, fractions, getpass, glob, statistics
from guardrun.supervisor.cli.guardctl import main
from guardrun.supervisor.rundir.journal import replay
import guardrun.launcher.base.rank_environment, guardrun.slurm.client.drain, guardrun.supervisor.checkpoints.saved
"""
VERBS = ("status", "incidents", "report", "replay", "hold", "restart", "diagnose")


def guardctl_as(uid: int, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python_as(uid, "sys.exit(main(sys.argv[1:]))", *arguments, preload=PRELOAD, cwd=cwd)


def give(path: Path, uid: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, uid, follow_symlinks=False)


def everything_in(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(one): (one.lstat().st_uid, one.read_bytes() if one.is_file() else b"") for one in sorted(path.rglob("*"))
    }


# Another user's run -----------------------------------------------------------------------------------------------


@pytest.mark.real("useradd")
def test_another_users_run_is_one_sentence(recorded: Path, tmp_path: Path) -> None:
    """Whatever is asked of it, by whatever name; closed to others, as guardrun makes it, or opened by its owner."""
    make_passable(tmp_path)
    recorded.parent.chmod(0o755)
    with named_user("a") as neighbour:
        give(recorded, neighbour.uid)
        asked: list[tuple[str, ...]] = [(verb, "vocab-1") for verb in VERBS]
        asked += [(verb, "--run=vocab-1") for verb in ("config", "stacks")]
        asked += [("query", "SELECT * FROM events", "--run=vocab-1")]
        asked += [("show", "001", "--run=vocab-1"), ("status", "./guardrun-runs/vocab-1"), ("status",)]
        asked += [("compare", "vocab-1", "./guardrun-runs/vocab-1")]
        for mode, calls in ((0o700, asked), (0o755, asked[:3])):
            recorded.chmod(mode)
            for call in calls:
                done = guardctl_as(VICTIM, tmp_path, *call)
                what = f"{mode:o} {call}: {done.stdout}{done.stderr}"
                assert done.returncode == 1 and "Traceback" not in done.stderr, what
                assert done.stderr.startswith("guardctl: ") and done.stderr.count("\n") == 1, what
                if "latest" not in done.stderr and call != ("status",):
                    assert f"belongs to {neighbour.name}" in done.stderr, what
        assert guardctl_as(neighbour.uid, tmp_path, "status", "vocab-1").returncode == 0


def test_in_a_shared_folder_the_latest_is_ones_own(recorded: Path, tmp_path: Path, runs: Path) -> None:
    make_passable(tmp_path)
    give(recorded, VICTIM)
    theirs, _ = make_run(runs, "theirs")
    record_journal(theirs)
    give(theirs, NEIGHBOUR)
    theirs.chmod(0o700)
    assert os.readlink(runs / "latest") == "theirs"
    runs.chmod(0o1777)
    done = guardctl_as(VICTIM, tmp_path, "status", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["run_id"] == "vocab-1", done.stderr


def test_a_run_that_others_may_have_written_is_not_believed(recorded: Path, tmp_path: Path) -> None:
    make_passable(tmp_path)
    give(recorded, VICTIM)
    recorded.chmod(0o777)
    done = guardctl_as(VICTIM, tmp_path, "status", "vocab-1")
    assert done.returncode == 1 and f"chmod -R go-w {recorded}" in done.stderr and "Traceback" not in done.stderr
    recorded.chmod(0o755)
    shutil.move(recorded, recorded.with_name("real"))
    recorded.symlink_to("real")
    assert "vocab-1 is a link" in guardctl_as(VICTIM, tmp_path, "status", "vocab-1").stderr
    assert guardctl_as(VICTIM, tmp_path, "status", "./guardrun-runs/vocab-1").returncode == 0, "a link of one's own"


# Root ---------------------------------------------------------------------------------------------------------------


def test_root_reads_a_users_run_and_writes_nothing_there(ctl: Ctl, recorded: Path, tmp_path: Path) -> None:
    give(recorded, NEIGHBOUR)
    recorded.chmod(0o700)
    before = everything_in(recorded)
    assert ctl.json("status", "vocab-1")["run_id"] == "vocab-1" and ctl.json("incidents")["incidents"]
    ctl("report", code=1)
    assert f"uid {NEIGHBOUR}'s: root writes nothing there; say where with --output FILE" in ctl.err
    ctl("report", "--output", "page.html")
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o644
    assert everything_in(recorded) == before


def test_root_asks_no_other_users_supervisor_than_the_runs_own(ctl: Ctl, live: FakeSupervisor, runs: Path) -> None:
    """Whatever its record says: it is its user's word."""
    live.answers["hold"] = Answer(is_ok=True)
    socket = Path(read_run_file(runs / "live-1").socket_dir) / CONTROL_SOCKET
    os.chown(socket, VICTIM, VICTIM)
    give(runs / "live-1", NEIGHBOUR)
    ctl("hold", "live-1", code=1)
    assert f"belongs to uid {VICTIM}, and the run to uid {NEIGHBOUR}" in ctl.err
    assert ctl.json("status", "live-1")["source"] == "directory"
    assert live.asked == [], "nobody has been asked"
    give(runs / "live-1", VICTIM)
    ctl("hold", "live-1")
    os.chown(socket, 0, 0)
    ctl("hold", "live-1")
    assert len(live.asked) == 2, "nor is root kept from its own, on a file system that has all belong to one user"


def test_root_writes_through_no_link(ctl: Ctl, recorded: Path, tmp_path: Path) -> None:
    """Neither one at the name, nor at what a temporary file might be called."""
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    folder = make_passable(tmp_path) / "theirs"
    folder.mkdir()
    folder.chmod(0o777)
    traps = " ".join(f".page.html.{pid}" for pid in range(os.getpid() - 5, os.getpid() + 6))
    shell_as(NEIGHBOUR, f"for name in page.html job.sh {traps}; do ln -s {precious} $name; done", folder)
    ctl("report", "--output", "theirs/page.html", code=1)
    assert "theirs/page.html is no plain file: it is left as it is" in ctl.err
    (folder / "page.html").unlink()
    ctl("report", "--output", "theirs/page.html")
    ctl("sbatch", "--write", "theirs/job.sh", "--nodes", "1", "--", "train.py", code=1)
    assert "theirs/job.sh is no plain file" in ctl.err
    assert precious.read_text() == "as it was" and not (folder / "page.html").is_symlink()


def test_what_a_user_lays_into_a_run_neither_holds_root_up_nor_leads_it_elsewhere(
    ctl: Ctl, recorded: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"id": "009", "summary": "of root alone"}')
    secret.chmod(0o600)
    first, second = sorted((recorded / "incidents").iterdir())
    make_passable(tmp_path)
    give(recorded, NEIGHBOUR)
    shell_as(
        NEIGHBOUR,
        f"rm {first}/incident.json {second}/incident.json {recorded}/summary.json {recorded}/events.jsonl; "
        f"mkfifo {first}/incident.json {recorded}/summary.json; ln -s {secret} {second}/incident.json; "
        f"ln -s {secret} {recorded}/events.jsonl; mkfifo {recorded}/events.jsonl.1; "
        f"ln -s {tmp_path} {recorded}/looks/1-1; mkdir {recorded}/traces; mkfifo {recorded}/traces/001-rank-0.json",
        recorded,
    )
    for table in TABLES:
        assert "of root alone" not in ctl("query", f"SELECT * FROM {table.name}")
    assert ctl.json("incidents")["incidents"] == []
    assert "of root alone" not in ctl("status") and "of root alone" not in json.dumps(ctl.json("report"))


def test_root_isolates_nothing_by_a_users_configuration(ctl: Ctl, tmp_path: Path) -> None:
    """[node] says where the record of quarantine is written; the folder that root happens to be in does not."""
    target = tmp_path / "etc"
    config = f'[node]\nstate_dir = "{target}"\nshared_dir = "{target}"\n'
    for name, text in (("guardrun.toml", config), ("pyproject.toml", config.replace("[node]", "[tool.guardrun.node]"))):
        (tmp_path / name).write_text(text)
        os.chown(tmp_path / name, NEIGHBOUR, NEIGHBOUR)
        ctl("node", "isolate", NODE, "--reason", "a trap")
        assert not target.exists() and "a trap" in ctl("node", "show", NODE)
        assert ("guardrun.toml is not gone by" in ctl.err) == (name == "guardrun.toml"), "said, and how else"
        (tmp_path / name).unlink()
        ctl("node", "release", NODE)
    (tmp_path / "mine.toml").write_text(config)
    ctl("node", "isolate", NODE, "--guard-config", "mine.toml")
    assert (target / "quarantine.json").exists(), "what root names, root goes by"


def test_root_goes_by_its_own_configuration_and_by_no_strangers(ctl: Ctl, tmp_path: Path) -> None:
    """In a container a project is often root's own: then its file counts, as it does for root's guardrun."""
    (tmp_path / "guardrun.toml").write_text("[preflight]\nlevel = 3\n")
    ctl("check", code=1)
    assert "preflight.level" in ctl.err
    os.chown(tmp_path / "guardrun.toml", NEIGHBOUR, NEIGHBOUR)
    assert "train.py" in ctl("sbatch", "--nodes", "1", "--", "train.py")
    said = f"{tmp_path}/guardrun.toml is not gone by: {tmp_path}/guardrun.toml belongs to uid {NEIGHBOUR}"
    assert ctl.err.count(said) == 1 and "--guard-config" in ctl.err


# What the node agent runs -------------------------------------------------------------------------------------------


def test_a_program_that_a_group_may_change_is_no_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path("/opt") / f"guardrun-test-{os.getpid()}"  # below folders of root's alone
    base.mkdir(mode=0o755)
    try:
        program = base / "guardrund"
        shutil.copy("/bin/true", program)
        program.chmod(0o755)
        monkeypatch.setattr("guardrun.supervisor.cli.verbs.node_agent.guardrun.systemd.__file__", str(base / "x.py"))
        (base / "x.py").touch()
        check_program(program)
        os.chown(base, 0, NEIGHBOUR)
        base.chmod(0o2775)
        with pytest.raises(CtlError, match=rf"group {NEIGHBOUR} may write {base}, and change what the agent runs"):
            check_program(program)
        base.chmod(0o3775)  # sticky: what is root's stays
        check_program(program)
        os.chown(base, 0, 0)
        base.chmod(0o775)
        check_program(program)
        assert stat.S_IMODE(base.stat().st_mode) == 0o775, "of root's own group, as some systems have it"
    finally:
        shutil.rmtree(base)
