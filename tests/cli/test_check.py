"""guardctl check, without the trial of the devices."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation
from guardrun.supervisor.quarantine.record_places import find_places
from guardrun.supervisor.quarantine.records import isolate_node
from tests.cli.conftest import NODE, Ctl
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def state(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUARDRUN_NODE_STATE_DIR", str(tmp_path / "state"))
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "LD_LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


def test_quick(ctl: Ctl, runs: Path) -> None:
    data = ctl.json("check")
    assert (data["node"], data["level"]) == (NODE, "quick") and data["took_s"] < 30
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


def isolate(state: Path, finding: str, age_s: float = 3600.0) -> None:
    since_s = time.time() - age_s
    isolation = Isolation(
        cause=finding.partition("/")[0], who=AUTOMATIC, since_wall_s=since_s, evidence={"finding": finding}
    )
    isolate_node(find_places(str(state), "", {}, NODE), NODE, isolation, time.time())


@pytest.fixture
def link() -> Iterator[str]:
    """A network interface that is up."""
    name = f"grd{os.getpid() % 100000}"
    run = partial(subprocess.run, check=True, capture_output=True, timeout=60)
    run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"])
    try:
        for end in (name, f"{name}p"):
            run(["ip", "link", "set", end, "up"])
        wait_until(lambda: Path(f"/sys/class/net/{name}/operstate").read_text() == "up\n", 10, "the link")
        yield name
    finally:
        run(["ip", "link", "del", name])


@pytest.mark.real("root")
@pytest.mark.real("netns")
def test_a_link_that_is_up_again_ends_its_quarantine(ctl: Ctl, state: Path, link: str) -> None:
    isolate(state, f"network/net:{link}/flapping")
    ctl("check", "--keep-quarantine", code=1)
    out = ctl("check")
    assert f"is lifted by this pre-flight: net:{link} is well again." in out and f"{NODE} is not quarantined." in out
    shown = ctl.json("node", "show")
    assert (shown["state"], shown["releases"][0]["who"]) == ("free", "preflight")
    assert shown["isolations"][0]["ended"] == f"released by preflight: net:{link} is well again"
    assert "lifted" not in ctl("check")


@pytest.mark.real("root")
@pytest.mark.real("netns")
def test_a_link_that_is_down_stays_isolated(ctl: Ctl, state: Path, link: str) -> None:
    subprocess.run(["ip", "link", "set", f"{link}p", "down"], check=True, timeout=60)
    isolate(state, f"network/net:{link}/down")
    out = ctl("check", code=1)
    assert f"{link} is lowerlayerdown" in out or f"{link} is down" in out


def test_what_was_wrong_of_late_stays_isolated(ctl: Ctl, state: Path) -> None:
    isolate(state, "disk/mount:/dev/shm/full", age_s=60.0)
    assert "something was wrong with mount:/dev/shm within the last 10 minutes" in ctl("check", code=1)


def test_a_disk_that_has_room_again_ends_its_quarantine(ctl: Ctl, state: Path) -> None:
    isolate(state, "disk/mount:/dev/shm/full")
    assert "mount:/dev/shm is well again" in ctl("check")


def test_a_device_that_throttled_must_work_before_it_is_believed(ctl: Ctl, state: Path) -> None:
    isolate(state, "throttle/gpu:GPU-1")
    assert "guardctl check --full" in ctl("check", code=1)


def test_what_only_a_person_may_lift_is_not_spoken_of(ctl: Ctl, state: Path) -> None:
    isolate(state, "gpu_xid/gpu:GPU-1/79")
    out = ctl("check", code=1)
    assert "stays" not in out and "lifted" not in out


def test_what_is_kept_where_somebody_else_writes_is_theirs(
    ctl: Ctl, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's pre-flight lifts nothing of root's."""
    system = tmp_path / "system"
    isolate(system, "disk/mount:/dev/shm/full")
    monkeypatch.setattr(find_places, "__defaults__", (system,))
    assert "stays" not in (out := ctl("check", code=1)) and "lifted" not in out
