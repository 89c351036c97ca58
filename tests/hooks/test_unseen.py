"""A script sees nothing of the hooks: everything is as under plain Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import Hello
from tests.hooks.bed import INJECT, Bed, finish, run_plain

DUMP = '''"""Says all that a script can see of how it was started."""
import json, os, signal, sys, threading, warnings
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "env": dict(os.environ), "cwd": os.getcwd(),
    "main": {name: repr(getattr(main, name, None)) for name in ("__name__", "__file__", "__package__", "__doc__")},
    "spec": getattr(getattr(main, "__spec__", None), "name", None),
    "threads": [thread.name for thread in threading.enumerate()], "main_thread": threading.main_thread().name,
    "handlers": {int(n): repr(signal.getsignal(n)) for n in (1, 2, 10, 12, 13, 15)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "flags": list(sys.flags), "warnings": [repr(entry) for entry in warnings.filters],
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
}, indent=1, sort_keys=True))
'''


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(DUMP)
    (tmp_path / "package" / "dump.py").write_text("from . import __name__ as package\n" + DUMP)
    (tmp_path / "dump.py").write_text(DUMP)
    return tmp_path


def _base(pythonpath: str | None) -> dict[str, str]:
    env = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    env.pop("PYTHONPATH", None)
    if pythonpath is not None:
        env["PYTHONPATH"] = pythonpath
    return env


@pytest.mark.parametrize(
    "command",
    [["dump.py", "--flag", "a b"], ["-m", "package.dump", "x"], ["-m", "package"], ["package"], ["-c", DUMP, "y"]],
    ids=lambda command: " ".join(command[:2])[:20],
)
@pytest.mark.parametrize("pythonpath", [None, "", "relative", "/nowhere:/nowhere/else", ":x:"])
def test_a_script_sees_what_plain_python_shows(
    bed: Bed, scripts: Path, command: list[str], pythonpath: str | None
) -> None:
    base = _base(pythonpath)
    plain = run_plain(command, base, cwd=scripts)
    hooked = finish(bed.start(command, env=bed.environment(base=base), cwd=scripts))
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert bed.board().read()[1] != 0, "the hooks were not active, so nothing was shown"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def f():\n    raise ValueError('wrong')\nf()\n", 1),
        ("import sys; sys.exit('bye')", 1),
        ("raise SystemExit(7)", 7),
        ("x = = 1", 1),
        ("import nowhere_to_be_found", 1),
        ("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('second') from e", 1),
        ("raise KeyboardInterrupt", -2),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", 1),
        ("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()", 0),
    ],
)
def test_tracebacks_and_exit_status_stay(bed: Bed, tmp_path: Path, source: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    plain = run_plain([str(script)], _base(None))
    hooked = finish(bed.start([str(script)], env=bed.environment(base=_base(None))))
    assert hooked.returncode == plain.returncode == status
    assert hooked.stdout == plain.stdout
    assert _without_addresses(hooked.stderr) == _without_addresses(plain.stderr)


def _without_addresses(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "Exception in thread" not in line)


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.real_ran = True",
        "raise RuntimeError('broken sitecustomize')",
        "import nowhere_to_be_found",
        "raise ImportError('odd', name='sitecustomize')",
    ],
)
def test_a_shadowed_sitecustomize_runs(bed: Bed, tmp_path: Path, source: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(source)
    code = "import sys; print(getattr(sys, 'real_ran', 0), sys.modules.get('sitecustomize'), sys.path)"
    base = _base(str(tmp_path))
    plain = run_plain(["-c", code], base)
    hooked = finish(bed.start(["-c", code], env=bed.environment(base=base)))
    assert (hooked.stdout, hooked.stderr) == (plain.stdout, plain.stderr)
    assert bed.board().read()[1] != 0


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_switch_sitecustomize_off_mean_no_hooks(bed: Bed, flag: str) -> None:
    done = finish(bed.start([flag, "-c", "print('trained')"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert bed.board().read()[1] == 0


def test_a_process_that_is_no_rank_is_left_alone(bed: Bed) -> None:
    env = dict(_base(None), PYTHONPATH=str(INJECT))
    done = run_plain(["-c", "import sys; print('guardrun' in sys.modules, any('inject' in p for p in sys.path))"], env)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_hooks_are_found_where_the_interpreter_does_not_know_guardrun(bed: Bed, tmp_path: Path) -> None:
    """A rank's Python may be another one: only what lies beside sitecustomize can be counted on."""
    site = tmp_path / "site"
    (site / "guardrun").mkdir(parents=True)
    (site / "guardrun" / "__init__.py").touch()
    shutil.copytree(INJECT.parent, site / "guardrun" / "hooks", symlinks=False)
    env = bed.environment(base=_base(None))
    env["PYTHONPATH"] = str(site / "guardrun" / "hooks" / "inject")
    code = "import sys; print([p for p in sys.path if p.startswith(sys.argv[1])])"
    bare = _bare_interpreter(tmp_path)
    bed.make_board()
    done = finish(bed.start(["-c", code, str(site)], env=env, program=bare))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    assert bed.board().read()[1] != 0, done.stderr


def _bare_interpreter(tmp_path: Path) -> str:
    """A virtual environment with nothing in it."""
    import venv

    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.mark.parametrize(
    "settings",
    ["", "{", "[]", "null", "{}", '{"pythonpath": null}', '{"pythonpath": null, "sockets": 3, "attempt": 0}'],
)
def test_malformed_settings_are_said_once_and_training_goes_on(settings: str) -> None:
    env = dict(_base(None), GUARDRUN_HOOKS=settings, PYTHONPATH=str(INJECT))
    done = run_plain(["-c", "import os; print('trained', os.environ.get('GUARDRUN_HOOKS'))"], env)
    assert (done.returncode, done.stdout) == (0, "trained None\n")
    assert done.stderr.startswith("guardrun: hooks") and done.stderr.count("\n") == 1


def test_a_broken_board_is_reported_and_training_goes_on(bed: Bed) -> None:
    (bed.sockets / "board-0-0").write_bytes(b"short")
    done = bed.run("import time; time.sleep(0.6); print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    from guardrun.hooks.wire.messages import HookFailed

    assert bed.wait_for(HookFailed).hook == "board"
    assert bed.wait_for(Hello).argv == ["-c"]


@pytest.mark.parametrize("duration", ["0", "0.5"])
def test_a_missing_socket_folder_costs_one_line(bed: Bed, duration: str) -> None:
    shutil.rmtree(bed.sockets)
    done = bed.run(f"import time; time.sleep({duration}); print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith("guardrun: hooks: ") and done.stderr.count("\n") == 1


def test_a_file_of_the_script_that_is_named_like_our_libraries_is_not_imported(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("print('imported the wrong one')")
    (tmp_path / "train.py").write_text("import time; time.sleep(0.6); print('trained')")
    done = finish(bed.start([str(tmp_path / "train.py")]))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1 and "msgspec.py hides" in done.stderr
