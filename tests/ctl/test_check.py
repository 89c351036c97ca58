"""guardctl check, without the trial of the devices."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from guardrun.supervisor.core.node.quarantine import AUTOMATIC, Isolation
from guardrun.supervisor.node.places import find_places
from guardrun.supervisor.node.quarantine import isolate_node
from tests.ctl.conftest import NODE, Ctl


@pytest.fixture(autouse=True)
def state(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUARDRUN_NODE_STATE_DIR", str(tmp_path / "state"))
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "LD_LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


def test_quick(ctl: Ctl, runs: Path) -> None:
    data = ctl.json("check")
    assert (data["node"], data["level"]) == (NODE, "quick") and data["took_s"] < 3
    assert data["verdict"] in ("ok", "note", "warn")
    for one in data["remarks"]:
        assert set(one) == {"check", "severity", "summary", "advice", "evidence"}
        assert one["summary"] and (one["advice"] or one["severity"] in ("ok", "note"))
    out = ctl("check")
    assert "quarantine" in out and f"{NODE} is not quarantined." in out
    assert "fit for a run" in out or "A run may start here" in out


def test_what_is_warned_of_comes_first_with_what_to_do(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    out = ctl("check")
    assert "something may hurt it" in out
    lines = [line for line in out.splitlines() if "nosuch0" in line]
    assert len(lines) == 1 and lines[0].startswith("warn") and "→ Correct GLOO_SOCKET_IFNAME" in lines[0]


def test_a_port_in_use_is_a_no(ctl: Ctl) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        port = str(one.getsockname()[1])
        assert ctl.json("check", "--master-port", port, code=1)["verdict"] == "refuse"
        assert ctl("check", "--master-port", port, code=1).splitlines()[1].startswith("refuse")


def test_a_quarantined_node_is_a_no(ctl: Ctl, state: Path) -> None:
    isolation = Isolation(cause="gpu_xid", who=AUTOMATIC, since_wall_s=time.time(), summary="Xid 79.")
    isolate_node(find_places(str(state), "", {}, NODE), NODE, isolation, time.time())
    out = ctl("check", code=1)
    assert f"{NODE} is quarantined: gpu_xid (Xid 79), isolated by guardrun." in out
    assert f"guardctl node release {NODE}" in out and "would start nothing" in out


def test_mistakes(ctl: Ctl, tmp_path: Path) -> None:
    ctl("check", "--nproc-per-node", "many", code=2)
    (tmp_path / "guardrun.toml").write_text("[preflight]\nlevel = 3\n")
    ctl("check", code=1)
    assert "preflight.level" in ctl.err
