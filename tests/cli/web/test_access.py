"""Who gets in, and who is let go: `guardctl web`'s rules, without a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.web.access import PAGE_HEADERS, REPORT_HEADERS, Headers, find_fault
from guardrun.supervisor.cli.web.reports import MAX_TICKETS, TICKET_S, Tickets
from guardrun.supervisor.cli.web.runs import MAX_WATCHED, Runs
from guardrun.supervisor.cli.web.server import MAX_CONNECTIONS, Connections
from guardrun.supervisor.cli.web.threads import Latest, Threads
from tests.cli.conftest import NODE, make_run

TOKEN = "a-token-that-nobody-guesses"
GOOD = {"host": "127.0.0.1:8760", "x-guardrun-token": TOKEN, "origin": "http://127.0.0.1:8760"}


def fault(method: str, path: str, **changes: str | None) -> int:
    """The status that is answered; 0: it is let in."""
    sent = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    raw = [(name.encode(), value.encode()) for name, value in sent.items() if value is not None]
    found = find_fault(method, path, Headers(raw), TOKEN)
    return found.status if found else 0


@pytest.mark.parametrize("host", ["127.0.0.1:8760", "localhost:9000", "LOCALHOST", "[::1]:8760", "[::1]"])
def test_names_of_loopback_get_in_whatever_the_port(host: str) -> None:
    assert fault("GET", "/", host=host) == 0
    assert fault("POST", "/api/runs/a/order", host=host, origin=f"http://{host}") == 0


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8760", "127.0.0.1:80:80", "0"]
)
def test_no_other_name_leads_here(host: str | None) -> None:
    assert fault("GET", "/", host=host) == fault("GET", "/api/runs", host=host) == 421


@pytest.mark.parametrize("token", [None, "", "a", TOKEN[:-1], f"{TOKEN}a", TOKEN.upper(), "é"])
def test_without_the_token_nothing_is_answered(token: str | None) -> None:
    assert fault("GET", "/api/runs", x_guardrun_token=token) == 403
    assert fault("POST", "/api/runs/a/order", x_guardrun_token=token) == 403
    assert fault("GET", "/page/main.js", x_guardrun_token=token) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": None},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8760"},
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
)
def test_what_acts_comes_from_this_page_alone(changes: dict[str, str | None]) -> None:
    assert fault("POST", "/api/runs/a/order", sec_fetch_site="same-origin") == 0
    assert fault("POST", "/api/runs/a/order", **changes) == 403
    if "sec_fetch_site" in changes:
        assert fault("GET", "/api/runs", **changes) == 403


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "get"])
def test_other_methods_are_none(method: str) -> None:
    assert fault(method, "/api/runs") == 405


def test_a_header_that_comes_twice_is_none() -> None:
    raw = [(name.encode(), value.encode()) for name, value in GOOD.items()]
    for name in ("host", "x-guardrun-token", "origin"):
        twice = [*raw, (name.encode(), GOOD[name].encode())]
        assert find_fault("POST", "/api/runs/a/order", Headers(twice), TOKEN) is not None
    many = [*raw, *((b"x-a", b"b") for _ in range(100))]
    found = find_fault("GET", "/", Headers(many), TOKEN)
    assert found is not None and found.status == 431
    assert fault("GET", f"/{'a' * 2000}") == 414


def test_no_script_that_stands_in_a_page_runs() -> None:
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    shut_in = REPORT_HEADERS["Content-Security-Policy"]
    assert shut_in.startswith("sandbox;") and "script" not in shut_in and "allow" not in shut_in


def test_a_report_is_given_out_once() -> None:
    now_s = 0.0
    tickets = Tickets(lambda: now_s)
    ticket = tickets.add(b"page")
    assert tickets.redeem("another") is None
    assert tickets.redeem(ticket) == b"page"
    assert tickets.redeem(ticket) is None
    late = tickets.add(b"late")
    now_s = TICKET_S + 1
    assert tickets.redeem(late) is None
    many = [tickets.add(b"%d" % number) for number in range(MAX_TICKETS + 5)]
    assert [tickets.redeem(one) is not None for one in many] == [False] * 5 + [True] * MAX_TICKETS


class Wire:
    """A connection's two ends, as far as they matter here."""

    def __init__(self, number: int) -> None:
        self.client = ("127.0.0.1", number)
        self.transport = self
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_strangers_make_room_for_whoever_has_the_token() -> None:
    connections: Any = Connections()
    trusted, *strangers = wires = [Wire(number) for number in range(MAX_CONNECTIONS + 20)]
    for number, wire in enumerate(wires):
        connections.add(wire)
        if number == 0:
            connections.trust(trusted.client)
    assert [wire.is_aborted for wire in strangers] == [True] * 20 + [False] * (MAX_CONNECTIONS - 1)
    assert not trusted.is_aborted


def test_who_says_nothing_is_let_go() -> None:
    connections: Any = Connections()
    silent, asking = Wire(1), Wire(2)
    connections.add(silent)
    connections.add(asking)
    connections.expect(silent.client, -1.0)
    connections.expect(asking.client, 60.0)
    connections.sweep()
    assert (silent.is_aborted, asking.is_aborted) == (True, False)


def test_however_many_ask_the_work_is_done_once_when_it_is_due() -> None:
    now_s, done = 0.0, []

    def work() -> tuple[bytes, float]:
        done.append(now_s)
        return b"%d" % len(done), 2.0

    async def story() -> list[bytes | None]:
        nonlocal now_s
        latest = Latest(Threads(2), work, lambda: now_s)
        found = list(await asyncio.gather(*(latest.ask(5.0, 5.0) for _ in range(50))))
        now_s = 1.9
        found.append(await latest.ask(5.0, 5.0))
        now_s = 2.0
        found.append(await latest.ask(5.0, 5.0))
        latest.hurry()
        found.append(await latest.ask(5.0, 5.0))
        return found

    assert asyncio.run(story()) == [b"1"] * 51 + [b"2", b"3"]


def test_one_run_too_many_pushes_out_none_that_is_looked_at(tmp_path: Path) -> None:
    for number in range(MAX_WATCHED + 1):
        make_run(tmp_path, f"run-{number}")

    async def story() -> list[str]:
        runs = Runs(tmp_path, NODE, {})
        for number in range(MAX_WATCHED):
            await runs.find(f"run-{number}")
        with pytest.raises(CtlError, match="close the page of another"):
            await runs.find(f"run-{MAX_WATCHED}")
        return [(await runs.find(f"run-{number}")).watched.run_dir.name for number in range(MAX_WATCHED)]

    assert len(asyncio.run(story())) == MAX_WATCHED
