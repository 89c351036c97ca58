"""A munged of a test's own, with a key of its own. Needs the real part "munge" (tests/support/real.py)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.waiting import wait_until


@contextmanager
def munged_of_its_own() -> Iterator[str]:
    """Its socket."""
    with TemporaryDirectory(prefix="munge-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        options = [f"--{what}-file={folder / what}" for what in ("key", "pid", "log", "seed")]
        with (folder / "out").open("wb") as out:
            daemon = subprocess.Popen(
                ["munged", "--foreground", "--force", f"--socket={folder / 'socket'}", *options],
                stdout=out,
                stderr=out,
            )
            try:
                wait_until((folder / "socket").exists, 10, "munged")
                yield str(folder / "socket")
            finally:
                daemon.kill()
                daemon.wait()
