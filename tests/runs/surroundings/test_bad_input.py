"""Wrong input, and a machine that lacks something: a clear word, the right status, training going on where it can."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from guardrun.supervisor.engine.model.events import AttemptNotStarted
from guardrun.supervisor.rundir.journal import read_lines
from tests.runs.runs import QUICK, RESUME, SCRIPTS, EdgeRuns, finish, only, own_lines, ranks_of, read_log
from tests.support.forkserver import client
from tests.support.forkserver.alone import make_programs
from tests.support.guardrun_run import Finished, GuardrunRun
from tests.support.journals import set_version
from tests.support.netlab import Namespaces
from tests.support.real import find_program
from tests.support.waiting import wait_until

SYN_SENT = "02"
"""A connection that has not been answered, in /proc/net/tcp (include/net/tcp_states.h)."""


def refused(finished: Finished) -> list[str]:
    """What is said by a guardrun that does not begin: status 2, nothing started, nothing created."""
    assert finished.returncode == 2, str(finished)
    assert finished.stdout == ""
    assert finished.run_dir is None
    assert "Traceback" not in finished.stderr
    return finished.stderr.splitlines()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[hang]\nflor_s = 20\n", r"guardrun\.toml.*flor_s.*floor_s"),
        ("[hnag]\nfloor_s = 20\n", r"guardrun\.toml.*hnag.*hang"),
        ('[hang]\nfloor_s = "soon"\n', r"guardrun\.toml.*hang\.floor_s.*number"),
        ("[hang\n", r"guardrun\.toml.*TOML"),
        ('[checkpoint]\nformat = "nanogtp"\n', r"guardrun\.toml.*format.*nanogpt"),
    ],
    ids=["key", "table", "type", "syntax", "format"],
)
def test_a_mistake_in_the_configuration_names_file_key_and_the_way_out(edge: EdgeRuns, config: str, words: str) -> None:
    lines = refused(edge.run("plain.py", config=config))
    assert re.search(words, " ".join(lines), re.I), lines


def test_an_unknown_variable_is_only_a_warning(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--steps", "5", env={"GUARDRUN_HANG_FLOR_S": "20"})
    assert finished.returncode == 0
    assert [line for line in own_lines(finished) if "GUARDRUN_HANG_FLOR_S" in line and "GUARDRUN_HANG_FLOOR_S" in line]


def test_a_script_that_does_not_exist_is_said_once_and_not_once_a_rank(edge: EdgeRuns) -> None:
    lines = refused(edge.run("no_such_script.py"))
    said = [line for line in lines if "no_such_script.py" in line]
    assert len(said) == 1 and said[0].startswith("guardrun: error: no such script: ")


@pytest.mark.parametrize("name", ["../outside", "latest", "with space", ""])
def test_a_run_id_that_is_none_is_refused(edge: EdgeRuns, name: str) -> None:
    assert "--guard-run-id" in refused(edge.run("plain.py", flags=(f"--guard-run-id={name}",)))[-1]


def test_a_run_directory_that_cannot_be_made_is_said_once_and_training_goes_on(edge: EdgeRuns) -> None:
    (edge.folder / "guardrun-runs").write_text("a file in its place")
    finished = edge.run("plain.py", "--plan", "0:kill@15:1", "--steps", "30")
    assert finished.returncode == 0
    assert "attempt 1 rank 0: done" in finished.stdout
    said = [line for line in own_lines(finished) if "cannot write in" in line]
    assert len(said) == 1
    kept = Path(said[0].rpartition("kept in ")[2])
    assert json.loads((kept / "summary.json").read_text())["outcome"] == "finished"


@pytest.mark.real("mount")
def test_a_run_directory_that_fills_up_is_said_once_and_training_goes_on(edge: EdgeRuns, small_tmpfs: Path) -> None:
    arguments = ["--plan", "0:kill@15:1,1:raise@25:0,2:segv@35:1,3:exit@45:0", "--steps", "60"]
    run = edge.start("plain.py", *arguments, env={"GUARDRUN_DIR": str(small_tmpfs)})
    finished = run.wait(120)  # its record is as torn as the disk is full
    assert (finished.returncode, run.alive()) == (0, [])
    assert "attempt 4 rank 0: starts at step 40" in finished.stdout
    assert "attempt 4 rank 0: done" in finished.stdout
    said = [line for line in own_lines(finished) if "can't be written" in line]
    assert 1 <= len([line for line in said if "run directory" in line]) <= 1, said
    assert "Traceback" not in re.sub(r"Traceback[^\0]*?ValueError: bad sample 17", "", finished.stderr)


# Run ids ---------------------------------------------------------------------------------------------------------


def test_a_finished_run_s_id_is_refused(edge: EdgeRuns) -> None:
    flags = ("--guard-run-id=night",)
    assert edge.run("plain.py", "--steps", "5", flags=flags).returncode == 0
    second = edge.run("plain.py", "--steps", "5", flags=flags)
    assert second.returncode == 2
    assert own_lines(second) == ["error: run night has ended (finished): choose another --guard-run-id"]


def test_a_living_run_s_id_is_refused_and_the_run_goes_on(edge: EdgeRuns) -> None:
    flags = ("--guard-run-id=night",)
    first = edge.start("plain.py", "--steps", "100000", flags=flags)
    first.wait_for_output("starts at step 0")
    second = edge.run("plain.py", "--steps", "5", flags=flags)
    assert second.returncode == 2
    assert own_lines(second)[-1].startswith(f"error: run night is running, by process {first.pid} on this node: ")
    assert first.process.poll() is None
    first.send(signal.SIGTERM)
    assert finish(first).returncode == 143


def test_an_unfinished_run_s_id_continues_it_from_its_newest_checkpoint(edge: EdgeRuns) -> None:
    flags = ("--guard-run-id=night",)
    first = edge.start("plain.py", "--steps", "100000", "--plan", "0:kill@15:1", flags=flags)
    wait_until((edge.folder / "out/ckpt_50.safetensors").exists, 60, "a checkpoint")
    first.send(signal.SIGTERM)
    assert finish(first).returncode == 143
    newest = max(int(path.stem.split("_")[1]) for path in edge.folder.glob("out/*.safetensors"))
    second = edge.run("plain.py", "--steps", str(newest + 20), flags=flags)
    assert second.returncode == 0
    assert f"rank 0: starts at step {newest} " in second.stdout
    assert [i["id"] for i in second.incidents] == ["001"]
    assert second.summary is not None
    assert second.summary["outcome"] == "finished"
    assert second.summary["last_step"] == newest + 20
    assert [a["outcome"] for a in second.summary["attempts"]] == ["killed", "interrupted", "finished"]


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_a_run_killed_with_its_guardrun_is_continued_too(edge: EdgeRuns, is_upgraded: bool) -> None:
    """By the same guardrun, or by one that does not replay the other's journal."""
    flags = ("--guard-run-id=night",)
    first = edge.start("plain.py", "--steps", "100000", flags=flags)
    wait_until((edge.folder / "out/ckpt_20.safetensors").exists, 60, "a checkpoint")
    first.send(signal.SIGKILL)
    first.wait(60)
    wait_until(lambda: not first.alive(), 15, "everything to be gone")
    assert first.run_dir is not None
    if is_upgraded:
        set_version(first.run_dir / "events.jsonl", 9)
    newest = max(int(path.stem.split("_")[1]) for path in edge.folder.glob("out/*.safetensors"))
    second = edge.run("plain.py", "--steps", str(newest + 20), flags=flags)
    assert second.returncode == 0
    assert f"rank 0: starts at step {newest} " in second.stdout
    said = "the journal has version 9, and this guardrun reads version 2: it is not replayed"
    assert any(line.startswith(said) for line in own_lines(second)) == is_upgraded


