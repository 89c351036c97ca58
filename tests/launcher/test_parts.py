"""The launcher's parts that need no run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from guardrun.launcher.attempt.attempt_start import (
    environment,
    resume_arguments,
    resume_environment,
    run_environment,
)
from guardrun.launcher.attempt.attempt_stop import Stopping, Sweeper, reap_orphans
from guardrun.launcher.base.processes import parse_stat, read_children, read_stat, wait_for_end
from guardrun.launcher.base.rank_environment import DEFAULTS, Subject, rank_defaults, render_table
from guardrun.launcher.base.signals import Interrupted, Signals, parse_signals
from guardrun.launcher.base.socket_folder import MAX_PARENT_BYTES, NoSocketFolderError, make_socket_folder
from guardrun.launcher.control import fallback
from guardrun.launcher.control.supervision import (
    DEATHS_WITHIN_S,
    FIRST_SILENCE_S,
    FROZEN_S,
    MAX_DEATHS,
    SILENCE_S,
    STOPPED_S,
    SupervisorWatchdog,
)
from guardrun.launcher.creation.run_creation import make_run_id
from guardrun.launcher.main import may_end_early
from guardrun.launcher.run.command_line import Flags, parse_flags
from guardrun.supervisor.config import Config
from guardrun.supervisor.config.tables import GuardsTable
from guardrun.supervisor.engine.model.events import Checkpoint, Rank
from guardrun.supervisor.rundir.journal_end import parse_last_second
from guardrun.supervisor.wire.control_messages import Finish, Start, Stop
from tests.support.waiting import wait_until

# Flags ----------------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """Of the shape of torch's: an option with a value, a switch, a script, and the rest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    parser.add_argument("--max-restarts", "--max_restarts", type=int, default=0)
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--log-dir", default=None)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def parse(*arguments: str) -> Flags:
    return parse_flags(arguments, make_parser)


def test_flags_stand_before_the_script_and_nothing_after_it_is_touched() -> None:
    rest = ["--guard-off", "--guard-dir", "x", "--", "--guard-nonsense=1", "--guard", "--n", ""]
    flags = parse("--guard-dir", "d", "--nproc_per_node", "2", "--guard-run-i=i", "-m", "train", *rest)
    assert (str(flags.dir), flags.run_id, flags.is_off, flags.config) == ("d", "i", False, None)
    assert flags.torch.training_script == "train" and flags.torch.training_script_args == rest
    assert flags.torch.nproc_per_node == "2" and not [name for name in vars(flags.torch) if "guard" in name]


def test_a_value_that_looks_like_a_flag_of_guardruns_is_a_value() -> None:
    flags = parse("--log-dir=--guard-off", "train.py")
    assert flags.torch.log_dir == "--guard-off" and not flags.is_off


