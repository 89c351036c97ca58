"""A process that the tests fork finds itself as one that was executed does: held against each other, one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from execnet.gateway_io import popen_bootstrapline

from tests.support.forkserver import client, program
from tests.support.processes import read_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
INTROSPECT = Path(__file__).parent / "scripts" / "introspect.py"


def both(start: Callable[[], Any]) -> tuple[Any, Any]:
    """What comes of it forked, and executed."""
    assert not client.cold
    forked = start()
    with client.executed():
        return forked, start()


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**client.server_environment(), "WHO": "me"}
    del environment["PYTHONUNBUFFERED"]
    environment |= options.pop("env", {})
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment, **options)


def python(code: str, *arguments: str, **options: Any) -> tuple[int, str, str]:
    done = run(sys.executable, "-c", code, *arguments, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["SCRIPT", "a", "b c", ""], {}),
        (["-u", "SCRIPT"], {"start_new_session": True}),
        (["-m", "introspect", "x"], {"env": {"PYTHONPATH": str(INTROSPECT.parent)}}),
        (["-c", "import sys; sys.path.insert(0, sys.argv[1]); import introspect", str(INTROSPECT.parent)], {}),
        (["SCRIPT"], {"stdin": subprocess.DEVNULL, "env": {"PYTHONUNBUFFERED": "1", "LONG": "x" * 5000}}),
    ],
    ids=["script", "unbuffered, in a session of its own", "module", "code", "no input"],
)
def test_a_process_finds_what_it_finds_when_it_is_executed(
    words: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    command = [sys.executable, *(word.replace("SCRIPT", str(INTROSPECT)) for word in words)]

    def introspect() -> dict[str, Any]:
        done = run(*command, cwd=tmp_path, **options)
        assert done.returncode == 0, done
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    forked, executed = both(introspect)
    assert forked.pop("is forked") and not executed.pop("is forked")
    for name, value in executed.items():
        assert forked[name] == value, name
    assert forked["parent"] == os.getpid()
    assert forked["torch"] == []


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "import sys; sys.exit(7)",
        "import sys; sys.exit('what went wrong')",
        "raise SystemExit(300)",
        "def f():\n    raise ValueError('x')\nf()",
        "raise KeyboardInterrupt",
        "import sys; sys.excepthook = lambda *what: print('mine', what[0].__name__); 1 / 0",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "import os; os.write(1, b'raw'); print('buffered', end='')",
        "import os; os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "class A:\n    def __del__(self): print('gone')\na = A()",
        "import sys; print(input())",
        "if",
    ],
)
def test_it_ends_as_one_that_was_executed(code: str) -> None:
    forked, executed = both(lambda: python(code, stdin=subprocess.DEVNULL))
    assert forked == executed


def test_what_cannot_be_opened_is_said_alike(tmp_path: Path) -> None:
    def start() -> tuple[int, str, str]:
        done = run(sys.executable, "none.py", cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    forked, executed = both(start)
    assert forked == executed and forked[0] == 2


def test_torch_is_whole_and_reads_its_environment_anew() -> None:
    code = """
import sys
assert "torch" not in sys.modules and "forkserver" in str(sys.meta_path)
import torch, torch.distributed as dist
assert torch.tensor([1.0, 2.0]).sum() == 3 and sys.modules["torch"] is torch and dist.is_available()
assert dist.get_debug_level() == dist.DebugLevel.DETAIL
"""
    assert python(code, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) == (0, "", "")


def test_a_finder_meets_modules_in_their_order_and_what_it_changes_is_handed_on() -> None:
    """As guardrun's hooks do: whoever took a name from a changed module has the changed one."""
    code = """
import sys
seen = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in ("torch.serialization", "torch"):
            return None
        seen.append(name)
        spec = next(spec for one in sys.meta_path if one is not self and (spec := one.find_spec(name, path, target)))
        execute = spec.loader.exec_module
        def exec_module(module):
            del spec.loader.exec_module
            execute(module)
            seen.append(name)
            if name == "torch.serialization":
                module.save = len
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
import torch
print(seen, torch.save, torch.serialization.save is torch.save)
"""
    forked, executed = both(lambda: python(code))
    assert forked == executed
    assert forked[1].startswith("['torch', 'torch.serialization', 'torch.serialization', 'torch'] <built-in")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(signum: signal.Signals) -> None:
    def start() -> int:
        # Python sleeps on where SIGINT comes between its last look at signals and the sleep: so each is a short one.
        code = "import time; print(flush=True); [time.sleep(0.05) for _ in range(1200)]"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signum)
            return process.wait(60)

    forked, executed = both(start)
    assert forked == executed == -signum


