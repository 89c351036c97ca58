"""`guardctl web`, the real process over runs of every kind: what it answers, what it refuses, what a browser shows.

GUARDRUN_SCREENSHOTS=FOLDER keeps pictures of the page, to be looked at.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.web.conftest import HEALTHY, HOSTILE, HUNG, MANY, OVER, Served
from tests.report.browser import Browser
from tests.support.neighbours import NEIGHBOUR, make_passable, python_as
from tests.support.waiting import wait_until
from tests.support.web_client import COMMAND, ENDED, Response, WebClient, environment

SCREENSHOTS = "GUARDRUN_SCREENSHOTS"
READ = [
    "/api/runs",
    f"/api/runs/{HUNG}",
    f"/api/runs/{HUNG}/curves",
    f"/api/runs/{HUNG}/nodes",
    f"/api/runs/{HUNG}/modules",
]
ACT = [f"/api/runs/{HUNG}/order", f"/api/runs/{HUNG}/stacks", f"/api/runs/{HUNG}/report"]
RESTART = {"order": "restart", "run": HUNG}


def verbs(served: Served, run: str = HUNG) -> list[str]:
    """What a run's supervisor has been asked, in order."""
    return [ask.verb for ask in served.supervisors[run].asked]


def listed(served: Served) -> list[dict[str, Any]]:
    """The runs as the list has them."""
    found: list[dict[str, Any]] = served.web.get("/api/runs").json()["runs"]
    return found


# Strangers ------------------------------------------------------------------------------------------------------------


def test_a_stranger_gets_nothing_but_how_to_get_in(served: Served) -> None:
    for token in ("", "x" * 43):
        for path in READ:
            found = served.web.ask("GET", path, token=token)
            assert found.status == 403 and set(found.json()) == {"error", "token_file"}, path
        for path in ACT:
            assert served.web.ask("POST", path, b"{}", token=token).status == 403
    with_cookie = served.web.ask("GET", f"/api/runs?token={served.web.token}", token="", cookie=f"t={served.web.token}")
    assert with_cookie.status == 403
    page = served.web.ask("GET", "/", token="")
    assert page.status == 200 and HUNG.encode() not in page.body and b"<script>" not in page.body
    assert served.web.ask("GET", "/report/guessed", token="").status == 404


def test_the_token_is_for_its_user_alone(served: Served) -> None:
    file = served.web.token_file
    assert file.read_text().strip() == served.web.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.real("root")
def test_another_user_of_the_machine_reaches_the_port_and_not_the_token(served: Served, tmp_path: Path) -> None:
    file = served.web.token_file
    make_passable(file.parent.parent)  # what is on the way there is none of guardrun's
    code = f"""
try: open({str(file)!r}); print('read')
except PermissionError: print('kept')
asked = http.client.HTTPConnection('127.0.0.1', {served.web.port}, timeout=30)
for method, path in {[*(("GET", path) for path in READ), *(("POST", path) for path in ACT)]!r}:
    asked.request(method, path, b'{{}}')
    got = asked.getresponse()
    print(got.status)
    got.read()
"""
    done = python_as(NEIGHBOUR, code, preload="import http.client, encodings.idna", cwd=make_passable(tmp_path))
    assert done.stdout.split() == ["kept", *["403"] * len(READ + ACT)], done


def test_it_listens_on_loopback_alone(served: Served) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{served.web.port:04X}"
    assert {one[1] for one in listening if one[1].endswith(port) and one[3] == "0A"} == {f"0100007F{port}"}


def test_a_page_in_another_origin_changes_nothing(served: Served) -> None:
    asked = len(verbs(served))
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"origin": f"http://127.0.0.1:{served.web.port + 1}"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        for path in ACT:
            assert served.web.post(path, RESTART, **headers).status == 403
    asks_first = served.web.ask("OPTIONS", ACT[0], origin="http://evil.example", access_control_request_method="POST")
    assert asks_first.status == 405 and not [name for name in asks_first.headers if name.startswith("access-control")]
    assert served.web.get("/api/runs", host="evil.example").status == 421
    assert verbs(served)[asked:] == []


def test_every_answer_has_the_headers_that_shut_others_out(served: Served) -> None:
    for found in (
        served.web.get("/"),
        served.web.get("/page/main.js"),
        served.web.get("/api/runs"),
        served.web.get("/nowhere"),
        served.web.ask("GET", "/api/runs", token=""),
    ):
        assert "script-src 'self'" in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff" and found.headers["x-frame-options"] == "DENY"
        assert found.headers["referrer-policy"] == "no-referrer" and found.headers["cache-control"] == "no-store"
        assert "server" not in found.headers and "set-cookie" not in found.headers


