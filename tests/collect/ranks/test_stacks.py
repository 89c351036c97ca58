from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks import stack_dumps
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.collect.ranks.stack_dumps import (
    dump_pyspy,
    explain_failure,
    find_pyspy,
    has_gaps,
    parse_pyspy,
)
from guardrun.supervisor.collect.ranks.stacks import Fallback, ask_faulthandler, dump_stacks
from guardrun.supervisor.engine.model.looks import Frame
from tests.collect.conftest import Script, StartScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

SLEEPING = """
import threading, time
def helper():
    time.sleep(60)
def inner():
    print('ready', flush=True)
    time.sleep(60)  # here
threading.Thread(target=helper, name='hilfe ü', daemon=True).start()
inner()
"""
GIL_HELD = "import ctypes\nprint('ready', flush=True)\nctypes.PyDLL(None).sleep(60)  # here\n"
ARMED = """
import faulthandler, signal, sys, time
dump = open(sys.argv[1], 'a')
faulthandler.register(signal.SIGUSR2, file=dump, all_threads=True, chain=False)
def inner():
    print('ready', flush=True)
    time.sleep(60)  # here
inner()
"""


def by(path: Path) -> Fallback:
    return Fallback(signal.SIGUSR2, path, BoardReader("/nowhere"))


def wait_for_state(script: Script, state: str) -> None:
    wait_until(lambda: (stat := read_stat(script.pid)) is not None and stat.state == state, 5, f"state {state}")


def test_a_sleeping_process_shows_its_threads_the_main_one_first(start_script: StartScript) -> None:
    script = start_script(SLEEPING)
    dump = dump_stacks(script.pid, script.start)
    assert (dump.source, dump.trouble) == ("py-spy", "")
    main, helper = dump.threads
    assert main.is_main and main.tid == script.pid and not main.owns_gil
    assert main.frames[0] == Frame("inner", str(script.path), script.line_of("# here"))
    assert main.frames[-1].function == "<module>"
    assert helper.name == "hilfe ü" and not helper.is_main
    assert helper.frames[0].function == "helper"


def test_a_gil_held_in_c_is_seen(start_script: StartScript) -> None:
    script = start_script(GIL_HELD)
    wait_for_state(script, "S")
    thread = dump_stacks(script.pid, script.start).threads[0]
    assert thread.owns_gil and thread.is_main
    assert thread.frames[0].line == script.line_of("# here")


def test_native_frames_name_the_c_function(start_script: StartScript) -> None:
    script = start_script(GIL_HELD)
    wait_for_state(script, "S")
    dump = dump_stacks(script.pid, script.start, native=True, timeout_s=10)
    assert any("sleep" in frame.function for frame in dump.threads[0].frames), dump


@pytest.mark.parametrize("native", [False, True])
def test_a_stopped_process_shows_its_stack_and_stays_stopped(start_script: StartScript, native: bool) -> None:
    script = start_script(SLEEPING)
    os.kill(script.pid, signal.SIGSTOP)
    wait_for_state(script, "T")
    dump = dump_stacks(script.pid, script.start, native=native)
    assert dump.threads[0].frames[0].function == "inner"
    wait_for_state(script, "T")


def test_a_stack_of_the_librarys_frames_alone_has_gaps() -> None:
    waits = [Frame("wait", "/usr/lib/python3.11/threading.py", n) for n in (1, 2)]
    script = Frame("<module>", "/home/me/train.py", 9)
    assert has_gaps(waits)
    assert not has_gaps([*waits, script])
    assert not has_gaps([*waits, Frame("_run_module_as_main", "<frozen runpy>", 198)])
    assert not has_gaps([*waits, *[Frame("call", "/usr/lib/python3.11/x.py", 1)] * 60]), "cut, not dropped"
    assert not has_gaps([])


def test_a_process_without_python_costs_no_py_spy() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        stat = wait_until(lambda: (s := read_stat(child.pid)) is not None and s.comm == "sleep" and s, 5, "the exec")
        assert stat
        dump = dump_stacks(child.pid, stat.start, pyspy="/dev/null/none")
        assert (dump.threads, dump.trouble) == ([], "not a Python process")
    finally:
        child.kill()
        child.wait()


def test_the_dead_have_no_stacks(start_script: StartScript) -> None:
    script = start_script(SLEEPING)
    assert dump_stacks(script.pid, script.start + 1).trouble == "the process is gone"
    os.kill(script.pid, signal.SIGKILL)
    wait_for_state(script, "Z")
    assert "zombie" in dump_stacks(script.pid, script.start).trouble
    script.process.wait()
    assert dump_stacks(script.pid, script.start).trouble == "the process is gone"
    assert dump_pyspy(script.pid).trouble == "the process is gone"


def test_a_process_without_a_handler_is_not_signalled(start_script: StartScript, tmp_path: Path) -> None:
    path = tmp_path / "stacks-0-0"
    path.touch()
    script = start_script(SLEEPING)
    text, trouble = ask_faulthandler(script.pid, script.start, by(path))
    assert (text, trouble) == ("", f"the rank doesn't handle signal {int(signal.SIGUSR2)}")
    assert script.process.poll() is None


