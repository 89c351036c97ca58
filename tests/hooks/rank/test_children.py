"""What a rank starts is no rank: it neither writes the board nor sends anything. One process a rank does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import Ended, Hello, UncaughtException
from tests.hooks.bed import Bed, finish
from tests.support.waiting import wait_until

WORK = '''
import sys, os, time
def work(_=None):
    """Everything by which a child could betray itself."""
    from guardrun.hooks import phase, should_checkpoint, step; from guardrun.hooks.rank import rank
    step(1000); phase("eval"); should_checkpoint()
    time.sleep(0.4)
    return (rank.active is None, "GUARDRUN_HOOKS" in os.environ, any("inject" in p for p in sys.path),
            os.environ.get("PYTHONPATH"), sys.excepthook is sys.__excepthook__)
'''


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_are_no_ranks(bed: Bed, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        WORK
        + f"""
if __name__ == "__main__":
    import multiprocessing
    from guardrun.hooks import step
    step(7)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(*pool.map(work, range(2)), sep="\\n")
"""
    )
    done = finish(bed.start([str(script)]))
    assert (done.returncode, done.stderr) == (0, "")
    hook = method != "fork"  # The forked child has its parent's, which does nothing there.
    assert done.stdout == f"{(True, False, False, None, hook)}\n" * 2
    board = bed.board()
    assert (board[Field.STEP], board[Field.API_CALLS], board[Field.CHECKS]) == (7, 1, 0)
    assert {message.pid for message in bed.hear_all(Hello)} == {board[Field.PID]}


def test_a_forked_child_that_raises_is_not_the_rank(bed: Bed) -> None:
    # A rank that has not said that it is there doesn't say that it has ended, either.
    code = WORK + "if os.fork() == 0:\n    work()\n    raise ValueError('in the child')\nos.wait()"
    _, done = bed.run_until(Hello, code)
    assert done.returncode == 0
    assert "in the child" in done.stderr
    assert bed.board()[Field.STEP] == 0
    assert bed.hear_all(UncaughtException) == []
    assert len(bed.hear_all(Ended)) == 1
    assert not (bed.sockets / "raised-0-0.json").exists()


def test_a_fork_while_the_hooks_import_does_not_block_the_child(bed: Bed) -> None:
    """The child imports what our thread may be importing in the parent at that moment."""
    code = """
import os, time
until = time.monotonic() + 0.6
while time.monotonic() < until:
    if os.fork() == 0:
        import msgspec, zmq
        os._exit(0)
    os.wait()
"""
    done = bed.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert bed.wait_for(Hello)


def test_children_by_exec_are_no_ranks(bed: Bed) -> None:
    code = WORK + "import subprocess; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    done = bed.run(code, WORK + "print(work())")
    assert (done.stdout, done.stderr) == (f"{(True, False, False, None, True)}\n", "")


def test_the_next_python_of_a_rank_takes_over_and_starts_at_zero(bed: Bed) -> None:
    shell = f"""
{sys.executable} -c 'from guardrun.hooks import step; step(5)'
{sys.executable} -c 'import os; from guardrun.hooks import step; step(); print(os.getpid())'
"""
    done = finish(bed.start(["-c", shell], program="/bin/sh"))
    board = bed.board()
    assert (done.stderr, board[Field.STEP], board[Field.PID]) == ("", 1, int(done.stdout))


def test_a_second_python_beside_the_first_is_left_alone(bed: Bed) -> None:
    shell = f"""
{sys.executable} -c 'import sys; from guardrun.hooks import step; step(5); print(); sys.stdin.readline()' <"$0" &
while ! [ -e "$0.ready" ]; do sleep 0.01; done
{sys.executable} -c 'from guardrun.hooks import step; step(9)'
echo >"$0"
wait
"""
    fifo = bed.sockets / "fifo"
    os.mkfifo(fifo)
    keep = os.open(fifo, os.O_RDWR)
    try:
        process = bed.start(["-c", shell, str(fifo)], program="/bin/sh")
        bed.wait_until(Field.STEP)
        (bed.sockets / "fifo.ready").touch()
        done = finish(process)
    finally:
        os.close(keep)
    assert (done.returncode, done.stderr) == (0, "")
    assert bed.board()[Field.STEP] == 5


@pytest.mark.parametrize(
    "call",
    [
        "execv(sys.executable, argv)",
        "execve(sys.executable, argv, os.environ)",
        "execlp(sys.executable, *argv)",
        "execvpe(sys.executable, argv, {**os.environ})",
    ],
)
def test_a_script_that_runs_itself_anew_stays_the_rank(bed: Bed, call: str) -> None:
    code = f"""
