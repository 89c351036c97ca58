"""`guardctl node-agent install|status|uninstall`: the node agent as a service of systemd's."""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import guardrun.systemd
from guardrun.supervisor.base.own_files import make_folders, name_group, write_file
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import NO, OK, Call, CtlError, Verb
from guardrun.supervisor.client.agent_client import RefusedError, Unreachable, ask

UNIT = "guardrund.service"
USER = "guardrun"
MARK = "# Written by `guardctl node-agent install`"
"""A file without it is somebody else's, and stays as it is."""
EXEC_START = "ExecStart=/usr/bin/guardrund --node"
SOURCE = Path(guardrun.systemd.__file__).parent
STATE = Path("var/lib/guardrun")
OWN_STATE = ("history.db", "history.db-wal", "history.db-shm", "history.db.spoilt", "jobs.json", "findings.json")
"""What the agent keeps for itself. Quarantine is not among it: that is what people and guardrun know of the node."""
RUNTIME = Path("run/guardrun")
TIMEOUT_S = 90.0


class Piece(NamedTuple):
    """A file to be put into the system."""

    source: str
    target: Path
    """Below --root."""


PIECES = (
    Piece("guardrun.sysusers.conf", Path("etc/sysusers.d/guardrun.conf")),
    Piece("guardrun.tmpfiles.conf", Path("etc/tmpfiles.d/guardrun.conf")),
    Piece("guardrund.service", Path("etc/systemd/system") / UNIT),
)


class _System:
    """The system that is changed: the one that runs, or one in a folder; or, dry, none at all."""

    def __init__(self, root: Path, is_dry: bool, out: Output) -> None:
        self.root = root
        self.is_running = root == Path("/")
        self.is_dry = is_dry
        self._out = out
        self.done: list[str] = []

    def note(self, text: str) -> None:
        self.done.append(text)
        if not self._out.is_json:
            self._out.line(f"would: {text}" if self.is_dry else text)

    def write(self, target: Path, text: str) -> None:
        self.note(f"write {target}")
        if not self.is_dry:
            make_folders(target.parent)
            write_file(target, text.encode(), is_exact=True)

    def remove(self, target: Path) -> None:
        if not os.path.lexists(target):
            return
        self.note(f"remove {target}")
        if self.is_dry:
            return
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def run(self, *command: str, may_fail: bool = False) -> None:
        """Run one of systemd's own programs. Raises CtlError with its words where it fails."""
        self.note(" ".join(command))
        if self.is_dry:
            return
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise CtlError(f"no program {command[0]}: is this a machine with systemd?") from None
        except subprocess.TimeoutExpired:
            raise CtlError(f"{' '.join(command)}: no end within {TIMEOUT_S:g} s") from None
        if done.returncode and not may_fail:
            raise CtlError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or done.returncode}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="act", metavar="install|status|uninstall", required=True)
    install = verbs.add_parser("install", help="write the units, enable and start it; again after an upgrade")
    uninstall = verbs.add_parser("uninstall", help="stop it and remove all that install made; training goes on")
    status = verbs.add_parser("status", help="is it there, and how is it doing")
    for own in (install, uninstall, status):
        # As of `guardctl node-agent` itself: it may stand before or after the act.
        own.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")
    for own in (install, uninstall):
        own.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="a system in a folder (an image)")
        own.add_argument("--dry-run", action="store_true", help="say what would be done")
    install.add_argument("--guardrund", type=Path, metavar="FILE", help="the program (default: beside guardctl)")
    install.add_argument("--force", action="store_true", help="also where others than root may change the program")
    uninstall.add_argument("--purge", action="store_true", help="quarantine, too")


def _run(call: Call) -> int:
    arguments = call.arguments
    if arguments.act == "status":
        return _status(call)
    system = _System(arguments.root.absolute(), arguments.dry_run, call.out)
    if system.is_running and os.geteuid() != 0 and not arguments.dry_run:
        raise CtlError(f"only root may {arguments.act} the node agent (or: --root DIR, --dry-run)")
    try:
        _install(system, arguments) if arguments.act == "install" else _uninstall(system, arguments)
    except OSError as error:
        raise CtlError(f"{error.filename or system.root}: {error.strerror or error}") from None
    if call.out.is_json:
        call.out.json({"done": system.done, "dry_run": arguments.dry_run})
    return OK


def _install(system: _System, arguments: argparse.Namespace) -> None:
    program = _find_program(arguments.guardrund)
    if not arguments.force:
        check_program(program)
    for piece in PIECES:
        _check_ours(system.root / piece.target)
    for piece in PIECES:
        system.write(system.root / piece.target, render(piece.source, program))
    if not system.is_running:
        system.run("systemctl", f"--root={system.root}", "enable", UNIT)
        return
    system.run("systemd-sysusers", str(system.root / PIECES[0].target))
    system.run("systemd-tmpfiles", "--create", str(system.root / PIECES[1].target))
    system.run("systemctl", "daemon-reload")
    system.run("systemctl", "enable", UNIT)
    system.run("systemctl", "restart", UNIT)  # starts it, or puts the new one in the old one's place


def _uninstall(system: _System, arguments: argparse.Namespace) -> None:
    unit = system.root / PIECES[-1].target
    is_there = unit.exists()
    for piece in PIECES:
        _check_ours(system.root / piece.target)
    if is_there and system.is_running:
        system.run("systemctl", "disable", "--now", UNIT)
    elif is_there:
        system.run("systemctl", f"--root={system.root}", "disable", UNIT)
    for piece in PIECES:
        system.remove(system.root / piece.target)
    if system.is_running:
        system.run("systemctl", "daemon-reload")
        system.run("systemctl", "reset-failed", UNIT, may_fail=True)
    system.remove(system.root / RUNTIME)
    state = system.root / STATE
    if arguments.purge:
        system.remove(state)
    for name in OWN_STATE:
        system.remove(state / name)
    if system.is_running and _has_user():
        _give_to_root(system, state)
        system.run("userdel", USER, may_fail=True)


