"""The pages as a real browser shows them: on a wide screen and a phone, light and dark.

GUARDRUN_SCREENSHOTS=FOLDER keeps a picture of each, to be looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.collect.ranks.flame_samples import pack
from guardrun.supervisor.report.comparison.comparison_page import comparison_html
from guardrun.supervisor.report.comparison.differences import compare_runs
from guardrun.supervisor.report.flame_graph import Sampled, flame_svg, unpack
from guardrun.supervisor.report.incident import incident_json
from guardrun.supervisor.report.incident_page import plain_html, report_html
from tests.report.browser import Browser
from tests.report.comparison.facts import ENVIRONMENT, recorded, run
from tests.report.pages import comparison_page, huge_page, pages, profile_page, run_page, stacks
from tests.report.samples import crash, explained, hang, run_file, wall

SCREENSHOTS = "GUARDRUN_SCREENSHOTS"
VIEWS = ((1280, False), (1280, True), (375, False), (375, True))
LONG = "a_function_with_a_name_that_nobody_would_give_to_one_but_somebody_did_" * 4


def hostile_page() -> str:
    """Names that would run, break out or widen the page if anything were taken as it is."""
    bad = "\"><script>document.title='run'</script><img src=x onerror=alert(1)>" + LONG
    waits = [{"ranks": [0, 2], "for": [1], "group": bad, "seq": 3, "op": bad, "where": bad}]
    evidence = explained() | {
        "waits": waits,
        "recurrence": {"said": bad},
        "traceback": bad,
        "readings": [{"name": bad, "value": 1.0, "unit": bad, "note": bad}],
    }
    return report_html(incident_json(hang(summary=bad, advice=bad, evidence=evidence), run_file(), wall), stacks())


def hostile_comparison() -> str:
    """Likewise."""
    bad = "\"><script>document.title='run'</script><img src=x onerror=alert(1)>" + LONG
    a = run(bad, script=["python", bad, "--name", bad], cwd=bad)
    packages = {**ENVIRONMENT.packages, bad: bad}
    b = run("b", script=["python", bad, "--name", LONG], environments=recorded(packages=packages, variables={bad: bad}))
    return comparison_html(a, b, compare_runs(a, b))


PAGES: dict[str, Callable[[], str]] = {
    "hang": lambda: pages()["hang"],
    "crash": lambda: pages()["crash"],
    "run": run_page,
    "compare": comparison_page,
    "compare-hostile": hostile_comparison,
    "profile": profile_page,
    "profile-hostile": lambda: profile_page(
        f"\"><script>document.title='run'</script><img src=x onerror=alert(1)>{LONG}"
    ),
    "huge": lambda: huge_page()[0],
    "hostile": hostile_page,
    "plain": lambda: plain_html(incident_json(crash(), run_file(), wall), "Traceback …"),
}


@pytest.mark.real("chromium")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_screen_and_asks_for_nothing(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(PAGES[name]())
    for width, is_dark in VIEWS:
        shown = browser.open(path, width, is_dark)
        assert shown.width == width
        assert shown.scroll_width <= width, f"{shown.scroll_width} px wide on a screen of {width}"
        assert shown.requests == []
        assert shown.troubles == []
        assert browser.evaluate("document.title") != "run"
        colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(17, 20, 24)") is is_dark, colour
        if folder := os.environ.get(SCREENSHOTS):
            look = "dark" if is_dark else "light"
            browser.screenshot(Path(folder) / f"{name}-{width}-{look}.png", min(shown.height, 4000))


@pytest.mark.real("chromium")
def test_what_is_drawn_is_there_for_those_who_cannot_see_it(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(pages()["hang"])
    browser.open(path, 1280, False)
    labels = browser.evaluate("[...document.querySelectorAll('svg[role=img]')].map(e => e.getAttribute('aria-label'))")
    assert labels == [
        "Ranks 0,2-7 wait for rank 1 in all_reduce #420 of the default group",
        "Timeline of 8 ranks, 51 s",
        "Seconds a step against time: 0.25 s a step as a rule",
    ]
    assert browser.evaluate("[...document.querySelectorAll('th')].every(e => e.scope === 'col')")
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1


@pytest.mark.real("chromium")
def test_text_stands_out_from_what_is_behind_it(browser: Browser, tmp_path: Path) -> None:
    """WCAG 2.1, 1.4.3: a contrast of 4.5 for text. https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio"""
    path = tmp_path / "report.html"
    path.write_text(pages()["hang"])
    pairs = [("text", "page"), ("text", "card"), ("soft", "page"), ("soft", "card"), ("soft", "code"), ("bad", "card")]
    pairs += [("bad", "bad-page"), ("good", "good-page"), ("warn", "warn-page"), ("accent", "card"), ("good", "card")]
    pairs += [("other", "card")]
    for is_dark in (False, True):
        browser.open(path, 1280, is_dark)
        for text, behind in pairs:
            ratio = browser.evaluate(
                f"""(() => {{
                  const light = name => {{
                    const e = document.createElement('i'); e.style.color = `var(--${{name}})`;
                    document.body.append(e); const c = getComputedStyle(e).color.match(/\\d+/g).map(Number); e.remove();
                    const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b; }};
                  const [a, b] = [light('{text}'), light('{behind}')].sort((x, y) => y - x);
                  return (a + 0.05) / (b + 0.05); }})()"""
            )
            assert ratio >= 4.5, f"{text} on {behind}, {'dark' if is_dark else 'light'}: {ratio:.2f}"


@pytest.mark.real("chromium")
def test_a_click_widens_a_box_of_a_flame_graph(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "flame.svg"
    stacks = {"thread (7): MainThread;main (a.py:1)": 30, "thread (7): MainThread;main (a.py:1);load (a.py:2)": 10}
    packed, _ = pack(Counter({**stacks, "thread (8): waiter;wait (b.py:1)": 40}))
    terms: dict[str, Any] = {
        "pid": 7,
        "seconds": 4.0,
        "rate": 10,
        "native": False,
        "samples": 80,
        "errors": 0,
        "left_out": 0,
    }
    path.write_text(flame_svg(unpack(Sampled(**terms, stacks=packed)), "Rank 0"))

    def shown() -> dict[str, float]:
        """Boxes that are to be seen, and their share of the width."""
        found = browser.evaluate(
            "[...document.querySelectorAll('.box')].filter(e => e.style.display != 'none')"
            ".map(e => [e.querySelector('text').textContent, parseFloat(e.getAttribute('width'))])"
        )
        return {label: round(width, 2) for label, width in found}

    def click(at: str) -> dict[str, float]:
        browser.evaluate(f"({at}).dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
        return shown()

    for is_dark in (False, True):
        opened = browser.open(path, 1280, is_dark)
        assert opened.requests == [] and opened.troubles == []
        if folder := os.environ.get(SCREENSHOTS):
            browser.screenshot(Path(folder) / f"flame-1280-{'dark' if is_dark else 'light'}.png", 400)
    training = {"all threads": 100, "thread (7): MainThread": 100, "main": 100, "load": 25}
    assert shown() == training
    box = "[...document.querySelectorAll('.box')].find(e => e.textContent.includes('load')).querySelector('rect')"
    assert click(box) == {**training, "load": 100}
    whole = {"all threads": 100, "thread (7): MainThread": 50, "main": 50, "load": 12.5}
    assert click("document.querySelector('.paper')") == {**whole, "thread (8): waiter": 50, "wait": 50}
