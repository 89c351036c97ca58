"""Whatever goes wrong with the warm process, ranks are started as ever, and it is written down once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from guardrun.hooks.beat.imports_report import write
from guardrun.hooks.warm.warm_process import Imports
from guardrun.hooks.wire.board import import_names
from guardrun.launcher.base.terminal_lines import Log
from guardrun.launcher.warm import warm_process
from guardrun.launcher.warm.warm_process import ForkedProcess, WarmError, WarmProcess
from guardrun.launcher.warm.warm_ranks import ENDED_FILE, LEFT_OUT_FILE, TRIES, WarmRanks, takes_warm_ranks
from guardrun.supervisor.wire.warm_state import WARM_FILE, WarmState, read_warm_state
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from guardrun.hooks.rank.rank import Rank

pytestmark = pytest.mark.cold


class Lines:
    """Instead of guardrun.log."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Any]]] = []

    def write(self, event: str, **fields: Any) -> None:
        self.written.append((event, fields))

    def reasons(self) -> list[str]:
        return [fields["why"] for event, fields in self.written if event == "warm_given_up"]


def make(folder: Path, code: str = "", free_bytes: int = 0) -> tuple[WarmRanks, Lines]:
    """Ranks whose warm process is a Python that runs this code."""
    for name in import_names(2):
        (folder / name).touch()
    lines = Lines()
    ranks = WarmRanks([sys.executable, "-c", code], folder, free_bytes, 2, cast("Log", lines))
    ranks.note_environment(os.environ, {})
    return ranks, lines


def answering(text: str) -> str:
    return (
        "import os, socket\n"
        "channel = socket.socket(fileno=int(os.environ['GUARDRUN_WARM']))\n"
        f"channel.recv(9999)\nchannel.send({text.encode()!r})\nchannel.recv(9999)\n"
    )


def turn_until_over(ranks: WarmRanks) -> None:
    def turn() -> bool:
        ranks.turn(0.0, is_used=True)
        return ranks.is_over

    wait_until(turn, 30, "it to be given up")
    assert ranks.pids() == set() and not ranks.begin()


def test_one_that_ends_at_once_is_given_up_with_a_word(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path, "raise SystemExit(3)")
    turn_until_over(ranks)
    ranks.turn(9.0, is_used=True)
    assert lines.reasons() == ["the warm process has ended"]


def test_what_is_no_state_of_it_is_none(tmp_path: Path) -> None:
    assert read_warm_state(tmp_path) is None
    for data in (b"", b"[]", b'{"state": 3}', b'{"state": "ready", "modules": "' + b"9" * 100_000 + b'"}'):
        (tmp_path / WARM_FILE).write_bytes(data)
        assert read_warm_state(tmp_path) is None, data[:40]


def test_one_that_says_why_it_is_of_no_use_is_quoted(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path, answering('{"useless": "no reason"}'))
    turn_until_over(ranks)
    assert lines.reasons() == ["no reason"]
    assert read_warm_state(tmp_path) == WarmState(state="given up", why="no reason")


def test_leaving_out_has_an_end(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path, answering('{"again": 1, "why": {"m": "it starts a thread"}}'))
    turn_until_over(ranks)
    assert [event for event, _ in lines.written].count("warm_started") == TRIES
    assert lines.reasons() == ["{'m': 'it starts a thread'}"]
    assert not (tmp_path / LEFT_OUT_FILE).exists()


def test_none_is_started_where_memory_is_short_or_nobody_trains(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path, "", free_bytes=1 << 60)
    ranks.turn(0.0, is_used=False)
    assert ranks.pids() == set() and not ranks.is_over
    ranks.turn(100.0, is_used=True)
    assert ranks.is_over and "warm_free_mb" in lines.reasons()[0]


def test_what_any_rank_sets_counts_and_none_is_started_before_all_have_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BY_ALL", "1")
    ranks, _ = make(tmp_path)
    before = {name: value for name, value in os.environ.items() if name != "SET_BY_ALL"}
    for local, path in enumerate(ranks._reports()):
        path.unlink()
        ranks.turn(0.0, is_used=True)
        assert ranks.pids() == set()
        if local == 1:
            monkeypatch.setenv("SET_BY_SECOND", "1")
        write(cast("Rank", SimpleNamespace(sockets=str(tmp_path), local_rank=local)), before)
    told = Imports(cast("Any", None), {"imports": ranks._reports(), "left_out": tmp_path / LEFT_OUT_FILE})
    assert sorted(told._changed) == ["SET_BY_ALL", "SET_BY_ALL", "SET_BY_SECOND"]
    assert told._origins["json"] == json.__spec__.origin


def test_one_that_does_not_fork_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_process, "FORK_S", 60.0)
    ranks, lines = make(tmp_path, answering('{"ready": {"modules": 1}}'))

    def is_ready() -> bool:
        ranks.turn(0.0, is_used=True)
        return ranks.is_ready

    wait_until(is_ready, 30, "it to be ready")
    assert read_warm_state(tmp_path) == WarmState(state="ready", modules=1)
    assert not ranks.begin() and ranks.is_over
    assert lines.reasons() == ["the warm process has ended"]


def test_a_rank_that_falls_soon_after_its_fork_is_the_last(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path)
    ranks._began = {7: 1e12, 8: 1e12}
    ranks.note_exit(7, 0)
    assert not ranks.is_over
    ranks.note_exit(8, -11)
    assert ranks.is_over and "ended with -11" in lines.reasons()[0]


def test_why_a_rank_could_not_go_on_is_told_with_its_end(tmp_path: Path) -> None:
    ranks, lines = make(tmp_path)
    ranks._began = {7: 1e12, 8: 1e12, 9: -1e12}
    assert ranks.forked() == {7, 8, 9}
    assert ranks.note_exit(7, 1) == "" and "ended with 1" in lines.reasons()[0], "it says nothing"
    (tmp_path / ENDED_FILE).write_text("heavy reads HEAVY_SETTING")
    assert ranks.note_exit(8, 0) == "" and ranks.note_exit(6, 1) == "", "it ended well; it was executed"
    assert ranks.note_exit(9, 1) == "heavy reads HEAVY_SETTING", "after hours, too"


def test_only_plain_pythons_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes_warm_ranks(sys.executable, ["-u", "train.py"])
    assert not takes_warm_ranks("train.sh", ["-u"])
    assert not takes_warm_ranks(len, ["-u"])
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert not takes_warm_ranks(sys.executable, ["-u", "train.py"])


def test_a_forked_process_is_waited_for_as_subprocess_does() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    forked = ForkedProcess(child.pid, ["x"])
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    forked.kill()
    assert forked.wait(30) == -9 and forked.poll() == -9
    child.returncode = -9


def test_its_socket_has_no_name_that_a_neighbour_could_know(tmp_path: Path) -> None:
    process = WarmProcess([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), {})
    try:
        with socket.socket(fileno=os.dup(process.fileno())) as ours:
            assert (ours.getsockname(), ours.getpeername()) == ("", "")
    finally:
        process.close()


def test_nobody_waits_where_nothing_was_forked(tmp_path: Path) -> None:
    process = WarmProcess([sys.executable, "-c", ""], dict(os.environ), {})
    with pytest.raises(WarmError):
        process.claim([], {}, [])
    process.close()