def test_nothing_beside_the_folders_runs_is_read(served: Served, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", str(served.folder / OVER), str(elsewhere)], check=True)
    planted = served.folder / "planted"
    planted.symlink_to(elsewhere)
    half = served.folder / "half"
    half.mkdir()
    (half / "run.json").symlink_to(elsewhere / "run.json")
    try:
        for name in (
            "planted",
            "half",
            "..",
            "%2e%2e",
            ".",
            "latest",
            "..%2fruns",
            "%2e%2e%2fetc",
            "a" * 300,
            "%00",
            "",
        ):
            found = served.web.get(f"/api/runs/{name}")
            assert found.status in (400, 404) or "run.json is a link" in found.json()["error"], name
            assert b"vocab" not in found.body
        assert not {"planted", "half", "latest"} & {run["name"] for run in listed(served)}
    finally:
        planted.unlink()
        (half / "run.json").unlink()
        half.rmdir()
    for path in (
        "/page/../access.py",
        "/page/%2e%2e/access.py",
        "/page//etc/passwd",
        "/../../etc/passwd",
        "/page/uplot",
    ):
        assert served.web.get(path).status == 404
    for incident in ("../../..", "002-exception/../../..", "nothing"):
        assert served.web.post(f"/api/runs/{OVER}/report", {"incident": incident}).status == 409


def test_a_report_that_leads_elsewhere_is_not_followed(served: Served, tmp_path: Path) -> None:
    page = served.folder / OVER / "incidents" / "001-rank_blocked" / "report.html"
    kept = page.rename(page.with_name("kept"))
    (tmp_path / "secret").write_text("secret")
    page.symlink_to(tmp_path / "secret")
    try:
        found = served.web.post(f"/api/runs/{OVER}/report", {"incident": "001-rank_blocked"})
        assert found.status == 409 and "is a link" in found.json()["error"]
    finally:
        page.unlink()
        kept.rename(page)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"' + b"a" * 5000,
        b'{"order": "restart"}',
        b'{"order": "restart", "run": "another"}',
        b'{"order": "eval", "run": "%s"}' % HUNG.encode(),
        b'{"order": "restart", "run": "%s", "more": 1}' % HUNG.encode(),
    ],
)
def test_what_is_no_order_does_nothing(served: Served, body: bytes) -> None:
    asked = len(verbs(served))
    assert served.web.ask("POST", ACT[0], body).status == 400
    assert served.web.post(ACT[0], RESTART, content_type="text/plain").status == 400
    assert verbs(served)[asked:] == []


def test_what_is_no_request_ends_nothing(served: Served) -> None:
    for said in (b"\0" * 100, b"GET / HTTP/1.1\r\nHost: " + b"a" * 40_000, b"GET / HTTP/9.9\r\n\r\n", b"A\r\n" * 1000):
        with socket.create_connection(("127.0.0.1", served.web.port), 60) as one:
            answer = b""
            with suppress(ConnectionError, BrokenPipeError):  # it may be let go before all has been said
                one.sendall(said)
            with suppress(OSError):
                one.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                answer = one.recv(100)
            assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    assert served.web.get("/api/runs").status == 200


def test_silent_connections_do_not_keep_others_out(served: Served) -> None:
    held = [socket.create_connection(("127.0.0.1", served.web.port), 20) for _ in range(100)]
    try:
        assert served.web.get("/api/runs").status == 200
        held[0].settimeout(20)
        assert held[0].recv(1) == b""  # the oldest went
    finally:
        for one in held:
            one.close()


# What is told ---------------------------------------------------------------------------------------------------------


def test_the_runs_of_the_folder(served: Served) -> None:
    # Others that a test has laid there are forgotten in a moment.
    told = wait_until(lambda: len(found := listed(served)) == 5 and found, 20, "five runs")
    runs = {run["name"]: run for run in told}
    assert {name: run["state"] for name, run in runs.items()} == {
        HUNG: "stalled", MANY: "stalled", HEALTHY: "training", HOSTILE: "stalled", OVER: "gave_up"
    }  # fmt: skip
    assert (runs[MANY]["world_size"], runs[MANY]["step"], runs[MANY]["loss"]) == (1000, 600, 1.89)
    assert (runs[OVER]["incidents"], runs[OVER]["last_incident"]["cause"], runs[OVER]["step"]) == (2, "exception", 80)