def test_what_a_fork_cannot_stand_in_for_is_executed() -> None:
    """Flags and variables that are read when an interpreter or a library starts."""
    code = "import sys, time; print('tests.support.forkserver' in str(sys.meta_path), sys.flags.isolated)"
    assert run(sys.executable, "-c", code).stdout == "True 0\n"
    assert run(sys.executable, "-I", "-c", code).stdout == "False 1\n"
    assert run(sys.executable, "-c", code, env={"OMP_NUM_THREADS": "2"}).stdout == "False 0\n"
    assert run(sys.executable, "-c", code, env={"PYTHONHASHSEED": "1"}).stdout == "False 0\n"


@pytest.mark.cold
def test_one_that_is_marked_cold_is_executed() -> None:
    assert python("import sys; print('forkserver' in str(sys.meta_path))") == (0, "False\n", "")


def test_where_the_kernel_cannot_show_it_everything_is_executed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from tests.support.forkserver import process; print(process.can_show()); "
        "process.PR_SET_MM_MAP = 4321; print(process.can_show())"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout == "True\nFalse\n"
    monkeypatch.setattr(client, "_is_unable", False)
    monkeypatch.setattr(client, "get_server", lambda: SimpleNamespace(fork=lambda asked, descriptors: program.UNABLE))
    for _ in range(2):
        assert python("import sys; print('forkserver' in str(sys.meta_path))") == (0, "False\n", "")
    assert client._is_unable and capfd.readouterr().err.count(client.UNABLE_WORDS) == 1


def test_descriptors_that_are_not_given_are_closed_there() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        code = f"import os\ntry: os.fstat({writer})\nexcept OSError: print('closed')"
        assert python(code) == (0, "closed\n", "")
    finally:
        os.close(reader)
        os.close(writer)


def test_its_end_is_this_process_s_to_take_and_its_parent_is_this_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = read_process(process.pid)
        assert found is not None and found.ppid == os.getpid()
        assert found.command == f"{sys.executable} -c import time; time.sleep(60)"
    finally:
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_the_c_library_knows_the_number_of_its_thread() -> None:
    """It keeps that since it forked, or was told so: a mutex whose owner has another's number is never free."""
    code = (
        "import ctypes, os\nwhere = ctypes.c_void_p()\nctypes.CDLL(None).prctl(40, ctypes.byref(where), 0, 0, 0)\n"
        "print(ctypes.c_int.from_address(where.value).value == os.getpid())"
    )
    assert python(code) == (0, "True\n", "")


SMALL_SERVER = """
import sys
sys.path[0] = {root!r}
from tests.support.forkserver import server
server.PATH, server.import_all = sys.path[1:], lambda *what: None
server.RECORDER.begin()
server.main()
"""


