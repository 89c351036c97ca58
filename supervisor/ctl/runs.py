"""Finding a run: by id, by folder, or the latest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from guardrun.supervisor.collect.procfs import read_stat
from guardrun.supervisor.ctl.verb import CtlError
from guardrun.supervisor.rundir import RunFile, list_runs, read_run_file

DEFAULT_DIR = "guardrun-runs"
LATEST = "latest"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LISTED = 8


def guard_dir(flag: str | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """Where runs are kept: --guard-dir, else GUARDRUN_DIR, else ./guardrun-runs."""
    return cwd / (flag or environ.get("GUARDRUN_DIR") or DEFAULT_DIR)


def find_run(name: str, directory: Path, cwd: Path) -> Path:
    """The run's folder. Raises CtlError that names the runs there are."""
    if "/" in name or name in (".", ".."):
        path = cwd / name
        if (path / "run.json").is_file():
            return path.resolve()
        if path.name == LATEST or not path.is_dir():
            raise CtlError(f"no run in {path}: there is no such folder")
        raise CtlError(f"no run in {path}: it has no run.json")
    if (directory / name / "run.json").is_file():
        return (directory / name).resolve()
    runs = list_runs(directory)
    if name == LATEST and runs:
        return runs[0].resolve()
    raise CtlError(_missing(name, directory, runs))


def _missing(name: str, directory: Path, runs: list[Path]) -> str:
    if not directory.is_dir():
        return f"no runs: {directory} does not exist (say where they are with --guard-dir, or GUARDRUN_DIR)"
    if not runs:
        return f"no runs in {directory} (say where they are with --guard-dir, or GUARDRUN_DIR)"
    names = ", ".join(path.name for path in runs[:_LISTED])
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    return f"no run {name} in {directory}; there are: {names}{more}"


def read_run(run_dir: Path) -> RunFile:
    """run.json. Raises CtlError."""
    try:
        return read_run_file(run_dir)
    except OSError as error:
        raise CtlError(f"{run_dir / 'run.json'}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise CtlError(f"{run_dir / 'run.json'}: not a run of this version of guardrun ({error})") from None


def is_alive(run: RunFile, node: str) -> bool | None:
    """Whether the run's launcher lives; None where that can't be seen from here (another node)."""
    if run.node != node:
        return None
    try:
        boot_id = BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    if run.boot_id and boot_id and run.boot_id != boot_id:
        return False
    stat = read_stat(run.launcher_pid)
    return stat is not None and stat.state not in "ZX" and stat.start == run.launcher_start