def test_a_run_of_1000_ranks_is_short(served: Served) -> None:
    found = served.web.get(f"/api/runs/{MANY}")
    ranks = found.json()["view"]["ranks"]
    assert (ranks["total"], ranks["nodes"], [row["rank"] for row in ranks["rows"][:2]]) == (1000, 125, [1, 3])
    assert len(found.body) < 100_000 and found.headers["content-encoding"] == "gzip"
    nodes = served.web.get(f"/api/runs/{MANY}/nodes").json()["nodes"]
    assert (nodes["total"], nodes["odd"], nodes["rows"][0]["node"], nodes["rows"][0]["odd"]) == (125, 1, "node-0", 2)
    assert nodes["rows"][0]["temp_c"] == 71.0


def test_curves_are_told_once(served: Served) -> None:
    path = f"/api/runs/{HUNG}/curves"
    whole = served.web.get(path).json()
    columns = dict(zip(whole["names"], whole["columns"], strict=True))
    assert whole["is_whole"] and len(columns["at_s"]) > 50
    assert columns["loss"][-1] == pytest.approx(1.89, abs=0.01) and columns["learning_rate"][-1] == 3e-4
    assert columns["resident"][-1] > 1e10 and columns["allocated"][-1] > 6e10
    newer = served.web.get(f"{path}?folds={whole['folds']}&since={columns['at_s'][-2]}").json()
    assert not newer["is_whole"] and newer["columns"][0] == columns["at_s"][-2:]
    assert served.web.get(f"{path}?folds=nan&since=1e400").status == 200


def test_what_has_not_changed_is_not_sent_again(served: Served) -> None:
    def ask_twice() -> Response | None:
        first = served.web.get(f"/api/runs/{OVER}")
        assert first.json()["view"]["outcome"].startswith("gave_up")
        again = served.web.get(f"/api/runs/{OVER}", if_none_match=first.headers["etag"])
        return again if again.status == 304 else None  # a look that was under way at first has changed its time

    again = wait_until(ask_twice, 60, "the same answer")
    assert again is not None and again.body == b"" and float(again.headers["x-guardrun-now"]) > 1e9


def test_however_many_look_the_supervisor_is_asked_once(served: Served) -> None:
    served.web.get(f"/api/runs/{HEALTHY}")
    asked, began_s = len(verbs(served, HEALTHY)), time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: served.web.get(f"/api/runs/{HEALTHY}").status, range(48)))
        list(pool.map(lambda _: served.web.post(f"/api/runs/{HEALTHY}/stacks").status, range(16)))
    assert found == [200] * 48
    told, took_s = verbs(served, HEALTHY)[asked:], time.monotonic() - began_s
    # One each two seconds, and each ten of the list, if a browser shows that; stacks each ten.
    assert told.count("status") <= 2 + 0.6 * took_s and took_s < 60
    assert told.count("stacks") <= 1 + took_s / 10


def test_orders_go_the_way_of_guardctl(served: Served) -> None:
    done = served.web.post(ACT[0], {"order": "hold", "run": HUNG}).json()
    assert (done["order"], done["state"]) == ("hold", "done")
    [ask] = [ask for ask in served.supervisors[HUNG].asked if ask.verb == "hold"]
    assert str(ask.arguments["who"]).endswith(", by guardctl web")
    acts = wait_until(lambda: served.web.get(f"/api/runs/{HUNG}").json()["acts"], 20, "the act in the view")
    assert acts[0]["order"] == "hold"
    over = served.web.post(f"/api/runs/{OVER}/order", {"order": "restart", "run": OVER}).json()
    assert over["state"] == "failed" and "is over" in over["text"]