def test_where_the_server_was_ended_another_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Servers of this test's own, which have imported nothing: this process's would take seconds to start again."""
    (tmp_path / "server.py").write_text(SMALL_SERVER.format(root=str(ROOT)))
    monkeypatch.setattr(client, "SERVER", tmp_path / "server.py")
    monkeypatch.setattr(client, "_servers", {})
    first = client.get_server()
    first._process.kill()
    wait_until(lambda: not first.is_alive, 10, "the server's end")
    code = "import sys; print('forkserver' in str(sys.meta_path), 'torch' in sys.modules)"
    try:
        assert python(code) == (0, "True False\n", "")
        assert client.get_server() is not first
    finally:
        client.get_server().close()


WORKER = """
import os, subprocess, sys, time
sys.path.insert(0, {root!r})
from tests.support.processes import become_subreaper, own_children
from tests.support.forkserver import client
become_subreaper()
before = [child.pid for child in own_children()]
client.install()
code = "import os, sys; print(os.getppid(), 'Stash' in str(sys.meta_path), 'TEST_FORK_SERVER' in os.environ)"
said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
print(said == [str(os.getpid()), "True", "False"])
print(before == [client.get_server()._process.pid])
print(sorted(os.listdir("/proc/self/fd"))[:3], "torch" in sys.modules, os.getcwd())
began_s = time.process_time()
import guardrun, torch
print(time.process_time() - began_s < 0.5, type(guardrun.__spec__.loader).__name__)
sys.stdout.flush()
client.get_server().close()
print(own_children())
"""


def test_a_worker_has_a_server_of_its_own_and_imports_torch_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children are forked there without anything having been imported once more, and are its own."""
    monkeypatch.setattr(subprocess.Popen, "_execute_child", client._execute)
    monkeypatch.chdir(tmp_path)
    client.install_for_workers()
    command = [sys.executable, "-u", "-c", popen_bootstrapline]
    text = repr(WORKER.format(root=str(ROOT))) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *("True", "True", f"['0', '1', '2'] False {tmp_path}"),
        *("True SourceFileLoader", "[]"),
    ]


FORKS_BESIDE_LOOKUPS = """
import os, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from tests.support.forkserver.server import fork_beside_threads
def look_up():
    while True:
        socket.getaddrinfo("localhost", None)
for _ in range(8):
    threading.Thread(target=look_up, daemon=True).start()
for _ in range(150):
    pid = fork_beside_threads()
    if pid == 0:
        socket.getaddrinfo("localhost", None)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_no_child_waits_for_a_lock_of_a_thread_that_it_does_not_have() -> None:
    """Of forks beside threads that look up names, some one in a hundred has the resolver's lock, and nobody in it."""
    with client.executed():
        assert python(FORKS_BESIDE_LOOKUPS, str(ROOT)) == (0, "", "")


def test_a_fork_costs_a_tenth_of_a_start() -> None:
    """In CPU seconds, which others' load does not change."""

    def start() -> float:
        before = sum(os.times()[2:4])
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return sum(os.times()[2:4]) - before

    client.get_server()
    python("pass")
    forked, executed = both(lambda: min(start() for _ in range(1 if client.cold else 3)))
    assert forked < executed / 4, (forked, executed)


def test_time_is_not_faked() -> None:
    """A process begins when it is forked, not when its server did."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = read_process(process.pid)
        assert found is not None
        assert found.start / os.sysconf("SC_CLK_TCK") >= began - 0.1
    finally:
        process.kill()
        process.wait(60)


def test_a_module_that_was_asked_of_its_package_is_imported() -> None:
    """Its package has it already, in the server."""
    code = """
import sys, torch.distributed
try:
    torch.distributed.checkpoint.state_dict_saver
except AttributeError as error:
    print(error)
from torch.distributed.checkpoint import state_dict_saver
print(sys.modules["torch.distributed.checkpoint.state_dict_saver"] is state_dict_saver)
from torch._dynamo import code_context
print(type(code_context).__name__)
"""
    forked, executed = both(lambda: python(code))
    assert forked == executed


def test_what_torch_sets_by_itself_has_nothing_executed_that_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's inductor puts its folder into the environment of whoever compiles, a test's process as well."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")
    environment = {**client.server_environment(), "TORCHINDUCTOR_CACHE_DIR": "/nowhere"}
    assert client.can_fork([sys.executable, "-c", "pass"], environment)
    assert not client.can_fork([sys.executable, "-c", "pass"], {**environment, "MALLOC_ARENA_MAX": "1"})
