"""`py-spy record` on real processes, and what is made of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import decompress

import pytest

from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks import flame_samples as module
from guardrun.supervisor.collect.ranks import stack_dumps
from guardrun.supervisor.collect.ranks.flame_samples import Recording, Samples, count_stacks, pack
from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.stack_dumps import GONE
from tests.support.waiting import wait_until

CODE = """
import threading, time
def wait_here(): time.sleep(600)
def compute_here():
    while True: sum(range(1000))
threading.Thread(target=wait_here, name="waiter", daemon=True).start()
print("up", flush=True)
compute_here()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield process
        process.kill()


def record(pid: int, folder: Path, *, native: bool = False) -> Samples:
    recording = Recording(pid, folder / "x.raw", seconds=1, rate=20, native=native)
    try:
        wait_until(lambda: recording.poll() is not None, 60, "py-spy's end")
        return recording.read()
    finally:
        recording.end()
        assert list(folder.iterdir()) == []


def of_thread(samples: Samples, name: str) -> Counter[str]:
    return Counter({stack: n for stack, n in samples.stacks.items() if stack.split(";")[0].endswith(f": {name}")})


@pytest.mark.real("py-spy")
def test_computing_and_waiting_threads_are_sampled(process: subprocess.Popen[str], tmp_path: Path) -> None:
    before = PAUSES.count(process.pid)
    samples = record(process.pid, tmp_path)
    main, waiter = of_thread(samples, "MainThread"), of_thread(samples, "waiter")
    assert sum(main.values()) >= 5 and sum(waiter.values()) >= 5
    assert sum("compute_here (<string>:" in stack for stack in main) == len(main)
    assert all(stack.endswith("wait_here (<string>:3)") for stack in waiter)
    assert samples.taken >= sum(samples.stacks.values()) - samples.errors
    assert PAUSES.count(process.pid) == before, "it was not to be paused"


@pytest.mark.real("py-spy")
def test_a_stopped_process_is_sampled_as_it_stands(process: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(process.pid)) is not None and stat.state == "T", 20, "the stop")
    assert len(of_thread(record(process.pid, tmp_path), "MainThread")) == 1
    stat = read_stat(process.pid)
    assert stat is not None and stat.state == "T"


@pytest.mark.real("py-spy")
def test_native_frames_and_who_is_told_of_the_pauses(process: subprocess.Popen[str], tmp_path: Path) -> None:
    before = PAUSES.count(process.pid)
    samples = record(process.pid, tmp_path, native=True)
    assert PAUSES.count(process.pid) == before + 2
    assert any("libc.so" in stack or "python" in stack.rpartition(";")[2] for stack in of_thread(samples, "waiter"))


@pytest.mark.real("py-spy")
def test_it_ends_with_the_process(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """Whatever had been seen by then: some samples, or why there are none."""
    recording = Recording(process.pid, tmp_path / "x.raw", seconds=600, rate=100, native=False)
    try:
        process.kill()
        process.wait()
        wait_until(lambda: recording.poll() is not None, 60, "py-spy's end")
        with suppress(ValueError):
            assert recording.read().stacks
    finally:
        recording.end()


@pytest.mark.real("py-spy")
def test_a_process_that_is_gone_and_one_that_is_no_python(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            with pytest.raises(ValueError, match="no Python interpreter found"):
                record(sleeper.pid, tmp_path)
        finally:
            sleeper.kill()
    with pytest.raises(ValueError, match=GONE):
        record(sleeper.pid, tmp_path)


@pytest.mark.real("py-spy")
def test_one_that_is_ended_early_is_gone_with_its_files(process: subprocess.Popen[str], tmp_path: Path) -> None:
    recording = Recording(process.pid, tmp_path / "x.raw", seconds=100, rate=5, native=True)
    assert PAUSES.count(process.pid) % 2 == 1
    recording.end()
    assert PAUSES.count(process.pid) % 2 == 0 and list(tmp_path.iterdir()) == []
    stat = read_stat(process.pid)
    assert stat is not None and stat.state not in "tT", "it was let go of"


def test_without_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_pyspy", lambda: "")
    with pytest.raises(OSError, match="py-spy is not installed"):
        Recording(os.getpid(), tmp_path / "x.raw", seconds=1, rate=1, native=False)
    assert list(tmp_path.iterdir()) == []


def program(folder: Path, text: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable} -S\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("place", ["sys.argv[sys.argv.index('--output') + 1]", "2"])
def test_one_that_writes_without_end_is_stopped(
    place: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output lies where the boards of ranks do: where that is memory, a full one ends them."""
    code = f"import sys\nwith open({place}, 'wb') as file:\n    while True: file.write(bytes(1 << 16))\n"
    path = program(tmp_path_factory.mktemp("program"), code)
    monkeypatch.setattr(module, "find_pyspy", lambda: path)
    monkeypatch.setattr(module, "MAX_RAW_BYTES", 2 << 20)
    recording = Recording(os.getpid(), tmp_path / "x.raw", seconds=1, rate=1, native=False)
    wait_until(lambda: recording.poll() is not None, 60, "its end")
    assert max(one.stat().st_size for one in tmp_path.iterdir()) <= 2 << 20
    with pytest.raises(ValueError, match="py-spy"):
        recording.read()
    recording.end()


@pytest.mark.real("py-spy")
def test_one_that_cannot_be_killed_is_not_waited_for(
    process: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a target whose memory map is held: it ends when the kernel lets it."""
    recording = Recording(process.pid, tmp_path / "x.raw", seconds=600, rate=1, native=False)
    spy, is_let_go = recording._process, threading.Event()
    kill = spy.kill
    monkeypatch.setattr(spy, "kill", is_let_go.set)
    recording.end()
    assert is_let_go.is_set() and spy.poll() is None and list(tmp_path.iterdir()) == []
    kill()
    wait_until(lambda: stack_dumps._reap() or spy.returncode is not None, 20, "it is reaped")


def test_lines_are_added_up_and_what_is_none_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"a;b c 2\n", b"a;b c 3\n", b"\n", b"a;b\n", b"a;b -1\n", b"\xff 1", b"9\n"]
    assert count_stacks(lines) == {"a;b c": 5, "\ufffd": 1}
    monkeypatch.setattr(module, "MAX_RAW_BYTES", 10)
    assert count_stacks(lines) == {"a;b c": 2}


def test_the_rarest_stacks_are_left_out_where_there_is_no_room() -> None:
    stacks = Counter({os.urandom(20).hex(): n for n in range(1, 1001)})
    packed, left_out = pack(stacks)
    assert left_out == 0 and len(decompress(b64decode(packed)).splitlines()) == 1000
    packed, left_out = pack(stacks, 8000)
    kept = [int(line.rpartition(b" ")[2]) for line in decompress(b64decode(packed)).splitlines()]
    assert len(packed) <= 8000 and kept == list(range(1000, 1000 - len(kept), -1)) and len(kept) > 100
    assert left_out == sum(stacks.values()) - sum(kept)
    assert pack(stacks, 5)[1] == sum(stacks.values())