import os, sys
from guardrun.hooks import step
if "again" not in sys.argv:
    step(5)
    argv = [sys.executable, "-c", sys.argv[1], sys.argv[1], "again"]
    os.{call}
step(1)
print(os.getpid(), "GUARDRUN_HOOKS" in os.environ, os.environ.get("PYTHONPATH"))
"""
    done = bed.run(code, code)
    board = bed.board()
    assert done.stdout == f"{board[Field.PID]} False None\n", done.stderr
    assert board[Field.STEP] == 1


def test_a_failed_exec_changes_nothing(bed: Bed) -> None:
    code = """
import os
before = dict(os.environ)
try:
    os.execv("/nowhere", ["x"])
except FileNotFoundError as error:
    print(error.errno, dict(os.environ) == before, os.execve in os.supports_fd, os.execv.__name__)
"""
    assert bed.run(code).stdout == "2 True True execv\n"


@pytest.mark.parametrize("flags", [[], ["-W", "error"], ["-W", "always"]])
def test_our_thread_makes_no_fork_warn(bed: Bed, flags: list[str]) -> None:
    """Python 3.12 and newer warn when a process with threads forks."""
    code = """
import os, time, warnings
time.sleep(0.6)
for _ in range(2):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    warnings.simplefilter("error")
"""
    done = finish(bed.start([*flags, "-c", code]))
    assert (done.returncode, done.stderr) == (0, "")
    assert bed.wait_for(Hello)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older Pythons don't warn")
def test_a_scripts_own_thread_makes_a_fork_warn(bed: Bed) -> None:
    code = """
import os, threading, time
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
if os.fork() == 0:
    os._exit(0)
os.wait()
"""
    assert "multi-threaded" in finish(bed.start(["-W", "always", "-c", code])).stderr


def test_a_rank_dies_with_its_launcher(bed: Bed) -> None:
    """The launcher is played by a process of its own: it is the one that gets killed."""
    bed.make_board()
    env = bed.environment()
    code = """
import json, os, subprocess, sys, time
settings = json.loads(os.environ["GUARDRUN_HOOKS"])
settings["launcher_pid"] = os.getpid()
env = dict(os.environ, GUARDRUN_HOOKS=json.dumps(settings))
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
time.sleep(600)
"""
    launcher = bed.start(["-S", "-c", code], env=env)
    pid = bed.wait_until(Field.PID)
    bed.wait_until(Field.MILESTONES)
    os.kill(launcher.pid, signal.SIGKILL)
    finish(launcher)
    wait_until(lambda: _is_gone(pid), 10, "the rank's end")


def test_a_rank_that_is_a_grandchild_does_not_die_with_its_shell(bed: Bed) -> None:
    shell = f"{sys.executable} -c 'import time; time.sleep(0.5); print(1)' & echo $!"
    process = bed.start(["-c", shell], program="/bin/sh")
    assert "1" in finish(process).stdout.splitlines(), "beside the number of its process"


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_no_descriptor_leaks_into_a_rank_s_children(bed: Bed) -> None:
    code = "import subprocess; subprocess.run(['/bin/sh', '-c', 'ls -l /proc/self/fd'], close_fds=False)"
    done: subprocess.CompletedProcess[str] = bed.run(code)
    assert str(bed.sockets) not in done.stdout