def test_a_torn_run_costs_no_other(served: Served) -> None:
    torn = served.folder / "torn"
    torn.mkdir()
    (torn / "run.json").write_bytes((served.folder / OVER / "run.json").read_bytes())
    (torn / "summary.json").write_text('{"outcome": {"a": 1}, "goodput": "x", "last_step": [], "wall_s": "NaN"}')
    (torn / "events.jsonl").write_bytes(b"\0" * 10_000 + b'\n{"event": 7}\n')
    incident = torn / "incidents" / "001-x"
    incident.mkdir(parents=True)
    (incident / "incident.json").write_text('{"id": {}, "summary": [1], "culprits": {"a": 1}, "evidence": 3}')
    try:
        path = "/api/runs/torn"
        found = served.web.get(path).json()
        assert "error" in found or found["incidents"][0]["summary"] is None
        assert served.web.get("/api/runs").json()["runs"]
        assert served.web.get(f"{path}/nodes").status == served.web.get(f"{path}/curves").status == 200
    finally:
        subprocess.run(["rm", "-r", str(torn)], check=True)


# The command line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "is no folder of runs"),
        ([OVER], "is one run: name the folder that it lies in"),
        ([".", "--port", "0"], "expected a port from 1 to 65535"),
        ([".", "--port", "TAKEN"], "--port N names another port"),
    ],
)
def test_wrong_command_lines(served: Served, tmp_path: Path, arguments: list[str], said: str) -> None:
    arguments = [str(served.web.port) if one == "TAKEN" else one for one in arguments]
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=served.folder,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2) and said in done.stderr


def test_without_the_extra(served: Served, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; from guardrun.supervisor.cli.guardctl import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "web", str(served.folder)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "pip install 'guardrun[web]'" in done.stderr


# In a browser ---------------------------------------------------------------------------------------------------------


def shown(browser: Browser, *texts: str) -> str:
    """What the page shows once it has these."""
    return browser.wait_for_text(texts)


def visit(browser: Browser, web: WebClient, place: str, width: int, is_dark: bool, *texts: str) -> str:
    """Open a view of whoever has the token."""
    is_known = browser.evaluate("location.origin") == web.base and browser.evaluate("localStorage.length")
    browser.visit("about:blank", width, is_dark)  # the page before, whose server may be gone, does nothing any more
    if not is_known:
        browser.visit(web.address, width, is_dark)
        shown(browser, "Runs")
        browser.visit("about:blank", width, is_dark)
    browser.visit(f"{web.base}/#{place}", width, is_dark)
    try:
        return shown(browser, *texts)
    except AssertionError as error:
        raise AssertionError(f"{error}\nguardctl web: exit code {web.process.poll()}") from None


EVERY = ((1280, False), (360, True), (1280, True), (360, False))
VIEWS = {
    "runs": ("/", ["5 runs of yours", HUNG, "1,000 ranks"]),
    "hung": (
        f"/run/{HUNG}",
        ["is blocked in fetch_vocabulary_update", "Time a step", "Where time goes", "2 stand out"],
    ),
    "many-ranks": (f"/run/{MANY}/ranks", ["Those that stand out, 2 of 1,000", "holds the run up"]),
    "many-nodes": (f"/run/{MANY}/nodes", ["125 nodes, 1 of note"]),
    "stacks": (f"/run/{HUNG}/stacks", ["fetch_vocabulary_update", "Look again"]),
    "modules": (f"/run/{HUNG}/modules", ["layers.0", "(whole)"]),
    "over": (f"/run/{OVER}", ["gave up", "the same error at the same step twice"]),
    "incident": (f"/run/{OVER}/incidents/001-rank_blocked", ["All incidents", "Culprits"]),
    "log": (f"/run/{HUNG}/log", ["attempt 0 started: 8 ranks"]),
    "hostile": (f"/run/{HOSTILE}", ["<script>document.title='run'</script>"]),
    "hostile-ranks": (f"/run/{HOSTILE}/ranks", ["<script>"]),
    "hostile-incidents": (f"/run/{HOSTILE}/incidents", ["<script>"]),
    "hostile-nodes": (f"/run/{HOSTILE}/nodes", ["<script>"]),
}


@pytest.mark.real("chromium")
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_fits_every_screen_and_asks_nobody_else(browser: Browser, served: Served, name: str) -> None:
    place, texts = VIEWS[name]
    for width, is_dark in EVERY if SCREENSHOTS in os.environ else EVERY[:2]:
        said = visit(browser, served.web, place, width, is_dark, *texts)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.title") != "run" and "\u202e" not in said
        assert browser.troubles() == []
        assert browser.evaluate("document.querySelectorAll('main script, main img').length") == 0
        origins = browser.evaluate(
            "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))"
        )
        assert origins is True
        if folder := os.environ.get(SCREENSHOTS):
            browser.screenshot(Path(folder) / f"web-{name}-{width}-{'dark' if is_dark else 'light'}.png")


@pytest.mark.real("chromium")
def test_an_address_is_shared_without_the_token(browser: Browser, served: Served) -> None:
    visit(browser, served.web, "/", 1280, False, "5 runs of yours")
    browser.evaluate("localStorage.clear()")
    browser.visit("about:blank", 1280, False)
    browser.visit(f"{served.web.base}/#/run/{HUNG}/log", 1280, False)
    shown(browser, "Who may look here", f"cat {served.web.token_file}")
    browser.evaluate(
        "document.querySelector('input').value = 'x'.repeat(43); document.querySelector('form button').click()"
    )
    shown(browser, "That is not the token")
    browser.evaluate(
        f"document.querySelector('input').value = '{served.web.token}'; document.querySelector('form button').click()"
    )
    shown(browser, "attempt 0 started: 8 ranks")
    assert browser.evaluate("location.href") == f"{served.web.base}/#/run/{HUNG}/log"
    browser.visit("about:blank", 1280, False)
    browser.visit(served.web.address, 1280, False)
    shown(browser, "5 runs of yours")
    assert browser.evaluate("location.href") == f"{served.web.base}/#/"


@pytest.mark.real("chromium")
def test_a_button_acts_once_it_is_confirmed_by_the_runs_name(browser: Browser, served: Served) -> None:
    asked = len(verbs(served, MANY))
    visit(browser, served.web, f"/run/{MANY}", 360, False, "Restart")
    browser.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent === 'Restart').click()")
    said = shown(browser, "the steps since then are lost")
    assert f"Restart: {MANY}" in said and "restart" not in verbs(served, MANY)[asked:]
    browser.evaluate("[...document.querySelectorAll('dialog button')].find(b => b.textContent === 'Leave it').click()")
    wait_until(lambda: browser.evaluate("document.querySelector('dialog') === null"), 20, "the end of the question")
    browser.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent === 'Restart').click()")
    browser.evaluate("document.querySelector('dialog button.main').click()")
    shown(browser, "asked: this attempt ends")
    assert verbs(served, MANY)[asked:].count("restart") == 1


