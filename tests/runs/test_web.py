"""`guardctl web` in a browser, beside a real job that trains, is held, hangs, loses its supervisor and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.report.browser import Browser
from tests.runs.runs import QUICK, EdgeRuns, finish
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until
from tests.support.web_client import ENDED, WebClient, environment

pytestmark = [pytest.mark.real("py-spy"), pytest.mark.real("chromium")]


def test_a_job_that_trains_is_held_hangs_and_is_over(edge: EdgeRuns, browser: Browser, tmp_path: Path) -> None:
    """Long: one job in each of its states."""
    os.mkfifo(edge.folder / "gate")
    run = edge.start("assisted.py", config=f"{QUICK}[policy]\nact = false\n")
    (tmp_path / "runtime").mkdir(mode=0o700)
    wait_until((run.guard_dir / "latest").exists, 60, "a run")
    web = WebClient(run.guard_dir, environment(tmp_path / "runtime"))
    try:
        page = Page(browser, web, (run.guard_dir / "latest").resolve().name)
        trains(page)
        is_traced_and_held(run, page)
        hangs(run, page)
        loses_its_supervisor(run, page)
        run.send(signal.SIGINT)
        finish(run)
        is_over(page)
    finally:
        assert web.close() == ENDED


class Page:
    """A run's page."""

    def __init__(self, browser: Browser, web: WebClient, name: str) -> None:
        self.browser, self.web, self.name = browser, web, name
        browser.visit(web.address, 390, False)
        self.shows("1 run of yours", name)

    def go(self, view: str) -> None:
        self.browser.evaluate(f"location.hash = '#/run/{self.name}{view}'")

    def shows(self, *texts: str, timeout_s: float = 60.0) -> None:
        self.browser.wait_for_text(texts, timeout_s)

    def press(self, words: str) -> None:
        self.shows(words)
        button = f"[...document.querySelectorAll('main button')].find(b => b.textContent === '{words}')"
        self.browser.evaluate(f"{button}.click()")
        self.browser.evaluate("document.querySelector('dialog button.main').click()")
        # It stays until the order is answered; the next one would be given in it.
        wait_until(
            lambda: self.browser.evaluate("document.querySelector('dialog') === null"), 60.0, f"{words!r} answered"
        )


def trains(page: Page) -> None:
    page.go("")
    page.shows("training", "live", "2 ranks", "Time a step", "Loss", "own work", "attempt 0 started: 2 ranks")
    page.go("/stacks")
    page.shows("2 ranks, as at", "assisted.py")
    page.go("/ranks")
    page.shows("Each rank, those that stand out first", "sleeping")


def is_traced_and_held(run: GuardrunRun, page: Page) -> None:
    page.press("Trace 5 steps")
    page.go("/modules")
    page.shows("2 ranks traced", "Rank 0 on", "Rank 1 on", "module.0")
    page.press("Hold")
    page.shows("held: guardrun watches", "Let go")
    journal = run.guard_dir / page.name / "events.jsonl"
    wait_until(
        lambda: ", by guardctl web" in journal.read_text(), 60.0, "it to be in the journal, which is written apart"
    )
    page.press("Let go")
    page.shows("no longer held", "Hold")


def hangs(run: GuardrunRun, page: Page) -> None:
    (run.folder / "wait").touch()
    page.go("")
    page.shows("fetch_vocabulary_update")
    # Told as an incident in the end, since nothing is done about it here: it still heads the page.
    held_up_by = "(document.querySelector('.holds a') || {}).hash || ''"
    wait_until(
        lambda: "rank_blocked" in page.browser.evaluate(held_up_by), 60.0, "the incident at the head of the page"
    )
    page.go("/incidents")
    page.shows("rank_blocked")
    page.browser.evaluate("document.querySelector('a.incident').click()")
    page.shows("All incidents", "hang: rank_blocked", "rank 1 on")


def loses_its_supervisor(run: GuardrunRun, page: Page) -> None:
    """The launcher starts another; the page goes on with that."""
    [before] = run.supervisors()
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: [one for one in run.supervisors() if one.pid != before.pid], 60.0, "another supervisor")
    page.go("/log")
    page.shows("live", "the supervisor was started again")


def is_over(page: Page) -> None:
    page.go("")
    page.shows("interrupted", "from its folder: the run is over")
    assert page.browser.evaluate("document.querySelectorAll('.actions button').length") == 0
    page.go("/incidents")
    page.shows("The run's report")
    page.browser.evaluate("[...document.querySelectorAll('main button')].find(b => b.textContent === 'Show').click()")
    wait_until(lambda: page.browser.evaluate("document.querySelector('iframe') !== null"), 60.0, "the run's report")
    assert page.browser.troubles() == []
