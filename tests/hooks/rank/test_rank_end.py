"""How a rank's end is told: the exception, by message and by files, and the end of its main code."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.messages import Ended, Hello, UncaughtException
from tests.hooks.bed import Bed, finish

SETTLE = "import time; time.sleep(0.5)\n"
"""Mostly long enough for the hooks' thread to have said hello; nothing that is shown here depends on it."""

REPLACED = SETTLE + "import sys\nsys.excepthook = lambda *_: print('own hook')\n"


def _read_raised(bed: Bed) -> UncaughtException:
    return msgspec.json.decode((bed.sockets / "raised-0-0.json").read_bytes(), type=UncaughtException)


@pytest.mark.parametrize("before", ["", SETTLE], ids=["at once", "later"])
def test_an_exception_is_left_as_a_file_and_sent(bed: Bed, tmp_path: Path, before: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(before + "def f():\n    raise ValueError('wrong \\udcff')\nf()\n")
    done = finish(bed.start([str(script)]))
    raised = _read_raised(bed)
    assert bed.wait_for(UncaughtException) == raised
    lines = before.count("\n")
    assert raised.frames == [(str(script), "<module>", lines + 3), (str(script), "f", lines + 2)]
    assert (raised.error, raised.message) == ("ValueError", "wrong \\udcff")
    assert raised.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert (done.returncode, raised.global_rank, raised.attempt) == (1, 0, 0)


def test_errors_of_modules_have_their_qualified_name(bed: Bed) -> None:
    bed.run("import json; json.loads('{')")
    assert _read_raised(bed).error == "json.decoder.JSONDecodeError"


def test_a_syntax_error_names_its_line(bed: Bed, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nx = = 1\n")
    finish(bed.start([str(script)]))
    assert _read_raised(bed).frames == [(str(script), "<module>", 2)]


def test_texts_and_frames_are_bounded(bed: Bed) -> None:
    code = "def f(n):\n    if n == 0: raise ValueError('x' * 10**6)\n    f(n - 1)\nf(900)"
    bed.run(SETTLE + code)
    raised = bed.wait_for(UncaughtException)
    assert len(raised.frames) == 100
    assert len(raised.message) == 32 * 1024


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os._exit(3)", ""])
def test_ends_that_are_no_errors_leave_no_error(bed: Bed, tmp_path: Path, code: str) -> None:
    bed.run(SETTLE + code, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert not (bed.sockets / "raised-0-0.json").exists()
    assert not (tmp_path / "error.json").exists()
    assert bed.hear_all(UncaughtException) == []


def test_an_exception_is_found_where_the_script_has_its_own_excepthook(bed: Bed) -> None:
    done = bed.run(REPLACED + "1/0")
    assert (done.stdout, done.stderr) == ("own hook\n", "")
    assert _read_raised(bed).error == "ZeroDivisionError"
    assert bed.wait_for(UncaughtException)


def test_a_hook_that_calls_ours_reports_once(bed: Bed) -> None:
    chain = "import sys; before = sys.excepthook\ndef hook(*a): before(*a)\nsys.excepthook = hook\n"
    bed.run(SETTLE + chain + "1/0")
    assert len(bed.hear_all(UncaughtException)) == 1


def test_torchrun_s_error_file_gets_the_traceback(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    before = int(time.time())
    bed.run("def f(): raise ValueError('wrong')\nf()", TORCHELASTIC_ERROR_FILE=str(file))
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "ValueError: wrong"
    assert "line 1, in f" in message["extraInfo"]["py_callstack"]
    assert before <= int(message["extraInfo"]["timestamp"]) <= time.time()


def test_an_error_file_that_is_there_stays(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text("written by @record")
    bed.run("1/0", TORCHELASTIC_ERROR_FILE=str(file))
    assert file.read_text() == "written by @record"


def test_an_unwritable_error_file_costs_nothing_else(bed: Bed) -> None:
    done = bed.run("1/0", TORCHELASTIC_ERROR_FILE="/nowhere/error.json")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert _read_raised(bed).error == "ZeroDivisionError"


def test_the_end_is_told_before_threads_are_joined(bed: Bed) -> None:
    code = """
import os, threading, time
threading.Thread(target=time.sleep, args=[600]).start()
while not os.path.exists(os.environ["SIGN"]): time.sleep(0.01)
"""
    sign = bed.sockets / "heard"
    process = bed.start(["-c", code], more={"SIGN": str(sign)})
    bed.wait_for(Hello)
    sign.touch()
    assert bed.wait_for(Ended).pid == process.pid
    assert Milestone.ENDED in bed.milestones()
    heart = bed.board()[Field.HEART_NS]
    bed.wait_until(Field.HEART_NS, lambda value: value > heart)
    assert process.poll() is None


def test_the_exception_is_told_before_an_end_that_hangs(bed: Bed) -> None:
    code = "import atexit, time; atexit.register(time.sleep, 600); time.sleep(0.5); 1/0"
    process = bed.start(["-c", code])
    assert bed.wait_for(UncaughtException).error == "ZeroDivisionError"
    assert bed.wait_for(Ended)
    assert process.poll() is None


def test_a_short_script_ends_without_our_libraries(bed: Bed) -> None:
    """It has ended before its first beat, however long a busy machine takes over it."""
    patch = "from guardrun.hooks.beat import heartbeat\nheartbeat.FIRST_BEAT_NS = 600 * 10**9\n"
    (bed.sockets / "sitecustomize.py").write_text(patch)
    bed.make_board()
    code = "import sys, atexit; atexit.register(lambda: print('msgspec' in sys.modules))"
    environment = bed.environment(base={**os.environ, "PYTHONPATH": str(bed.sockets)})
    done = finish(bed.start(["-c", code], env=environment))
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert Milestone.ENDED in bed.milestones()
    assert bed.hear_all(Hello) == []


def test_a_rank_ends_in_time_without_a_supervisor(bed: Bed) -> None:
    bed.stop_listening()
    began = time.monotonic()
    assert bed.run(SETTLE).returncode == 0
    assert time.monotonic() - began < 60


def test_a_signal_ends_a_rank_as_ever(bed: Bed) -> None:
    process = bed.start(["-c", "import time; time.sleep(600)"])
    bed.wait_for(Hello)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process).returncode == -signal.SIGTERM


def test_the_words_of_an_exit_are_left_with_their_place(bed: Bed, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\ndef main():\n    sys.exit('no \\udcff data')\nmain()\n")
    done = finish(bed.start([str(script)]))
    raised = _read_raised(bed)
    assert (done.returncode, raised.error, raised.frames) == (1, "SystemExit", [(str(script), "main", 3)])
    assert raised.message.startswith("no ")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    sys.exit('never mind')\nexcept SystemExit:\n    sys.exit(1)",
        "sys.exit()",
        "sys.exit('')",
        "try:\n    sys.exit('on the way')\nfinally:\n    raise ValueError('the end')",
    ],
)
def test_only_the_last_words_count(bed: Bed, code: str) -> None:
    finish(bed.start(["-c", f"import sys\n{code}"]))
    if "ValueError" in code:
        assert _read_raised(bed).error == "ValueError"
    else:
        assert not (bed.sockets / "raised-0-0.json").exists()


@pytest.mark.parametrize(
    ("code", "is_error"),
    [
        ("raise KeyboardInterrupt('enough')", True),
        ("def f():\n    raise KeyboardInterrupt\ntry:\n    f()\nexcept KeyboardInterrupt:\n    raise", True),
        ("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)", False),
        (
            "import os, signal, threading\nthreading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "while True:\n    pass",
            False,
        ),
        (
            "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    input()\nexcept KeyboardInterrupt:\n"
            "    raise",
            False,
        ),
    ],
    ids=["raised", "raised and passed on", "a signal asleep", "a signal at work", "a signal passed on"],
)
def test_an_interrupt_is_an_error_only_where_the_script_raises_it(bed: Bed, code: str, is_error: bool) -> None:
    done = finish(bed.start(["-c", code]))
    assert done.returncode in (1, -signal.SIGINT)  # with -c it is the former
    assert (bed.sockets / "raised-0-0.json").exists() is is_error