def render(source: str, program: Path) -> str:
    """A file as it goes into the system."""
    text = (SOURCE / source).read_text(encoding="utf-8")
    return text.replace(EXEC_START, f"ExecStart={_quoted(program)} --node")


def _quoted(program: Path) -> str:
    """A path as systemd.service(5) wants it in a command line."""
    text = str(program).replace("%", "%%")
    if not any(c.isspace() or c in "\"'\\$;" for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def check_program(program: Path) -> None:
    """Raise CtlError where somebody else than root could change what would run with an agent's capabilities.

    Or where the agent's user could not run it. Looks at the program, its interpreter and the package.
    """
    package = Path(guardrun.systemd.__file__).parent
    for part in (program, read_interpreter(program), package):
        for path in (*_on_the_way(part), *_on_the_way(part.resolve())):
            if why := _find_fault(path, path.stat()):
                raise CtlError(_why_not(part, why))


def read_interpreter(program: Path) -> Path:
    """What a script is run by; the program itself where it is none.

    pip writes a shell's line where a path is long, or holds a blank: then it is the Python that runs here.
    """
    with program.open("rb") as file:
        line = file.readline(1024)
    if not line.startswith(b"#!"):
        return program
    interpreter = Path(os.fsdecode(line[2:].split(maxsplit=1)[0]))
    return Path(sys.executable) if interpreter.name in ("sh", "env") else interpreter


def _find_fault(path: Path, found: os.stat_result) -> str:
    """What speaks against running something there; empty: nothing."""
    if found.st_uid != 0:
        return f"{path} belongs to {_name_of(found.st_uid)}, who could change what the agent runs"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"everybody may write {path}, and change what the agent runs"
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not found.st_mode & stat.S_ISVTX:
        return f"group {name_group(found.st_gid)} may write {path}, and change what the agent runs"
    if not found.st_mode & (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH):
        return f"user {USER} could not run it: {path} is closed to others"
    return ""


def _why_not(program: Path, why: str) -> str:
    where = "Install guardrun where root alone writes and all may read (python3 -m venv /opt/guardrun)"
    return f"{program}: {why}. {where}, or insist with --force"


def _on_the_way(path: Path) -> Sequence[Path]:
    return (path, *path.parents)


def _find_program(given: Path | None) -> Path:
    """guardrund of this very installation, unless another is named. Raises CtlError."""
    beside = [Path(sys.argv[0]).with_name("guardrund"), Path(sys.prefix) / "bin" / "guardrund"]
    candidates = [given] if given else beside
    for candidate in candidates:
        path = Path(os.path.abspath(candidate))
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise CtlError(f"no program at {candidates[0]} (say where it is with --guardrund)")


def _check_ours(path: Path) -> None:
    """Raises CtlError where a file is there that install has not written."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    if not text.startswith(MARK):
        raise CtlError(f"{path} was not written by guardctl: it is left as it is, and nothing else was changed")


def _has_user() -> bool:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True


def _give_to_root(system: _System, folder: Path) -> None:
    """What is kept must not belong to a number that another user may get."""
    if not folder.is_dir():
        return
    system.note(f"give {folder} to root")
    for path in [folder, *folder.iterdir()]:
        if not system.is_dry:
            os.chown(path, 0, 0, follow_symlinks=False)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


# Status ---------------------------------------------------------------------------------------------------------


def _status(call: Call) -> int:
    unit = Path("/") / PIECES[-1].target
    told: dict[str, Any] = {"installed": unit.exists(), "unit": _unit_state(), "agent": None, "trouble": ""}
    try:
        told["agent"] = ask("status")
    except (Unreachable, RefusedError) as error:
        told["trouble"] = str(error)
    if call.out.is_json:
        call.out.json(told)
    else:
        _print(call.out, told)
    return OK if told["agent"] else NO


def _unit_state() -> str:
    """As systemctl has it: active, failed, …; empty where there is no systemd to ask."""
    try:
        done = subprocess.run(
            ["systemctl", "is-active", UNIT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _print(out: Output, told: dict[str, Any]) -> None:
    agent = told["agent"]
    out.line(f"unit      {'installed' if told['installed'] else 'not installed'}, {told['unit'] or 'no systemd here'}")
    if not agent:
        out.line(f"agent     {told['trouble']}", "yellow")
        return
    held = agent["quarantine"].get("holding")
    out.line(f"agent     process {agent['pid']}, guardrun {agent['version']}, up {agent['uptime_s']:.0f} s")
    out.line(f"node      {agent['node']}{', quarantined' if held else ''}", "red" if held else "")
    out.line(f"jobs      {agent['jobs']}; {agent['clients']} clients; {agent['findings']} findings")
    history = agent["history"]
    out.line(f"history   {history['path']}{': ' + history['trouble'] if history['trouble'] else ''}")
    if agent["trouble"]:
        out.line(f"trouble   {agent['trouble']}", "yellow")
    rows = [
        (name, f"{s['age_s']:.0f} s ago", f"{1000 * s['took_s']:.1f} ms", "silent" if s["is_silent"] else s["trouble"])
        for name, s in sorted(agent["sensors"].items())
    ]
    out.line()
    out.table(("Sensor", "Read", "Took", "Trouble"), rows)


VERB = Verb("node-agent", "set up the node's agent under systemd, or look how it is doing", _add_arguments, _run)