@pytest.mark.real("chromium")
def test_a_report_from_a_runs_folder_runs_nothing(browser: Browser, served: Served) -> None:
    visit(browser, served.web, f"/run/{OVER}/incidents/002-exception", 1280, False, "Report")
    browser.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent === 'Show').click()")
    wait_until(
        lambda: browser.evaluate("performance.getEntriesByType('resource').some(e => e.name.includes('/report/'))"),
        20,
        "the report",
    )
    assert browser.evaluate("document.title") == f"{OVER} · guardrun"
    # Of another origin than the page: that cannot even look into it.
    assert browser.evaluate("document.querySelector('iframe').contentDocument") is None


@pytest.mark.real("chromium")
def test_nobody_asks_where_nobody_sees_it(browser: Browser, served: Served) -> None:
    visit(browser, served.web, f"/run/{HUNG}", 1280, False, "live")
    count = "performance.getEntriesByType('resource').length"
    browser.evaluate("Object.defineProperty(document, 'hidden', {configurable: true, get: () => window.unseen})")
    browser.evaluate("window.unseen = true; document.dispatchEvent(new Event('visibilitychange'))")
    # Twice as long as from one question to the next; what was on its way may still come.
    browser.evaluate("window.before = performance.getEntriesByType('resource').length; window.late = false; "
                     "setTimeout(() => { window.late = true; }, 5000)")  # fmt: skip
    wait_until(lambda: browser.evaluate("window.late"), 20, "five seconds")
    assert browser.evaluate(count) - browser.evaluate("window.before") <= 2
    seen = browser.evaluate(count)
    browser.evaluate("window.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: browser.evaluate(count) > seen, 20, "the next question")


@pytest.mark.real("chromium")
def test_it_says_so_when_its_server_has_gone(browser: Browser, served: Served) -> None:
    another = served.start()
    visit(browser, another, f"/run/{HUNG}", 1280, False, "live", "Time a step")
    assert another.close() == ENDED and not another.token_file.exists()
    said = shown(browser, "guardctl web does not answer since")
    assert "Time a step" in said  # what was known stays


def test_ctrl_c_ends_it(served: Served) -> None:
    another = served.start()
    another.process.send_signal(signal.SIGINT)
    another.process.wait(30)
    assert another.close() == 130 and not another.token_file.exists()
