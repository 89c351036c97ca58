"""The record of quarantine in real files: torn, unreadable, shared, read-only, dead, written by several at once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.base.node_state import may_write, user_folder
from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation, Record, holding
from guardrun.supervisor.quarantine import record_file, records
from guardrun.supervisor.quarantine.record_places import Place, find_places, may_hold_any, names_here
from guardrun.supervisor.quarantine.records import (
    change,
    isolate_node,
    read_all,
    read_holding,
    read_node,
    release_node,
)

NODE = "node-a"
NOW_S = 1_795_000_000.0
ISOLATION = Isolation(cause="gpu_xid", who=AUTOMATIC, since_wall_s=NOW_S - 60, summary="Xid 79", run_id="run-1")


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    return find_places(str(tmp_path / "state"), str(tmp_path / "shared"), {}, NODE, tmp_path / "state")


@pytest.fixture(autouse=True)
def long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread takes longer to read a file than it may."""
    monkeypatch.setattr(records, "SHARED_PATIENCE_S", 60.0)
    monkeypatch.setattr(records, "WRITE_PATIENCE_S", 120.0)


def held(places: list[Place], node: str = NODE) -> list[str]:
    isolations, troubles = read_holding(places, node, NOW_S)
    assert troubles == []
    return [one.cause for one in isolations]


# Where ----------------------------------------------------------------------------------------------------------


def test_roots_record_holds_for_everybody_and_a_users_for_the_user(tmp_path: Path) -> None:
    system, home = tmp_path / "var" / "lib" / "guardrun", tmp_path / "home"
    environ = {"HOME": str(home)}
    user = home / ".local" / "state" / "guardrun" / "quarantine.json"
    as_root = find_places("", "", environ, NODE, system)
    assert [(place.path, place.is_written) for place in as_root] == [
        (system / "quarantine.json", True),
        (user, False),
    ]
    (tmp_path / "var").write_text("no folder")  # nobody, root neither, may write below
    as_user = find_places("", "", environ, NODE, system)
    assert [(place.path, place.is_written) for place in as_user] == [(user, True), (system / "quarantine.json", False)]
    assert read_node(as_user, NODE) == (Record(), [])


def test_one_folder_where_one_is_configured(tmp_path: Path) -> None:
    """Root's is read besides: it holds whatever a user configures."""
    system = tmp_path / "var"
    places = find_places(str(tmp_path), str(tmp_path / "all"), {}, "rack1/../node", system)
    assert [place.path for place in places] == [
        tmp_path / "quarantine.json",
        system / "quarantine.json",
        tmp_path / "all" / "quarantine" / "rack1%2F..%2Fnode.json",
    ]


def test_what_a_node_may_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node-a.cluster.local")
    assert names_here({"SLURMD_NODENAME": "n7"}) == ["n7", "node-a.cluster.local", "node-a"]
    assert names_here({"SLURMD_NODENAME": "node-a"}) == ["node-a", "node-a.cluster.local"]


def test_everybody_may_read_roots_record_whatever_its_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        isolate_node([Place(tmp_path / "guardrun" / "quarantine.json", is_written=True)], NODE, ISOLATION, NOW_S)
    finally:
        os.umask(before)
    assert oct((tmp_path / "guardrun").stat().st_mode & 0o777) == "0o755"
    assert oct((tmp_path / "guardrun" / "quarantine.json").stat().st_mode & 0o777) == "0o644"