def test_two_runs_in_one_folder_do_not_meet(edge: EdgeRuns) -> None:
    """The same script, the same run directory, at the same time; each with checkpoints of its own."""
    (edge.folder / "takes.toml").write_text('[checkpoint]\nresume_args = ["--resume", "{path}"]\n')
    flags = ("--guard-config=takes.toml",)
    both = [
        edge.start(
            "plain.py",
            "--out",
            name,
            "--plan",
            "0:kill@15:1",
            flags=(*flags, f"--guard-checkpoint-dir={name}"),
            config=None,
        )
        for name in ("first", "second")
    ]
    for run, name in zip(both, ("first", "second"), strict=True):
        finished = run.wait()
        assert finished.returncode == 0
        assert f"GUARDRUN_RESUME_FROM={edge.folder}/{name}/ckpt_10.safetensors" in finished.stdout
    runs = [path for path in (edge.folder / "guardrun-runs").iterdir() if not path.is_symlink()]
    assert len(runs) == 2
    for path in runs:
        assert json.loads((path / "summary.json").read_text())["restarts"] == 1
    assert (edge.folder / "guardrun-runs" / "latest").resolve() in runs


# Without what is usually there ---------------------------------------------------------------------------------


@pytest.fixture
def without_pyspy(tmp_path: Path) -> Iterator[list[str]]:
    """A program in guardrun's place that sees no py-spy: each is hidden in a mount namespace of its own."""
    pyspy = find_program("py-spy")
    assert pyspy is not None
    # Another environment's may be in PATH, too.
    others = (shutil.which("py-spy", path=folder) for folder in os.get_exec_path())
    hidden = {os.path.realpath(one) for one in (pyspy, *others) if one}
    mounts = " && ".join(f"mount --bind /dev/null {one}" for one in sorted(hidden))
    hide = f'{mounts} && exec {make_programs(tmp_path / "venv")}/guardrun "$@"'
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=60, check=False)
    if probe.returncode != 0:
        pytest.skip("real part mount: no mount namespace can be made")
    yield ["unshare", "--mount", "sh", "-c", hide, "sh"]


