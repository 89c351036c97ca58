"""Runs some tests with the lowest versions that pyproject.toml allows: a bound that is too low fails here.

`make test-lowest`. What the package needs at run time has exactly its lower bound's version, all else that of
constraints.txt: for every package of the first kind there are tests that use it (USES). All of it is executed, as the
fork server stands on more than the package asks for.

torch is the exception: of its lowest version the usual index has builds of several gigabytes only, so it is the one
that all tests run with (--torch names another). Where there is an older Python than the one that has torch, the
supervisor's tests, which need none, run with that one as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".lowest"

# Which tests use what: each package of the run time is here.
USES = {
    "torch": (
        "tests/project/test_cold_starts.py::test_guardrun_and_a_script_with_torch",
        "tests/project/test_cold_starts.py::test_a_program_that_is_no_python_and_falls_and_is_started_again",
        "tests/project/test_cold_starts.py::test_torchrun_s_own_agent",
        "tests/project/test_cold_starts.py::test_two_launchers_that_meet",
        "tests/runs/resuming/test_restart.py::test_a_step_that_stops_the_run_every_time_ends_it_as_poison",
        "tests/launcher/test_run.py::test_environment_arguments_and_logs_are_torchruns",
        "tests/torchrun/test_failures.py::test_restarts_run_out",
        "tests/launcher",
    ),
    "psutil": ("tests/preflight/test_full.py",),
    "nvidia-ml-py": ("tests/sensors/test_gpu_sensor.py",),
    "py-spy": ("tests/collect/ranks/test_stacks.py", "tests/collect/ranks/test_own_stacks.py"),
    "pyzmq": (
        "tests/fleet/transport/test_channel.py",
        "tests/agent/test_agent.py",
        "tests/agent/clients/test_clients.py",
    ),
    "msgspec": ("tests/engine", "tests/rundir/test_journal.py", "tests/agent/clients/test_feed.py"),
    "structlog": ("tests/base/test_log.py",),
    "rich": ("tests/cli/test_output.py",),
    "jinja2": ("tests/report/test_report.py", "tests/report/test_drawings.py"),
    "prometheus-client": ("tests/agent/test_metrics.py",),
    "tomli": ("tests/config",),
}
# Of these, what runs guardrun itself, or computes: only with torch.
NEEDS_TORCH = (*USES["torch"], "tests/agent/test_metrics.py::test_a_real_run_serves_its_own", *USES["psutil"])


def dependencies(pyproject: str) -> list[Requirement]:
    """What the package asks for at run time."""
    return [Requirement(line) for line in tomllib.loads(pyproject)["project"]["dependencies"]]


def lowest(wanted: list[Requirement], python: str) -> dict[str, Version]:
    """The lowest version of each package that is asked for under a Python ("3.11").

    Raises ValueError where a package has no lower bound, or one that is not its first version by name (`>=12`, where
    there is no 12): what is told here is what is installed.
    """
    found: dict[str, Version] = {}
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate({"python_version": python}):
            continue
        bounds = [clause.version for clause in one.specifier if clause.operator == ">="]
        if len(bounds) != 1:
            raise ValueError(f"{one}: one lower bound (>=) is wanted")
        found[canonicalize_name(one.name)] = Version(bounds[0])
    return found


def others(constraints: str, wanted: dict[str, Version]) -> str:
    """The development pins, without those of what is asked for."""
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    return "".join(f"{line}\n" for line in lines if canonicalize_name(line.partition("==")[0]) not in wanted)


def version_of(python: str) -> str | None:
    """ "3.11" of an interpreter that can make environments; None where there is none by that name."""
    asks = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", asks], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def find_older(name: str) -> str:
    """The interpreter that is meant by a name such as python3.10: on the PATH, or among those that pyenv keeps."""
    if version_of(name) is None and (pyenv := shutil.which("pyenv")) is not None:
        done = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=60, check=False)
        number = name.removeprefix("python")
        for found in Path(done.stdout.strip()).glob(f"versions/{number}.*/bin/python"):
            return str(found)
    return name


def pip(environment: Path, *arguments: str) -> None:
    command = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*command, "--no-compile", *arguments], cwd=ROOT, check=True)


def set_up(python: str, version: str, torch: str) -> Path:
    """An environment with the lowest versions, made anew when anything that is asked for has changed.

    torch: its version, or "" for none. Raises CalledProcessError where pip finds no such versions: a bound that there
    is no version of is a wrong one.
    """
    environment = FOLDER / version
    exact = lowest(dependencies((ROOT / "pyproject.toml").read_text()), version)
    pins = others((ROOT / "constraints.txt").read_text(), exact)
    exact.pop("torch")
    wanted = [f"{name}=={number}" for name, number in exact.items()]
    digest = hashlib.sha256(json.dumps([python, torch, wanted, pins]).encode()).hexdigest()
    stamp = environment / "stamp"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        (environment / "pins.txt").write_text(pins)
        constrained = ["-c", str(environment / "pins.txt")]
        # Its own test tools come by name: an extra of the package would bring torch where there is to be none.
        tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
        pip(
            environment,
            *constrained,
            *wanted,
            *tools,
            "hatchling",
            "editables",
            *([f"torch=={torch}", "numpy"] if torch else []),  # without which importing torch warns
        )
        pip(environment, "--no-deps", "--no-build-isolation", "-e", ".")
        stamp.write_text(digest)
    check(environment, exact)
    return environment


def check(environment: Path, exact: dict[str, Version]) -> None:
    """Raises SystemExit where an environment has another version of anything than the lowest."""
    asks = "import json, sys, importlib.metadata as m; print(json.dumps([m.version(name) for name in sys.argv[1:]]))"
    command = [str(environment / "bin" / "python"), "-c", asks, *exact]
    there = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wrong = [
        f"{name} {has}, not {exact[name]}"
        for name, has in zip(exact, there, strict=True)
        if Version(has) != exact[name]
    ]
    if wrong:
        raise SystemExit(f"{environment} has {', '.join(wrong)}")


def tests(has_torch: bool) -> list[str]:
    """pytest's arguments: the tests to be run."""
    if has_torch:
        return list(dict.fromkeys(test for uses in USES.values() for test in uses))
    files = [test for uses in USES.values() for test in uses if test not in NEEDS_TORCH]
    return [*files, *(f"--deselect={test}" for test in NEEDS_TORCH)]


def run(environment: Path, workers: str, has_torch: bool) -> int:
    """The tests' exit status. They find their programs (guardrun, py-spy) where their own interpreter is."""
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers]
    variables = {**os.environ, "PATH": path, "TEST_COLD": "1"}
    return subprocess.run([*command, *tests(has_torch)], cwd=ROOT, env=variables, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", required=True, metavar="VERSION", help="which torch is installed")
    parser.add_argument("--python", default=sys.executable, help="which Python has torch (default: this one)")
    parser.add_argument("--older", default="python3.10", metavar="PYTHON", help="the lowest Python, without torch")
    parser.add_argument("--workers", default="4")
    options = parser.parse_args()
    version = version_of(options.python)
    if version is None:
        parser.error(f"{options.python}: no Python with its venv module")
    chosen = [(options.python, version, options.torch)]
    older = find_older(options.older)
    number = version_of(older)
    if number is not None and number != version:
        chosen.append((older, number, ""))
    status = 0
    for python, number, torch in chosen:
        environment = set_up(python, number, torch)
        print(f"Python {number}, {f'torch {torch}' if torch else 'no torch'}, all else at its lower bound", flush=True)
        status = run(environment, options.workers, bool(torch)) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
