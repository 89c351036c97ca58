"""A booted systemd in a container over an overlay of this machine's root: units, journal, watchdog are the real ones.

Nothing of this machine is changed: all that is written goes into a tmpfs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import own_children, read_all
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
BOOT_S = 60.0


def missing_part() -> str:
    """Why there can be none here; empty where there can."""
    for program, package in (
        ("systemd-nspawn", "systemd-container"),
        ("nsenter", "util-linux"),
        ("systemctl", "systemd"),
    ):
        if not shutil.which(program):
            return f"no program {program} (package {package})"
    return "" if Path("/usr/lib/systemd/systemd").exists() or Path("/lib/systemd/systemd").exists() else "no systemd"


UNMOUNT = """
trap '' INT TERM
cat
umount --lazy "$1/root" 2>/dev/null
umount --lazy "$1" 2>/dev/null
"""
"""Once nobody is there any more."""


class Booted:
    """A running system; `run` runs a program in it."""

    def __init__(self, folder: Path) -> None:
        """Mount and boot. Raises CalledProcessError or TimeoutError, with what it said, where that can't be done."""
        self._folder = folder
        self._console = folder.parent / "console.log"
        # A run of the tests that is interrupted ends its workers at once: what they leave goes with their pipe.
        self._unmounts = subprocess.Popen(["sh", "-c", UNMOUNT, "sh", str(folder)], stdin=subprocess.PIPE)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(folder)], check=True, timeout=60)
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        upper, work, root = (self._folder / name for name in ("up", "work", "root"))
        for part in (upper, work, root):
            part.mkdir()
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True, timeout=60)
        units = root / "etc/systemd/system"
        (root / "etc/machine-id").write_text("")
        # An image without the agent, whatever this machine has.
        (units / "guardrund.service").unlink(missing_ok=True)
        shutil.rmtree(root / "var/lib/guardrun", ignore_errors=True)
        self._open_way(root, Path(os.path.realpath(sys.executable)))
        binds = {str(path) for path in (ROOT, Path(sys.prefix)) if _is_covered(path)}
        if binds:
            # A checkout in /tmp: the unit has one of its own.
            drop_in = root / "usr/lib/systemd/system/guardrund.service.d/checkout.conf"
            drop_in.parent.mkdir(parents=True, exist_ok=True)
            drop_in.write_text(f"[Service]\nBindReadOnlyPaths={' '.join(sorted(binds))}\n")
        command = ["setpriv", "--pdeathsig", "TERM", "systemd-nspawn", "-D", str(root), "--boot"]
        command += ["--register=no", "--keep-unit", "--private-network"]
        command += ["-M", f"guardrun-{os.getpid()}", "--console=pipe", *(f"--bind-ro={path}" for path in binds)]
        command += ["--capability=CAP_SYSLOG", *(["--bind=/dev/kmsg"] if os.path.exists("/dev/kmsg") else [])]
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                [*command, "systemd.unit=basic.target", "systemd.show_status=0"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        self.init = wait_until(self._find_init, BOOT_S, "the container's init")
        try:
            wait_until(lambda: self._is_up(self._process), BOOT_S, "a booted system", every_s=0.2)
        except TimeoutError as error:
            jobs = self.run("systemctl", "list-jobs", check=False)
            said = self._console.read_text(errors="replace")
            raise TimeoutError(f"{error}\n{jobs.stdout}{jobs.stderr}\n{said}") from None

    def _open_way(self, root: Path, program: Path) -> None:
        """Let everybody through to a program, as where guardrun is installed for a whole machine."""
        for folder in program.parents[:-1]:
            inside = root / folder.relative_to("/")
            inside.chmod(inside.stat().st_mode | 0o011)

    def _find_init(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self._console.read_text(errors="replace")
        children = [p.pid for p in read_all() if self._process and p.ppid == self._process.pid]
        # On the way there nspawn has a child that only makes the container.
        return next((pid for pid in children if _is_init(pid)), 0)

    def _is_up(self, process: subprocess.Popen[bytes] | None) -> bool:
        assert process is not None
        assert process.poll() is None, self._console.read_text(errors="replace")
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def run(
        self, *command: str | Path, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside, as root; raises AssertionError with its words where it fails."""
        done = subprocess.run(
            [*self._entering(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "COLUMNS": "200"},
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program inside; it is a child of the test's, through nsenter."""
        return subprocess.Popen(
            [*self._entering(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _entering(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "-C", "--"]

    @property
    def root(self) -> Path:
        """Its root folder, seen from here; `/tmp`, `/run` and `/dev` lie over it."""
        return self._folder / "root"

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """systemctl's properties of a unit."""
        lines = self.run("systemctl", "show", unit, "-p", ",".join(properties)).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def close(self) -> None:
        """End it, and let go of what was mounted."""
        if self._process is not None and self._process.poll() is None:
            for child in own_children():
                if child.pid == self._process.pid:
                    os.kill(child.pid, signal.SIGTERM)  # nspawn shuts its init down
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        assert self._unmounts.stdin is not None
        self._unmounts.stdin.close()
        self._unmounts.wait(60)


def _is_covered(path: Path) -> bool:
    """Whether the container would not show it: on a file system of its own, or below what nspawn mounts itself."""
    return path.stat().st_dev != os.stat("/").st_dev or path.parts[1] in ("tmp", "run", "dev")


def _is_init(pid: int) -> bool:
    """Whether a process is the first of a PID namespace below ours, and systemd by now."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return fields["NSpid"].split()[1:] == ["1"] and fields["Name"].strip() == "systemd"