def test_a_stopped_process_is_not_signalled(start_script: StartScript, tmp_path: Path) -> None:
    path = tmp_path / "stacks-0-0"
    script = start_script(ARMED, str(path))
    os.kill(script.pid, signal.SIGSTOP)
    wait_for_state(script, "T")
    assert ask_faulthandler(script.pid, script.start, by(path)) == ("", "faulthandler can't run in state T")
    assert path.read_text() == ""


def test_a_program_that_hangs_is_ended_in_time(start_script: StartScript, tmp_path: Path) -> None:
    script = start_script(SLEEPING)
    hanging = tmp_path / "py-spy"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o700)
    began = time.monotonic()
    dump = dump_pyspy(script.pid, program=str(hanging), timeout_s=0.3)
    assert dump.trouble.startswith("py-spy took longer than")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("echo 'Error: Failed to copy frame' >&2; exit 1", "py-spy failed: Failed to copy frame"),
        ("exit 3", "py-spy failed: no word"),
        ("echo nonsense", "py-spy's output is not understood: Expecting value: line 1 column 1 (char 0)"),
        ("echo '{}'", "py-spy's output is not understood: py-spy's JSON holds no list of threads"),
        ("echo '[]'", "py-spy saw no frames of the main thread"),
        ("echo '[{\"frames\": 3}]'", "py-spy's output is not understood: 'int' object is not subscriptable"),
    ],
)
def test_whatever_py_spy_says_is_survived(tmp_path: Path, script: str, trouble: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/tries\n{script}\n")
    program.chmod(0o700)
    assert dump_pyspy(os.getpid(), program=str(program), timeout_s=60).trouble == trouble
    assert (tmp_path / "tries").read_text().count("x") == 3


def test_a_failure_on_a_changing_stack_is_tried_again(tmp_path: Path, start_script: StartScript) -> None:
    script = start_script(SLEEPING)
    program = tmp_path / "py-spy"
    program.write_text(f'#!/bin/sh\nmkdir {tmp_path}/tried 2>/dev/null && exit 1\nexec {find_pyspy()} "$@"\n')
    program.chmod(0o700)
    assert dump_pyspy(script.pid, program=str(program), timeout_s=60).trouble == ""


def test_a_refusal_reads_as_one(start_script: StartScript) -> None:
    assert explain_failure("Permission Denied: Try running again with elevated permissions by …") == "ptrace refused"
    assert explain_failure("Error: Operation not permitted (os error 1)") == "ptrace refused"


@pytest.mark.real("root")
def test_another_users_process_is_refused(start_script: StartScript, tmp_path: Path) -> None:
    script = start_script(SLEEPING)
    program = tmp_path / "py-spy"
    program.write_text(f'#!/bin/sh\nexec setpriv --reuid=65534 --clear-groups {find_pyspy()} "$@"\n')
    program.chmod(0o700)
    assert dump_pyspy(script.pid, program=str(program), timeout_s=60).trouble == "ptrace refused"


@pytest.mark.real("root")
def test_a_supervisor_without_rights_says_so_and_signals_nobody(start_script: StartScript, tmp_path: Path) -> None:
    path = tmp_path / "stacks-0-0"
    script = start_script(ARMED, str(path))
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12's, should a test before have left a thread
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(65534)
            os.write(write, ask_faulthandler(script.pid, script.start, by(path))[1].encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert said.startswith("faulthandler can't be asked: "), said
    assert path.read_text() == ""


def test_py_spy_is_found_beside_the_interpreter_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dumps, "_found", [])
    monkeypatch.setenv("PATH", "")
    assert find_pyspy() == str(Path(sys.executable).parent / "py-spy")


def test_a_main_thread_is_known_without_names_and_in_another_namespace() -> None:
    frame = '{"name": "f", "filename": "a.py", "line": 0}'
    text = '[{"os_thread_id": %s, "thread_name": %s, "frames": [%s]}]'
    assert parse_pyspy(text % ("7", "null", frame), 7)[0].is_main
    assert parse_pyspy(text % ("7", '"Renamed"', frame), 7)[0].is_main
    assert parse_pyspy(text % ("900", '"MainThread"', frame), 7)[0].is_main
    assert not parse_pyspy(text % ("8", '"Other"', frame), 7)[0].is_main
    assert parse_pyspy(text % ("null", '"Other"', frame), 7)[0].tid == 0


def test_a_rank_that_closed_the_file_for_its_stacks_is_not_asked(start_script: StartScript, tmp_path: Path) -> None:
    """faulthandler knows a number only: a file that the script has opened since may have it."""
    path = tmp_path / "stacks-0-0"
    closing = ARMED.replace("    print(", "    __import__('os').closerange(3, 64)\n    print(", 1)
    assert closing != ARMED
    script = start_script(closing, str(path))
    text, trouble = ask_faulthandler(script.pid, script.start, by(path))
    assert text == ""
    assert "no longer has the file" in trouble
    assert path.read_bytes() == b""
