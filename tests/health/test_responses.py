"""What follows from a finding: the table, and what a user says otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guardrun.supervisor.health.base.findings import (
    DEFAULTS,
    KEYS,
    Finding,
    Response,
    host_finding,
    is_key,
    respond,
    said_for,
)

ROOT = Path(__file__).resolve().parents[2]


def finding(cause: str = "disk", key: str = "", **evidence: object) -> Finding:
    return host_finding(
        cause, "disk:sda", "errors", key=key, since_s=1.0, told_s=2.0, summary="It is broken", evidence=evidence
    )


def test_defaults_by_key_then_by_cause() -> None:
    assert finding(key="disk_io").response is Response.ISOLATE
    assert finding().response is Response.NOTE
    assert finding("unheard_of").response is Response.NOTE
    assert finding().id == "disk/disk:sda/errors" and finding().summary == "It is broken."


@pytest.mark.parametrize(
    ("responses", "said"),
    [
        ({}, None),
        ({"disk": "restart"}, Response.RESTART),
        ({"disk": "restart", "disk_io": "note"}, Response.NOTE),
        ({"disk_full": "restart"}, None),
        ({"network": "restart"}, None),
    ],
)
def test_the_users_word_the_finest_first(responses: dict[str, str], said: Response | None) -> None:
    one = finding(key="disk_io")
    assert said_for(one, responses) is said
    assert respond(one, responses).response is (said or Response.ISOLATE)


def test_one_xid_and_an_incidents_own_name() -> None:
    xid = finding("gpu_xid", xid=79)
    assert said_for(xid, {"gpu_xid": "note", "gpu_xid_79": "isolate"}) is Response.ISOLATE
    assert said_for(xid, {"gpu_xid": "note", "gpu_xid_48": "isolate"}) is Response.NOTE
    throttle = finding("throttle")
    table = {"throttle": "note", "thermal_throttle": "isolate"}
    assert said_for(throttle, table, "thermal_throttle") is Response.ISOLATE
    assert said_for(throttle, table) is Response.NOTE


def test_keys() -> None:
    assert all(is_key(key) for key in KEYS) and is_key("gpu_xid_13")
    assert not any(is_key(key) for key in ("", "gpu_xid_", "gpu_xid_9999", "gpu_xid_x", "Disk"))


def test_the_documentation_has_every_key_and_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*)\|", page, re.MULTILINE)
    told = {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}
    assert set(KEYS) - {"thermal_throttle"} <= set(told)
    assert {key: told[key].strip() for key in DEFAULTS} == {key: value.value for key, value in DEFAULTS.items()}