def test_keys_and_max_restarts() -> None:
    flags = parse("--guard-hang-floor-s", "20", "--max-restarts=0", "train.py")
    assert flags.for_config() == {"--guard-hang-floor-s": "20", "--max-restarts": 0}
    assert parse("train.py").for_config() == {} and parse("train.py").torch.max_restarts == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--guard-of", "--guard-conifg=x", "train.py"], "unknown flag --guard-conifg; did you mean --guard-config?"),
        (["--guard-zzzzzz", "train.py"], "guardrun --help lists them"),
        (["--nonsense", "train.py"], "unrecognized arguments: --nonsense"),
        (["--guard-dir=x"], "training_script"),
    ],
)
def test_wrong_flags(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_only_command_lines_that_may_need_no_supervisor_wait_for_the_parser() -> None:
    assert may_end_early(["--guard-off", "t.py"]) and may_end_early(["-h"]) and may_end_early(["--help"])
    assert not may_end_early(["--guard-dir=x", "--nproc-per-node=2", "t.py", "--horizon"])


@pytest.mark.parametrize(
    ("before", "script"),
    [
        (["--log", "x"], "train.py"),
        (["-m"], "package.train"),
        (["--nproc-per-node=2", "--max_restarts", "-1"], "train.py"),
        (["--"], "--odd-name.py"),
        (["--guard-off"], "-"),
        (["--log-dir", "a b"], "with space.py"),
    ],
)
def test_the_scripts_place(before: list[str], script: str) -> None:
    flags = parse(*before, script, "--guard-off", "--log-dir")
    assert flags.torch.training_script == script
    assert flags.torch.training_script_args == ["--guard-off", "--log-dir"]


# Environment ----------------------------------------------------------------------------------------------------


def test_the_users_own_settings_win_by_any_of_their_names() -> None:
    subject = Subject(hard_timeout_s=1800, run_dir=Path("/run"), attempt=2)
    ours = rank_defaults(subject, {})
    assert ours["NCCL_TIMEOUT"] == "2100" and ours["TORCH_DISTRIBUTED_DEBUG"] == "INFO"
    assert ours["TORCH_FR_DUMP_TEMP_FILE"] == ours["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/run/nccl/attempt-2-rank-"
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in ours
    assert ours["TORCH_FR_BUFFER_SIZE"] == "2000" and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in ours
    old = rank_defaults(Subject(1800, Path("/run"), 2, torch=(2, 6)), {})
    assert old["TORCH_FR_BUFFER_SIZE"] == old["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    theirs = rank_defaults(subject, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "5", "NCCL_TIMEOUT": ""})
    assert not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "NCCL_TIMEOUT"} & set(theirs)
    agent = rank_defaults(Subject(0, Path("/run"), None, is_torchrun_agent=True), {})
    assert agent["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1" and "NCCL_TIMEOUT" not in agent


@pytest.mark.parametrize(("users", "mark"), [(None, "2100"), ("2100", None), ("77", None)])
def test_hooks_know_whose_timeout_it_is(monkeypatch: pytest.MonkeyPatch, users: str | None, mark: str | None) -> None:
    monkeypatch.delenv("NCCL_TIMEOUT", raising=False)
    if users is not None:
        monkeypatch.setenv("NCCL_TIMEOUT", users)
    file = SimpleNamespace(socket_dir="/s", launcher_pid=1, token="t", run_id="r", config={}, fleet=None)
    run: Any = SimpleNamespace(file=file, path=Path("/run"))
    found = run_environment(run, Config(), 0, None)
    assert found.get("NCCL_TIMEOUT") == mark
    assert json.loads(str(found["GUARDRUN_HOOKS"])).get("nccl_timeout") == mark


@pytest.mark.parametrize("every", [0, 500])
def test_hooks_know_how_often_replicas_are_compared(every: int) -> None:
    config = msgspec.structs.replace(Config(), guards=GuardsTable(check_every=every))
    own = {"socket_dir": "/s", "cwd": "/w", "checkpoint_dir": "", "fleet": None}
    file = SimpleNamespace(**own, launcher_pid=1, token="t", run_id="r", config=config.as_dict())
    run: Any = SimpleNamespace(file=file, path=Path("/run"))
    hooks = json.loads(str(run_environment(run, config, 0, None)["GUARDRUN_HOOKS"]))
    assert hooks["check_every"] == config.settings().check_every == every


def test_documentation_has_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environment.md").read_text()
    assert render_table() in text, (
        "docs/environment.md: put in what guardrun.launcher.base.rank_environment.render_table() says"
    )
    assert all(name in text for default in DEFAULTS for name in default.names)


def test_resuming_arguments_and_environment() -> None:
    checkpoint = Checkpoint(path="/out/{step}/c.pt", step=7)
    assert resume_arguments(["--a={path}", "{step}", "{dir}", "{x}"], checkpoint) == [
        "--a=/out/{step}/c.pt",
        "7",
        "/out/{step}",
        "{x}",
    ]
    assert resume_arguments(["--a"], None) == []
    found = resume_environment({"FROM": "{path}", "GUARDRUN_RESUME_STEP": "no"}, checkpoint)
    assert found == {
        "FROM": "/out/{step}/c.pt",
        "GUARDRUN_RESUME_FROM": "/out/{step}/c.pt",
        "GUARDRUN_RESUME_STEP": "7",
    }
    os.environ["GUARDRUN_RESUME_STEP"] = "stale"
    try:
        with environment({**resume_environment({}, None), "NEW_ONE": "1"}):
            assert "GUARDRUN_RESUME_STEP" not in os.environ and os.environ["NEW_ONE"] == "1"
        assert os.environ["GUARDRUN_RESUME_STEP"] == "stale" and "NEW_ONE" not in os.environ
    finally:
        del os.environ["GUARDRUN_RESUME_STEP"]


# Files ----------------------------------------------------------------------------------------------------------


def test_last_second_of_a_torn_journal() -> None:
    assert parse_last_second(b'cut"}\n{"t": 1.5}\n{"t": 2.5, "x": 1}\n{"t": 3') == 2.5
    assert parse_last_second(b'[1]\n{"u": 2}\nnull\n') is None


def test_run_ids_are_readable_and_valid() -> None:
    now = datetime(2026, 11, 21, 3, 15, 2)
    assert make_run_id("train", now).startswith("20261121-031502-train-")
    assert make_run_id("../ö?", now).startswith("20261121-031502-run-") and "/" not in make_run_id("a/b", now)


def test_socket_folder_leaves_room_for_a_sockets_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    (tmp_path / "t").mkdir()
    folder = make_socket_folder({"XDG_RUNTIME_DIR": str(deep), "TMPDIR": str(tmp_path / "t")})
    assert folder.parent == tmp_path / "t" and folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_no_socket_folder_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("guardrun.launcher.base.socket_folder.candidates", lambda environ: [tmp_path / "none"])
    with pytest.raises(NoSocketFolderError, match=r"none: No such file .*let TMPDIR be one .* at most 81 bytes long"):
        make_socket_folder({})
    assert make_socket_folder({}, [tmp_path / "nor here", tmp_path]).parent == tmp_path


def test_the_longest_parent_that_is_taken_has_room_for_every_socket(tmp_path: Path) -> None:
    parent = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        parent /= "d" * (MAX_PARENT_BYTES - len(str(parent)) - 1)
        parent.mkdir()
        folder = make_socket_folder({"TMPDIR": str(parent)})
        assert folder.parent == parent
        for name in ("control", "beats"):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(folder / name))
    finally:
        shutil.rmtree(parent.parent)


# Processes ------------------------------------------------------------------------------------------------------


def test_stat_of_a_command_with_parentheses() -> None:
    fields = " ".join(["S", "7", "8", "9", *["0"] * 15, "4242", *["0"] * 29, "256"])
    assert parse_stat(f"12 (a) b) c) {fields}") == (12, "S", 7, 8, 9, 4242, 256)
    me = read_stat(os.getpid())
    assert me is not None and me.ppid == os.getppid() and read_stat(2**22 + 1) is None


def test_sweep_finds_what_left_the_tree_and_spares_the_supervisor() -> None:
    token = f"test-{os.getpid()}-{time.monotonic_ns()}"
    marked = {**os.environ, "GUARDRUN_TOKEN": token}
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    others = read_children(os.getpid())  # of this test process: what other tests share
    supervisor = subprocess.Popen(sleep, env=marked, start_new_session=True)
    earlier = subprocess.Popen(sleep)
    # Ignores SIGTERM, in a session of its own.
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    child = subprocess.Popen(
        [sys.executable, "-c", stubborn], env=marked, start_new_session=True, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        sweeper = Sweeper(token, lambda: [supervisor.pid], [*others, earlier.pid])
        assert child.pid in [stat.pid for stat in sweeper.signal_all(signal.SIGTERM)]
        assert child.poll() is None
        assert sweeper.sweep() == []
        assert child.wait(60) == -signal.SIGKILL
        assert supervisor.poll() is None and earlier.poll() is None
    finally:
        for process in (supervisor, earlier, child):
            process.kill()
            process.wait()
        if child.stdout is not None:
            child.stdout.close()


def test_sweep_finds_what_is_no_descendant_by_the_runs_mark() -> None:
    token = f"test-{os.getpid()}-{time.monotonic_ns()}"
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    away = subprocess.Popen(sleep, env={**os.environ, "GUARDRUN_TOKEN": token})
    stranger = subprocess.Popen(sleep, env={**os.environ, "GUARDRUN_TOKEN": f"{token}-2"})
    program = f"from guardrun.launcher.attempt.attempt_stop import Sweeper; print(Sweeper({token!r}, list).sweep())"
    try:
        swept = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert swept.stdout == "[]\n"
        assert away.wait(60) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (away, stranger):
            process.kill()
            process.wait()


def test_orphans_are_reaped_and_exit_codes_are_left_to_their_owners() -> None:
    orphaning = "import os, time\nif os.fork() == 0:\n    time.sleep(0.1)\n    os._exit(0)\nos._exit(5)"
    process = subprocess.Popen([sys.executable, "-c", orphaning])
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(6)"])
    wait_for_end([(process.pid, None), (other.pid, None)], 10)

    def orphans() -> list[int]:
        reap_orphans({process.pid, other.pid})
        return [pid for pid in read_children(os.getpid()) if pid not in (process.pid, other.pid)]

    before = set(orphans())
    wait_until(lambda: not set(orphans()) - before or not orphans(), 5, "the orphan to be reaped")
    assert (process.wait(60), other.wait(60)) == (5, 6)


def test_signals_are_noted_and_handlers_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals = Signals()
    try:
        signals.handle(parse_signals("SIGUSR2, SIGNONE,SIGKILL"))
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert sorted(signals.pop_pending()) == sorted([signal.SIGUSR2, signal.SIGTERM]) and signals.pop_pending() == []
    finally:
        signals.close()
    assert signal.getsignal(signal.SIGTERM) == before
    assert parse_signals("SIGTERM,SIGINT,SIGTERM") == [signal.SIGTERM, signal.SIGINT]


def test_a_signal_ends_the_waiting_for_what_never_answers() -> None:
    signals, answers = Signals(), threading.Event()
    killer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        assert signals.run(lambda: 7) == 7
        with pytest.raises(KeyError):
            signals.run(lambda: {}["none"])
        signals.handle([signal.SIGUSR1])
        signals.warnings = frozenset({signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)
        killer.start()
        began_s = time.monotonic()
        with pytest.raises(Interrupted, match="SIGTERM"):
            signals.run(lambda: answers.wait(60))
        assert time.monotonic() - began_s < 30
        assert signals.pop_pending() == [signal.SIGUSR1, signal.SIGTERM], "they are still to be acted on"
    finally:
        killer.join()
        answers.set()
        for thread in [one for one in threading.enumerate() if one.name == "guardrun-waits"]:
            thread.join(60)
        signals.close()


# Judgement ------------------------------------------------------------------------------------------------------


def test_a_silent_supervisor_is_wedged_but_a_frozen_machine_is_not() -> None:
    vigil = SupervisorWatchdog(0)
    for now in range(int(FIRST_SILENCE_S) + 1):
        vigil.looped(now)
        assert not vigil.is_wedged(now, is_stopped=False)
    assert vigil.is_wedged(FIRST_SILENCE_S + 1, is_stopped=False)
    vigil.started(100)
    vigil.looped(100)
    vigil.note_contact(101)
    vigil.looped(101)
    vigil.looped(101 + 1000 * FROZEN_S)
    assert not vigil.is_wedged(101 + 1000 * FROZEN_S, is_stopped=False)
    assert vigil.is_wedged(101 + 1000 * FROZEN_S + SILENCE_S + 1, is_stopped=False)


def test_a_stopped_supervisor_gets_a_moment() -> None:
    vigil = SupervisorWatchdog(0)
    assert not vigil.is_wedged(1, is_stopped=True) and not vigil.is_wedged(1.5, is_stopped=False)
    assert not vigil.is_wedged(2, is_stopped=True) and vigil.is_wedged(2 + STOPPED_S, is_stopped=True)


def test_too_many_deaths_in_a_minute_end_it() -> None:
    vigil = SupervisorWatchdog(0)
    waits = [vigil.died(float(death)) for death in range(MAX_DEATHS)]
    assert waits[0] == 0.0 and waits[-1] is None and None not in waits[:-1]
    spread = SupervisorWatchdog(0)
    assert all(spread.died(death * DEATHS_WITHIN_S / 2) is not None for death in range(20))


def view(**changes: object) -> fallback.View:
    state: dict[str, object] = {
        "attempt": 0,
        "checkpoint": None,
        "is_stopping": False,
        "is_stopped": False,
        "exitcodes": {},
        "stopped_by_us": [],
        "world_size": 2,
        "restarts": 0,
    }
    return fallback.View(**{**state, **changes})  # type: ignore[arg-type]  # a table of fields


def test_a_head_without_a_supervisor_does_not_answer_for_the_other_nodes() -> None:
    """Its exit status is the job's, and how their ranks have ended it cannot know."""
    well = view(exitcodes={0: 0, 1: 0}, is_stopped=True, is_alone=False)
    head = dataclasses.replace(well, is_head=True)
    assert fallback.next_order(well, max_restarts=1, grace_s=4) == Finish(exit_code=0)
    assert fallback.next_order(head, max_restarts=1, grace_s=4) == Finish(exit_code=1)
    assert fallback.end_words(well) == ""
    assert fallback.end_words(head).startswith(
        "this node's 2 ranks have ended well; how those of the other nodes ended"
    )
    failed = dataclasses.replace(head, exitcodes={0: 0, 1: 3})
    assert fallback.next_order(failed, max_restarts=1, grace_s=4) == Finish(exit_code=3)
    assert fallback.end_words(failed) == ""


def test_without_a_supervisor_it_is_torchrun() -> None:
    checkpoint = Checkpoint(path="/c", step=1)
    cases: list[tuple[fallback.View, object]] = [
        (view(attempt=-1, is_stopped=True), Start(attempt=0)),
        (view(), None),
        (view(exitcodes={0: 0}), None),
        (view(exitcodes={0: 0, 1: -9}), Stop(attempt=0, grace_s=4)),
        (view(exitcodes={1: 1}, is_stopping=True), None),
        (view(exitcodes={0: 0, 1: 0}, is_stopped=True), Finish(exit_code=0)),
        (
            view(exitcodes={1: -11, 0: -15}, stopped_by_us=[0], is_stopped=True, checkpoint=checkpoint),
            Start(attempt=1, checkpoint=checkpoint),
        ),
        (view(exitcodes={1: -11, 0: -15}, stopped_by_us=[0], is_stopped=True, restarts=1), Finish(exit_code=139)),
        (view(exitcodes={1: 7, 0: 8}, is_stopped=True, restarts=1), Finish(exit_code=7)),
        # The supervisor had a hang stopped, and died: the restart is still to be done.
        (view(exitcodes={0: -15, 1: -15}, stopped_by_us=[0, 1], is_stopped=True), Start(attempt=1)),
    ]
    for state, expected in cases:
        assert fallback.next_order(state, max_restarts=1, grace_s=4) == expected, state


class Ranks:
    """One rank that ends when the test says so."""

    def __init__(self) -> None:
        self.rank = Rank(global_rank=0, local_rank=0, pid=1, node="n")
        self.has_ended, self.sent = False, list[int]()

    def alive(self) -> list[Rank]:
        return [] if self.has_ended else [self.rank]

    def signal(self, signum: signal.Signals) -> None:
        self.sent.append(signum)


class Limits:
    """Notes for how long what is left is waited for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def sweep(self, limit_s: float) -> list[int]:
        self.asked.append(limit_s)
        return []


@pytest.mark.parametrize(("ended_s", "left_s"), [(0.5, 4.8), (5.3, 0.5)])
def test_what_ranks_leave_of_the_time_after_sigkill_is_there_for_the_rest(ended_s: float, left_s: float) -> None:
    ranks, limits = Ranks(), Limits()
    stopping = Stopping(ranks, limits, 0.0, 0.3)  # type: ignore[arg-type]
    assert stopping.advance(0.1) is None and stopping.advance(0.3) is None
    assert ranks.sent == [signal.SIGTERM, signal.SIGKILL]
    ranks.has_ended = ended_s < 1
    outcome = stopping.advance(ended_s)
    assert outcome is not None and outcome.stopped_by_us == [0]
    assert limits.asked == [pytest.approx(left_s)]
