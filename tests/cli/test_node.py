"""guardctl node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.verbs.node import is_for_one_user, parse_until
from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation, Record
from guardrun.supervisor.quarantine.record_places import Place, find_places
from guardrun.supervisor.quarantine.records import Written, isolate_node
from tests.cli.conftest import NODE, Ctl


@pytest.fixture
def places(tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    monkeypatch.setenv("GUARDRUN_NODE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SUDO_USER", raising=False)
    return find_places(str(tmp_path / "state"), "", {}, NODE)


def isolate(places: list[Place], who: str, node: str = NODE) -> None:
    isolation = Isolation(
        cause="gpu_ecc",
        who=who,
        since_wall_s=1_795_000_000.0,
        summary="9 uncorrectable errors\x1b[31m on gpu 1.",
        evidence={"ecc_volatile_uncorrected": 9},
        run_id="run-7",
        incident="002",
    )
    isolate_node(places, node, isolation, time.time())


def test_a_free_node(ctl: Ctl, places: list[Place]) -> None:
    data = ctl.json("node", "list")
    assert data["troubles"] == [] and [(node["node"], node["state"]) for node in data["nodes"]] == [(NODE, "free")]
    assert ctl("node", "list").split() == ["Node", "State", NODE, "free"]
    assert "free" in ctl("node", "show")


def test_what_guardrun_isolated(ctl: Ctl, places: list[Place]) -> None:
    isolate(places, AUTOMATIC)
    for out in (ctl("node", "list"), ctl("node", "show", NODE)):
        for part in (NODE, "quarantined", "gpu_ecc", "guardrun", "2026-11-18", "9 uncorrectable errors"):
            assert part in out, part
        assert "\x1b" not in out
    assert "ecc_volatile_uncorrected" in ctl.out and "run run-7 incident 002" in ctl.out
    data = ctl.json("node", "show")
    assert (data["state"], data["isolations"][0]["evidence"]) == ("quarantined", {"ecc_volatile_uncorrected": 9})
    assert ctl.json("node", "release", NODE, "--reason", "new board")["state"] == "free"
    assert "new board" in ctl("node", "show")


def test_a_person_isolates_and_releases(ctl: Ctl, places: list[Place]) -> None:
    out = ctl("node", "isolate", NODE, "--cause", "fans", "--reason", "Fan 3 is dead.", "--until", "2h")
    assert "new runs are refused" in out and str(places[0].path) in out
    [one] = ctl.json("node", "show")["isolations"]
    assert (one["cause"], one["summary"], one["holds"]) == ("fans", "Fan 3 is dead.", True)
    assert one["who"] not in ("", AUTOMATIC) and one["until"] > one["since"]
    ctl("node", "release", NODE)
    assert ctl.json("node", "list")["nodes"][0]["state"] == "free"


def test_somebody_elses_is_not_lifted_by_accident(ctl: Ctl, places: list[Place]) -> None:
    isolate(places, "an-admin")
    ctl("node", "release", NODE, code=1)
    assert "isolated by an-admin for gpu_ecc" in ctl.err and "--override" in ctl.err
    assert ctl.json("node", "show")["state"] == "quarantined"
    ctl("node", "release", NODE, "--override")
    assert ctl.json("node", "show")["state"] == "free"


def test_with_sudo_the_person_is_named(ctl: Ctl, places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", AUTOMATIC)
    ctl("node", "isolate", NODE)
    [one] = ctl.json("node", "show")["isolations"]
    assert (one["who"], one["cause"]) == ("user guardrun", "manual")


def test_other_nodes_need_a_folder_that_they_see(
    ctl: Ctl, places: list[Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl("node", "isolate", "node-b", code=1)
    assert "shared_dir" in ctl.err
    monkeypatch.setenv("GUARDRUN_NODE_SHARED_DIR", str(tmp_path / "shared"))
    ctl("node", "isolate", "node-b")
    states = {node["node"]: node["state"] for node in ctl.json("node", "list")["nodes"]}
    assert states == {NODE: "free", "node-b": "quarantined"}
    assert (tmp_path / "shared" / "quarantine" / "node-b.json").is_file()


def test_what_cannot_be_read_is_not_called_free(ctl: Ctl, places: list[Place]) -> None:
    isolate(places, AUTOMATIC)
    for path in places[0].path.parent.glob("quarantine.json*"):
        path.write_text("{")
    data = ctl.json("node", "show")
    assert data["state"] == "unknown" and len(data["troubles"]) == 1
    assert "warning: " in ctl("node", "list") and "unknown" in ctl.out


def test_who_is_told_that_it_holds_for_them_alone(tmp_path: Path) -> None:
    own, shared = Place(tmp_path / "quarantine.json", is_written=True), Place(tmp_path / "x", is_shared=True)
    roots = Place(SYSTEM_FOLDER / "quarantine.json")
    kept = Written(Record(), [own.path], [])
    assert is_for_one_user([own, roots], kept)
    assert not is_for_one_user([own], kept)
    assert not is_for_one_user([own, roots, shared], kept._replace(paths=[own.path, shared.path]))
    assert not is_for_one_user([own, roots], kept._replace(paths=[]))


def test_nowhere_to_write(ctl: Ctl, places: list[Place]) -> None:
    places[0].path.parent.write_text("in the way")
    ctl("node", "isolate", NODE, code=1)
    assert "could not be isolated" in ctl.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1d12h", 129_600), ("30s", 30), ("1970-01-01T02:00Z", 7100)]
)
def test_until(text: str, seconds: float) -> None:
    assert parse_until(text, 100.0) == 100.0 + seconds


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "-1h", "0h", "1970-01-01T00:00Z", "9" * 30 + "d", "2h!"])
def test_until_when(text: str) -> None:
    with pytest.raises(CtlError, match="expected a duration"):
        parse_until(text, 100.0)


@pytest.mark.parametrize(
    "arguments", [["isolate"], ["isolate", NODE, "--until", "soon"], ["isolate", NODE, "--cause", "a b"], ["burn"], []]
)
def test_mistakes(ctl: Ctl, places: list[Place], arguments: list[str]) -> None:
    is_parsers = arguments in (["isolate"], ["burn"], [])
    ctl("node", *arguments, code=2 if is_parsers else 1)
    assert ctl.err and not places[0].path.exists()
