"""All that is known of the runs of a folder while somebody looks, and forgotten when nobody does."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.cli.base.verb import LATEST, CtlError, find_run
from guardrun.supervisor.cli.web.orders import Orders
from guardrun.supervisor.cli.web.run_cards import RunCard
from guardrun.supervisor.cli.web.threads import Latest, Threads
from guardrun.supervisor.cli.web.watched_run import WatchedRun, encode
from guardrun.supervisor.rundir.run_directory import list_runs

MAX_RUNS = 200
MAX_WATCHED, IN_USE_S = 16, 60.0
"""Runs that are shown at once; one that was looked at so lately makes no room for another: to read it anew costs."""
MAX_THREADS, MAX_ASKING = 8, 4
"""At once: of what is read and looked at, of what is asked."""
FORGET_S = 120.0
WAIT_S, KNOWN_WAIT_S = 8.0, 1.0
"""For an answer: where nothing is known yet, and where something is."""
LIST_WAIT_S = 2.0
SCAN_S = 2.0
"""Between two looks for new runs."""
MAX_NAME = 255


class Shown(NamedTuple):
    """A run that somebody looks at."""

    watched: WatchedRun
    view: Latest
    stacks: Latest
    orders: Orders


class Runs:
    """One folder's. To be used in one event loop."""

    def __init__(self, directory: Path, node: str, environ: Mapping[str, str]) -> None:
        """node: the name of this one."""
        self.directory, self._node, self.environ = directory, node, environ
        self.threads = Threads(MAX_THREADS)
        self._asking = Threads(MAX_ASKING)
        self._shown: dict[str, Shown] = {}
        self._cards: dict[str, RunCard] = {}
        self._reading = Threads(MAX_THREADS)
        self.reports = Threads(1)
        self._refreshing: dict[RunCard, asyncio.Task[None]] = {}
        self._scan: asyncio.Task[None] | None = None
        self._next_scan_s = self._listed_s = 0.0
        self._left_out, self._why = 0, ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, name: str) -> Shown:
        """The run of this name. Raises CtlError where the folder has no such run of this user's."""
        if not name or len(name) > MAX_NAME or "/" in name or "\0" in name or name in (".", "..", LATEST):
            raise CtlError("there is no such run")
        shown = self._shown.pop(name, None)
        if shown is None:
            run_dir = await self.threads.run(lambda: find_run(name, self.directory, self.directory))
            shown = self._shown.pop(name, None)  # whoever asked at the same time may have been first
        if shown is None:
            orders = Orders(run_dir, self.environ)
            watched = WatchedRun(run_dir, self._node, orders.acts)
            shown = Shown(
                watched,
                Latest(self.threads, watched.look, time.monotonic),
                Latest(self._asking, orders.stacks, time.monotonic),
                orders,
            )
        if len(self._shown) >= MAX_WATCHED:
            oldest = next(iter(self._shown))
            if time.monotonic() - self._shown[oldest].view.asked_s < IN_USE_S:
                raise CtlError(f"{MAX_WATCHED} runs are being looked at already: close the page of another")
            del self._shown[oldest]
        self._shown[name] = shown  # as the last, which is forgotten last
        return shown

    def forget(self) -> None:
        """Let go what nobody has looked at for a while."""
        now_s = time.monotonic()
        for name, shown in list(self._shown.items()):
            is_busy = any(act["state"] == "asking" for act in shown.orders.acts())
            if now_s - max(shown.view.asked_s, shown.stacks.asked_s) > FORGET_S and not is_busy:
                del self._shown[name]
        if now_s - self._listed_s > FORGET_S and not self._refreshing:
            self._cards.clear()

    async def order(self, shown: Shown, order: str, wait_s: float) -> dict[str, Any]:
        """Ask the run for it, and wait for so long. Answers how that goes. Raises CtlError where it can't be asked."""
        if why := shown.orders.find_reason_not_to(order):
            raise CtlError(why)
        ask = shown.orders.begin(order)

        async def do() -> None:
            await self._asking.run(ask)
            shown.view.hurry()

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        shown.view.hurry()
        await asyncio.wait({task}, timeout=wait_s)
        return shown.orders.acts()[0]

    async def list(self) -> bytes:
        """The folder's runs, as far as they are known within a moment."""
        self._listed_s = time.monotonic()
        if self._scan is None or (self._scan.done() and self._listed_s >= self._next_scan_s):
            self._scan = asyncio.create_task(self._find_runs())
        if not self._scan.done():
            await asyncio.wait({self._scan}, timeout=KNOWN_WAIT_S if self._cards else WAIT_S)
        now_s = time.monotonic()
        for card in self._cards.values():
            if now_s >= card.next_s and card not in self._refreshing:
                task = asyncio.create_task(self._reading.run(card.refresh))
                self._refreshing[card] = task
                task.add_done_callback(partial(self._forget_task, card))
        if self._refreshing:
            await asyncio.wait(self._refreshing.values(), timeout=LIST_WAIT_S)
        cards = list(self._cards.values())
        document = {
            "folder": str(self.directory),
            "node": self._node,
            "runs": [card.card for card in cards if card.card],
            "left_out": self._left_out,
            "unread": sum(card.next_s == -math.inf for card in cards),
            "why": self._why,
        }
        return encode(document)

    def _forget_task(self, card: RunCard, task: asyncio.Task[None]) -> None:
        del self._refreshing[card]
        task.exception()  # it could not be begun: the next time somebody looks, it is tried again

    async def _find_runs(self) -> None:
        """Have a card for each of the newest."""

        def find() -> tuple[list[Path], bool]:
            return list_runs(self.directory), self.directory.is_dir()

        paths, is_there = await self._reading.run(find)
        self._why = "" if paths or is_there else "the folder does not exist yet: a run makes it"
        self._left_out = max(0, len(paths) - MAX_RUNS)
        known = self._cards
        self._cards = {path.name: known.get(path.name) or RunCard(path, self._node) for path in paths[:MAX_RUNS]}
        self._next_scan_s = time.monotonic() + SCAN_S