@pytest.mark.real("mount")
def test_where_no_usual_place_can_be_written_the_sockets_lie_in_the_folder_of_runs(edge: EdgeRuns) -> None:
    places = (
        'here=$PWD; mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp && mount --bind "$here" "$here" '
        '&& mount -o remount,rw,bind "$here" && mount -t tmpfs -o ro none /dev/shm && cd "$here" && exec '
    )
    program = ["unshare", "--mount", "sh", "-c", f'{places} {find_program("guardrun")} "$@"', "sh"]
    env = {"TMPDIR": None, "XDG_RUNTIME_DIR": None}
    finished = edge.run("plain.py", "--plan", "0:raise@25:1", "--steps", "40", program=program, env=env)
    assert finished.returncode == 0, finished.stderr
    assert only(finished)["action"] == "restart", "it was supervised"
    assert finished.run_dir is not None
    sockets = Path(json.loads((finished.run_dir / "run.json").read_text())["socket_dir"])
    assert sockets.parent in (edge.folder / "guardrun-runs", edge.folder), "whichever path is short enough"
    assert not sockets.exists()


def test_a_working_folder_that_is_removed_is_said_once_an_incident(edge: EdgeRuns, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = edge.folder / "removes.py"
    script.write_text(
        "import os, shutil, sys\n"
        f"if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    shutil.rmtree({str(gone)!r})\n    sys.exit(3)\n"
    )
    program = ["sh", "-c", f'cd {gone} && exec {find_program("guardrun")} "$@"', "sh"]
    flags = (f"--guard-dir={edge.folder}/guardrun-runs",)
    finished = edge.run(str(script), ranks=1, flags=flags, program=program, config=None)
    assert (finished.returncode, [one["action"] for one in finished.incidents]) == (0, ["restart"])
    said = f"the working folder {gone} has been removed: paths relative to it lead nowhere any more"
    assert own_lines(finished).count(said) == 1


SILENT = "ip link set lo up && tc qdisc add dev lo root blackhole"
"""A loopback that takes everything and brings nothing: whoever connects waits for an answer."""


@pytest.fixture
def network() -> Iterator[Namespaces]:
    """A network of its own, whose loopback is down."""
    network = Namespaces()
    try:
        yield network
    finally:
        network.close()


def start_inside(network: Namespaces, edge: EdgeRuns) -> GuardrunRun:
    program = [str(find_program("guardrun"))]
    with client.namespaces_of(network.pid):
        if not client.can_fork(program, dict(os.environ)):
            program = network.inside(*program)
        return edge.start("plain.py", "--steps", "5", program=program)


@pytest.mark.real("netns")
@pytest.mark.parametrize(
    ("change", "why"), [("true", "Network is unreachable"), (SILENT, "timed out")], ids=["down", "silent"]
)
def test_a_machine_that_cannot_reach_itself_is_told_within_seconds(
    edge: EdgeRuns, network: Namespaces, change: str, why: str
) -> None:
    """torch's store tries to reach its own server for five minutes, whatever signal comes meanwhile."""
    network.run("sh", "-c", change)
    finished = finish(start_inside(network, edge))
    assert (finished.returncode, finished.incidents) == (1, [])
    [line] = [line for line in own_lines(finished) if "could not be started" in line]
    assert f"attempt 0 could not be started: this machine can't reach itself at localhost (127.0.0.1: {why})" in line
    assert finished.run_dir is not None
    lines = [line for line in read_lines(finished.run_dir) if line is not None]
    [told_s] = [line.t for line in lines if isinstance(line.event, AttemptNotStarted)]
    assert told_s < 60, "from the run's beginning, by guardrun's own clock"


@pytest.mark.real("netns")
def test_sigterm_ends_guardrun_while_it_waits_for_its_own_store(edge: EdgeRuns, network: Namespaces) -> None:
    network.run("sh", "-c", SILENT)
    run = start_inside(network, edge)
    table = Path(f"/proc/{run.pid}/net/tcp")
    wait_until(lambda: f" {SYN_SENT} " in table.read_text(), 60, "guardrun to connect to itself")
    run.send(signal.SIGTERM)
    finished = finish(run)
    assert (finished.returncode, finished.incidents) == (143, [])
    assert finished.run_dir is not None and finished.summary is not None
    assert finished.summary["outcome"] == "interrupted", "nothing has failed"
    assert "could not be started" not in finished.stderr
    log = [entry for entry in read_log(finished.run_dir) if entry.get("part") == "launcher"]
    at = {entry["event"]: datetime.fromisoformat(entry["timestamp"]) for entry in log}
    assert (at["ended"] - at["signalled"]).total_seconds() < 10, "its grace"


@pytest.mark.real("py-spy")
@pytest.mark.real("mount")
def test_without_py_spy_the_ranks_own_stacks_name_the_line_and_that_is_said(
    edge: EdgeRuns, without_pyspy: list[str]
) -> None:
    """Long on a busy machine: without py-spy, a hang is looked at for longer."""
    arguments = ["--plan", "0:block@15:1", "--steps", "30"]
    finished = edge.run("train.py", *arguments, config=RESUME + QUICK, program=without_pyspy)
    incident = only(finished)
    assert finished.returncode == 0
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [1])
    assert "fetch_vocabulary_update (faults.py:" in incident["summary"]
    assert finished.run_dir is not None
    folder = finished.run_dir / "incidents" / "001-rank_blocked" / "stacks"
    texts = [path.read_text() for path in folder.glob("rank-*.txt")]
    assert len(texts) == 2
    assert all("stacks by the rank's hooks" in text for text in texts)
    trouble = "py-spy is not installed: stacks by the rank's hooks"
    assert incident["evidence"]["stack_troubles"] == [trouble]
    assert own_lines(finished).count(trouble) == 1


def test_no_torch_process_group_and_no_step_is_no_hang_of_its_own(edge: EdgeRuns) -> None:
    """A script that guardrun knows nothing of, in which nothing ever advances but which works: left alone."""
    script = SCRIPTS / "busy.py"
    finished = edge.run(script.name, config=QUICK)
    assert finished.returncode == 0
    assert finished.incidents == []