def test_the_users_state_folder() -> None:
    assert user_folder({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/guardrun")
    assert user_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/guardrun")


# What is kept ---------------------------------------------------------------------------------------------------


def test_isolated_and_released_on_the_node_and_in_the_shared_folder(places: list[Place]) -> None:
    written, refused = isolate_node(places, NODE, ISOLATION, NOW_S)
    assert (refused, written.troubles) == ("", [])
    assert written.paths == [place.path for place in places]
    for place in places:
        assert held([place]) == ["gpu_xid"]
        assert oct(place.path.stat().st_mode & 0o777) == "0o644"  # users must see why they are refused
    written, left = release_node(places, NODE, "bob", NOW_S, "cable replaced")
    assert left == [] and held(places) == []
    assert isolate_node(places, NODE, ISOLATION, NOW_S)[1].startswith("released by bob")
    assert not [
        path for place in places for path in place.path.parent.iterdir() if "quarantine.json." in path.name[1:5]
    ]


def test_what_one_place_says_counts_whatever_another_does_not(places: list[Place]) -> None:
    state, shared = places
    isolate_node([shared], NODE, ISOLATION, NOW_S)
    assert held(places) == ["gpu_xid"] and held([state]) == []
    isolate_node([shared], NODE, Isolation(cause="fans", who="alice", since_wall_s=NOW_S - 60), NOW_S)
    release_node([state], NODE, "bob", NOW_S, is_overriding=True)
    assert held(places) == ["fans"], "a release beats guardrun's older evidence anywhere, a person's only by name"
    release_node(places, NODE, "bob", NOW_S, is_overriding=True)
    assert held([shared]) == []


def test_nodes_are_apart(places: list[Place], tmp_path: Path) -> None:
    others = find_places(str(tmp_path / "state"), str(tmp_path / "shared"), {}, "node-b", tmp_path / "state")
    isolate_node(places, NODE, ISOLATION, NOW_S)
    isolate_node(others[1:], "node-b", ISOLATION, NOW_S)
    assert held(places, "node-b") == [] and held(others, "node-b") == ["gpu_xid"]
    known = read_all(places)
    assert known.troubles == [] and sorted(known.records) == [NODE, "node-b"]
    assert all(holding(record, NOW_S) for record in known.records.values())


def test_nothing_is_written_where_nothing_was_added(places: list[Place]) -> None:
    assert change(places, NODE, lambda record: record, NOW_S).paths == []
    assert not places[0].path.parent.exists() and not may_hold_any(places[:1])
    isolate_node(places[:1], NODE, ISOLATION, NOW_S)
    assert may_hold_any(places[:1])


# What goes wrong ------------------------------------------------------------------------------------------------

BREAKS: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * 4096),
    "not JSON": lambda path: path.write_bytes(b"\xff\xfe quarantine"),
    "of another kind": lambda path: path.write_text("[1, 2]"),
    "too deep": lambda path: path.write_text('{"nodes":' + "[" * 100_000),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_spoilt_file_is_read_from_its_copy_and_set_aside_by_the_next_writer(places: list[Place], how: str) -> None:
    place = places[0]
    isolate_node([place], NODE, ISOLATION, NOW_S)
    BREAKS[how](place.path)
    before = sorted(path.name for path in place.path.parent.iterdir())
    isolations, troubles = read_holding([place], NODE, NOW_S)
    assert [one.cause for one in isolations] == ["gpu_xid"]
    assert len(troubles) == 1 and str(place.path) in troubles[0] and "its copy is used" in troubles[0]
    assert before == sorted(path.name for path in place.path.parent.iterdir()), "who reads changes nothing"
    isolate_node([place], NODE, Isolation(cause="disk", who="alice", since_wall_s=NOW_S), NOW_S)
    assert held([place]) == ["gpu_xid", "disk"]
    aside = list(place.path.parent.glob("quarantine.json.corrupt-*"))
    assert len(aside) == (0 if how == "gone" else 1)


@pytest.mark.parametrize("spoil_copy", [lambda copy: copy.write_text("{"), Path.unlink], ids=["corrupt", "gone"])
def test_neither_file_nor_copy_is_told_and_never_passes_for_free(
    places: list[Place], spoil_copy: Callable[[Path], object]
) -> None:
    place = places[0]
    isolate_node([place], NODE, ISOLATION, NOW_S)
    place.path.write_text("{")
    spoil_copy(place.path.with_name("quarantine.json.copy"))
    isolations, troubles = read_holding([place], NODE, NOW_S)
    assert isolations == [] and "is corrupt" in troubles[0] and "quarantine is not known from it" in troubles[0]
    assert read_all([place]).troubles == troubles


def test_one_entry_that_cannot_be_read_spoils_no_other(places: list[Place]) -> None:
    place = places[0]
    isolate_node([place], NODE, ISOLATION, NOW_S)
    document = json.loads(place.path.read_text())
    document["nodes"]["node-b"] = {"isolations": [{"cause": 3}]}
    place.path.write_text(json.dumps(document))
    record, troubles = read_node([place], NODE)
    assert holding(record, NOW_S) and len(troubles) == 1 and "node-b" in troubles[0]
    written, _ = isolate_node([place], "node-b", ISOLATION, NOW_S)
    assert any("as it was" in trouble for trouble in written.troubles)
    assert held([place]) == held([place], "node-b") == ["gpu_xid"]


def test_a_newer_guardruns_file_is_read_and_not_written(places: list[Place]) -> None:
    place = places[0]
    isolate_node([place], NODE, ISOLATION, NOW_S)
    document = json.loads(place.path.read_text())
    document["schema"], document["nodes"][NODE]["isolations"][0]["colour"] = 2, "red"
    place.path.write_text(json.dumps(document))
    assert held([place]) == ["gpu_xid"]
    with pytest.raises(OSError, match="newer guardrun"):
        release_node([place], NODE, "bob", NOW_S)
    assert "red" in place.path.read_text()


def test_where_one_place_cannot_be_written_the_other_is(places: list[Place]) -> None:
    state, _ = places
    state.path.parent.parent.mkdir(parents=True, exist_ok=True)
    state.path.parent.write_text("in the way")
    written, _ = isolate_node(places, NODE, ISOLATION, NOW_S)
    assert written.paths == [places[1].path] and str(state.path) in written.troubles[0]
    with pytest.raises(OSError):
        isolate_node([state], NODE, ISOLATION, NOW_S)


@pytest.mark.real("mount")
def test_a_read_only_and_a_full_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        place = Place(folder / "quarantine.json", is_written=True)
        isolate_node([place], NODE, ISOLATION, NOW_S)
        with pytest.raises(OSError, match="No space left"), (folder / "fill").open("wb") as file:
            file.write(b"x" * (1 << 20))
        big = Isolation(cause="disk", who="alice", since_wall_s=NOW_S, evidence={"log": "x" * 40_000})
        with pytest.raises(OSError):
            isolate_node([place], NODE, big, NOW_S)
        assert held([place]) == ["gpu_xid"], "as it was before"
        (folder / "fill").unlink()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(OSError, match="Read-only"):
            release_node([place], NODE, "bob", NOW_S)
        assert held([place]) == ["gpu_xid"] and not may_write(folder)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.real("root")
def test_a_file_that_this_user_may_not_read_is_told(tmp_path: Path) -> None:
    """In a process of another user: root reads everything."""
    place = Place(tmp_path / "quarantine.json", is_written=True)
    isolate_node([place], NODE, ISOLATION, NOW_S)
    for path in (place.path, place.path.with_name("quarantine.json.copy")):
        path.chmod(0o600)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from guardrun.supervisor.quarantine.records import read_holding\n"
        "from guardrun.supervisor.quarantine.record_places import Place\n"
        "folder = os.open(sys.argv[1], os.O_PATH); os.setgid(65534); os.setuid(65534)\n"
        "path = Path(f'/proc/self/fd/{folder}/quarantine.json')\n"
        "print(read_holding([Place(path)], 'node-a', 0.0))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert "cannot be read (Permission denied)" in done.stdout


def test_a_dead_shared_folder_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe that nobody writes never returns, as nothing does on a dead mount."""
    monkeypatch.setattr(records, "SHARED_PATIENCE_S", 1.0)
    place = Place(tmp_path / "quarantine" / f"{NODE}.json", is_shared=True)
    place.path.parent.mkdir()
    os.mkfifo(place.path)
    try:
        _, troubles = read_node([place], NODE)
        assert len(troubles) == 1 and "does not answer" in troubles[0]
        monkeypatch.setattr(records, "SHARED_PATIENCE_S", 60.0)
        began_s = time.monotonic()
        assert read_node([place], NODE) == (Record(), troubles)
        with pytest.raises(OSError, match="does not answer"):
            isolate_node([place._replace(is_written=True)], NODE, ISOLATION, NOW_S)
        assert time.monotonic() - began_s < 30.0, "not asked again so soon"
    finally:
        for pipe in (place.path, place.path.with_name(f"{NODE}.json.copy")):  # lets the reader go
            if pipe.exists():
                pipe.open("wb").close()
        join_readers()


def join_readers() -> None:
    for thread in threading.enumerate():
        if thread.name == "collect":
            thread.join(60)


# Several writers ------------------------------------------------------------------------------------------------

WRITER = """
import sys
from guardrun.supervisor.health.quarantine_rules import Isolation
from guardrun.supervisor.quarantine import record_file, records
from guardrun.supervisor.quarantine.record_places import find_places
from guardrun.supervisor.quarantine.records import isolate_node
record_file.LOCK_PATIENCE_S = records.SHARED_PATIENCE_S = records.WRITE_PATIENCE_S = 250.0
state, shared, who = sys.argv[1:]
places = find_places(state, shared, {}, "node-a")
sys.stdin.read()
for n in range(8):
    isolation = Isolation(cause=f"cause-{n}", who=who, since_wall_s=1000.0 + n)
    written, refused = isolate_node(places, "node-a", isolation, 2000.0)
    assert not refused and not written.troubles and len(written.paths) == 2, (refused, written)
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    arguments = [str(tmp_path / "state"), str(tmp_path / "shared")]
    started = [
        subprocess.Popen([sys.executable, "-c", WRITER, *arguments, who], stdin=subprocess.PIPE)
        for who in ("alice", "bob")
    ]
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_two_writers_at_once_lose_nothing(writers: list[subprocess.Popen[bytes]], places: list[Place]) -> None:
    for one in writers:
        assert one.stdin is not None
        one.stdin.close()
        one.stdin = None
    while any(one.poll() is None for one in writers):
        read_holding(places, NODE, NOW_S)
        _, troubles = read_node(places, NODE)
        assert troubles == [], "a reader sees the old file or the new one"
        time.sleep(0.005)
    assert [one.returncode for one in writers] == [0, 0]
    for place in places:
        record, troubles = read_node([place], NODE)
        assert troubles == [] and len(record.isolations) == 16


def test_a_lock_that_is_never_given_back_holds_up_nothing(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "LOCK_PATIENCE_S", 0.1)
    place = places[0]
    place.path.parent.mkdir()
    with place.path.with_name(".quarantine.json.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        written, _ = isolate_node([place], NODE, ISOLATION, NOW_S)
    assert held([place]) == ["gpu_xid"] and "locked by somebody" in written.troubles[0]


def test_asking_costs_next_to_nothing_where_nothing_is_quarantined(places: list[Place]) -> None:
    took_s = []
    for _ in range(20):
        began_s = time.thread_time()
        assert not may_hold_any(places[:1])
        took_s.append(time.thread_time() - began_s)
    assert sorted(took_s)[10] < 0.001
