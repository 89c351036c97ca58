"""Pages of reports, each given out once by an address that nobody can guess: a frame can send no token."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from guardrun.supervisor.base.own_files import read_own
from guardrun.supervisor.cli.base.verb import CtlError, is_anybodys
from guardrun.supervisor.report.incident import incident_folders

MAX_BYTES = 32 << 20
MAX_TICKETS = 16
TICKET_S = 60.0
REPORT_S = 50.0
"""Of making a whole run's page: it reads the whole journal, in a process of its own."""
MAX_SAID = 500


def read_incident_page(run_dir: Path, name: str) -> bytes:
    """report.html of the incident whose folder has this name. Raises CtlError."""
    for folder in incident_folders(run_dir):
        if folder.name == name:
            try:
                return read_own(folder / "report.html", is_anybodys=is_anybodys(), limit=MAX_BYTES)
            except OSError as error:
                raise CtlError(f"its report can't be read: {error.strerror or error}") from None
    raise CtlError("there is no such incident")


def make_run_page(run_dir: Path, environ: Mapping[str, str]) -> bytes:
    """What `guardctl report` makes of a run, as it is now. Raises CtlError."""
    with tempfile.TemporaryDirectory(prefix="guardrun-web-") as folder:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "report", str(run_dir)]
        try:
            done = subprocess.run(
                [*command, "--output", str(page)],
                env={**environ, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=REPORT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CtlError(f"the page is not made within {REPORT_S:g} s: guardctl report takes its time") from None
        if done.returncode:
            raise CtlError(done.stderr.decode("utf-8", "replace").strip()[-MAX_SAID:] or "the page can't be made")
        return read_own(page, limit=MAX_BYTES)


class Tickets:
    """Pages that wait to be fetched, for a minute, a few at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: dict[str, tuple[float, bytes]] = {}

    def add(self, page: bytes) -> str:
        """The ticket with which it can be fetched."""
        self._forget(MAX_TICKETS - 1)
        ticket = secrets.token_urlsafe(24)
        self._pages[ticket] = self._clock() + TICKET_S, page
        return ticket

    def redeem(self, ticket: str) -> bytes | None:
        """The page; None where there is none, or it has been fetched."""
        self._forget(MAX_TICKETS)
        return self._pages.pop(ticket, (0.0, None))[1]

    def _forget(self, most: int) -> None:
        now_s = self._clock()
        kept = [(ticket, one) for ticket, one in self._pages.items() if one[0] > now_s]
        self._pages = dict(kept[max(0, len(kept) - most) :])
