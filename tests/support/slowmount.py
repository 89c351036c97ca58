"""A network file system that takes its time: sshfs over an SFTP server whose answers are late. Real part "sshfs"."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

SERVER = Path(__file__).with_name("slow_sftp.py")


@contextmanager
def slow_mount(
    behind: Path, at: Path, late_s: float, within: Sequence[str] = (), options: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """What lies in a folder is seen at another as over a line on which every answer takes late_s longer.

    within: a command that enters the mount namespace in which it is to be seen. options: more of sshfs's. The first
    folder must not be below the second: its server would ask itself. Yields what serves it: stopped by SIGSTOP, it
    answers nothing.
    """
    command = f"ssh_command={sys.executable} {SERVER} {late_s:g}"
    # Nothing is kept here but what the kernel itself keeps: each look at a file asks, as on NFS with noac.
    flags = ("-f", "-o", command, "-o", f"cache=no,allow_other,default_permissions{options and ','}{options}")
    mount = subprocess.Popen([*within, "sshfs", *flags, f"slow:{behind}", str(at)])

    def is_mounted() -> bool:
        assert mount.poll() is None, f"sshfs has ended with {mount.returncode}"
        return subprocess.run([*within, "mountpoint", "-q", str(at)], check=False, timeout=60).returncode == 0

    try:
        wait_until(is_mounted, 20.0, f"{at} to be mounted", every_s=0.05)
        yield mount
    finally:
        mount.send_signal(signal.SIGCONT)
        subprocess.run([*within, "umount", "--lazy", str(at)], check=False)
        mount.terminate()
        try:
            mount.wait(60)
        except subprocess.TimeoutExpired:
            mount.kill()
            mount.wait()
