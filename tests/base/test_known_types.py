from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.supervisor.base.known_types import known_type

ROOT = Path(__file__).parents[2]
PROCESSES = ("supervisor", "launcher", "slurm", "systemd")
WITH_TYPES = ("msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.json.Decoder", "msgspec.msgpack.Decoder")
CONVERT = "msgspec.convert"

FIRST_AT_ONCE = """
import sys, threading, types
import msgspec
from guardrun.supervisor.base.known_types import known_type
sys.setswitchinterval(1e-6)
for number in range(60):
    module = types.ModuleType(f"structs{number}")
    sys.modules[module.__name__] = module
    code = "import msgspec\\nclass A0(msgspec.Struct, tag=True): a: int = 0\\n"
    for n in range(1, 12):
        code += f"class A{n}(msgspec.Struct, tag=True):\\n    a: list[A{n - 1}] = []\\n    b: 'A{n} | None' = None\\n"
    exec(code, module.__dict__)
    barrier = threading.Barrier(4)
    done = []
    def decode(kind=module.A11):
        barrier.wait()
        done.append(msgspec.json.decode(b'{"type": "A11", "a": [{"type": "A10"}]}', type=known_type(kind)))
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(done) == 4
"""

FORKED_MEANWHILE = """
import os, signal, threading
import msgspec
from guardrun.supervisor.base.known_types import known_type
first, begun, may_end = msgspec.json.Decoder, threading.Event(), threading.Event()
class Slow:
    def __init__(self, kind):
        begun.set()
        may_end.wait(1.0)
        first(kind)
msgspec.json.Decoder = Slow
thread = threading.Thread(target=known_type, args=(list[int],))
thread.start()
begun.wait()
msgspec.json.Decoder = first
child = os.fork()
if child == 0:
    signal.alarm(20)
    known_type(dict[str, int])
    os._exit(7)
may_end.set()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
known_type(set[int])
thread.join()
"""


def test_threads_that_meet_a_type_for_the_first_time_at_once_all_decode_it() -> None:
    run = [sys.executable, "-c", FIRST_AT_ONCE]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_is_forked_meanwhile_waits_for_nobody() -> None:
    run = [sys.executable, "-c", FORKED_MEANWHILE]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [int | None, list[int], dict[str, int]])
def test_types_of_all_sorts_are_answered_as_they_are(kind: object) -> None:
    assert known_type(kind) is kind


def test_all_that_is_decoded_in_processes_with_threads_goes_through_it() -> None:
    """But for the engine, which imports nothing of the supervisor's: its state is decoded before there are threads."""
    others = []
    for path in (path for folder in PROCESSES for path in (ROOT / folder).rglob("*.py")):
        if path.is_relative_to(ROOT / "supervisor" / "engine"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (*WITH_TYPES, CONVERT):
                continue
            name = ast.unparse(node.func)
            given = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
            given += node.args[:1] if name.endswith("Decoder") else node.args[1:2] if name == CONVERT else []
            if any(not ast.unparse(kind).startswith("known_type(") for kind in given):
                others.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert [place for place in others if "known_types.py" not in place] == []
