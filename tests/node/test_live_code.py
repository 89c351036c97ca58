"""Who may have code run in a rank: this user, on this node, by this socket; and nobody else, by no other way."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import EVAL, MAX_CODE_BYTES, MAX_REQUEST_BYTES, read_whole, request_name
from guardrun.supervisor.client.live_client import LiveRefused, find_ranks, run_code
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.live_code import LiveCode, LiveCodeNode
from guardrun.supervisor.wire import live_socket
from guardrun.supervisor.wire.live_socket import LIVE_SOCKET
from tests.node.idle_node import Node
from tests.support.neighbours import NEIGHBOUR

GOOD = {"rank": 4, "code": "1 + 1", "timeout_s": 5.0, "wait_s": 5.0, "only_at_step": False, "who": "ada"}
TOLD = {"outcome": "done", "where": "step", "step": 7, "changes": ["learning rate × 2 (1 → 2) in SGD"], "result": "2"}


class LiveNode(Node):
    """With the socket."""

    def __init__(self, folder: Path, pid: int, *, is_allowed: bool = True) -> None:
        super().__init__(folder, pid)
        self.fed: list[ev.Event] = []
        self.live = LiveCode(cast(LiveCodeNode, self), is_allowed=is_allowed)

    def feed(self, event: ev.Event) -> bool:
        self.fed.append(event)
        return True

    def close(self) -> None:
        self.live.close()
        super().close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, and this user's alone."""
    with tempfile.TemporaryDirectory(prefix="guardrun-test-") as name:
        yield Path(name)


@pytest.fixture
def node(folder: Path) -> Iterator[LiveNode]:
    one = LiveNode(folder, os.getpid())
    yield one
    one.close()
    assert not (folder / LIVE_SOCKET).exists()


class Asking:
    """`guardctl eval`, in a thread."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.answer: dict[str, Any] = {}

        def ask() -> None:
            try:
                self.answer = run_code(folder, {**GOOD, **changes}, 30.0)
            except LiveRefused as error:
                self.answer = {"refused": str(error)}

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def end(self, node: LiveNode) -> dict[str, Any]:
        node.wait(lambda: not self._thread.is_alive(), "an answer")
        self._thread.join()
        return self.answer


def test_code_on_its_way_to_a_rank_and_back(node: LiveNode, folder: Path) -> None:
    asking = Asking(folder)
    assert node.asked(4) == 1
    request = read_whole(str(folder / request_name(3, 4)), 1, MAX_REQUEST_BYTES)
    arguments = {"code": "1 + 1", "timeout_s": 5.0, "wait_s": 5.0, "only_at_step": False}
    assert (request["what"], request["arguments"]) == (EVAL, arguments)
    node.take(4, 1)
    node.give(4, 1, {"told": TOLD})
    assert asking.end(node) == {"told": TOLD, "node": "node-a"}
    asked, ended = node.fed
    assert isinstance(asked, ev.HandChangeAsked) and isinstance(ended, ev.HandChangeEnded)
    assert (asked.global_ranks, asked.verb, asked.text, asked.who, asked.seconds) == ([4], EVAL, "1 + 1", "ada", 10.0)
    assert (ended.id, ended.outcome, ended.step, ended.changes) == (asked.id, "done", 7, TOLD["changes"])
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (folder, folder / LIVE_SOCKET)]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 9}, "no rank 9 on this node: there are 4-5"),
        ({"rank": True}, "not said which rank"),
        ({"code": "x" * (MAX_CODE_BYTES + 1)}, "up to 64 KB"),
        ({"code": None}, "up to 64 KB"),
        ({"timeout_s": 1e9}, "up to 60 seconds"),
        ({"wait_s": "1"}, "up to 600 seconds"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str, node: LiveNode, folder: Path) -> None:
    answer = Asking(folder, **changes).end(node)
    assert said in answer.get("error", answer.get("refused", "")) and node.fed == []
    assert node.boards[4][Field.EXAMINE_ASKED] == 0


def test_frames_that_are_none_hold_nobody_up(node: LiveNode, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_socket, "SLOW_S", 0.2)
    for data in (b"", b"\0", b"\xff" * 64, b"\0\0\0\x02[]", b"\0\0\0\x05" + b"[" * 5, b"\0\0\0\x09half"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(folder / LIVE_SOCKET))
            peer.sendall(data)
            if data != b"\0":  # that one is waited for
                peer.shutdown(socket.SHUT_WR)
            peer.settimeout(20)
            assert b"error" in peer.recv(4096)
    monkeypatch.undo()
    asking = Asking(folder, rank=9)
    assert "no rank 9" in asking.end(node)["error"]


def test_code_goes_by_no_other_way(node: LiveNode) -> None:
    """What comes by the head, or over the network, is refused where the rank is."""
    node.examinations.ask([4], EVAL, {"code": "1"}, 5.0, lambda *told: node.told.append(cast(Any, told)))
    assert node.told.pop() == ({}, {4: "code is run only for who asks on the rank's own node: guardctl eval there"})
    assert node.boards[4][Field.EXAMINE_ASKED] == 0


def test_where_it_is_forbidden_there_is_no_socket(folder: Path) -> None:
    one = LiveNode(folder, os.getpid(), is_allowed=False)
    try:
        assert not (folder / LIVE_SOCKET).exists()
        with pytest.raises(LiveRefused, match="not there to be asked"):
            run_code(folder, GOOD, 5.0)
    finally:
        one.close()


@pytest.mark.parametrize("mode", [0o711, 0o770, 0o777])
def test_in_a_folder_that_others_may_enter_nobody_listens_and_nobody_speaks(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    one = LiveNode(folder, os.getpid())
    try:
        assert not (folder / LIVE_SOCKET).exists()
        with pytest.raises(LiveRefused, match="may be entered by others"):
            run_code(folder, GOOD, 5.0)
    finally:
        one.close()
        folder.chmod(0o700)


def test_code_is_given_to_no_link_and_to_no_file(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "other"))
        other.listen()
        (folder / LIVE_SOCKET).symlink_to(folder / "other")
        with pytest.raises(LiveRefused, match="is no socket of this user"):
            run_code(folder, GOOD, 5.0)
    (folder / LIVE_SOCKET).unlink()
    (folder / LIVE_SOCKET).write_text("")
    with pytest.raises(LiveRefused, match="is no socket of this user"):
        run_code(folder, GOOD, 5.0)
    link = folder / "link"
    link.symlink_to(folder)
    with pytest.raises(LiveRefused, match="is no folder"):
        run_code(link, GOOD, 5.0)


# Strangers -----------------------------------------------------------------------------------------------------------

AS_A_STRANGER = f"""
import os, socket, struct, sys
os.setgroups([]); os.setgid({NEIGHBOUR}); os.setuid({NEIGHBOUR})
"""
SPEAK = """
with socket.socket(socket.AF_UNIX) as peer:
    try:
        peer.connect(sys.argv[1])
    except OSError as error:
        sys.exit(type(error).__name__)
    data = b'{"rank": 4, "code": "1", "timeout_s": 1, "wait_s": 1}'
    try:
        peer.sendall(struct.pack("!I", len(data)) + data)
    except BrokenPipeError:  # it has been answered, and let go
        pass
    print(peer.recv(4096)[4:].decode())
"""


@pytest.mark.real("root")
def test_a_stranger_does_not_get_there_and_is_not_heard(node: LiveNode, folder: Path) -> None:
    def speak() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", AS_A_STRANGER + SPEAK, str(folder / LIVE_SOCKET)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert speak().stderr.strip() == "PermissionError"
    folder.chmod(0o777)  # and even if somebody opens all doors
    (folder / LIVE_SOCKET).chmod(0o777)
    try:
        heard = speak()
    finally:
        folder.chmod(0o700)
    assert "code is run for user 0 alone, whose run this is, and not for user 47011" in heard.stdout, heard
    assert node.fed == [] and node.calls.empty()


SQUAT = """
with socket.socket(socket.AF_UNIX) as own:
    own.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); own.listen()
    print("here", flush=True)
    peer, _ = own.accept()
    print(repr(peer.recv(9)), flush=True)
"""


@pytest.mark.real("root")
def test_code_is_not_told_to_a_stranger_who_sits_in_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)
    command = [sys.executable, "-c", AS_A_STRANGER + SQUAT, str(folder / LIVE_SOCKET)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None and squatter.stdout.readline() == "here\n"
        folder.chmod(0o700)
        with pytest.raises(LiveRefused, match=r"is no socket of this user, but .*47011"):
            run_code(folder, GOOD, 5.0)
        os.chown(folder / LIVE_SOCKET, 0, 0)  # even where the file is this user's, who listens is not
        with pytest.raises(LiveRefused, match="and not for user 47011"):
            run_code(folder, GOOD, 5.0)
        assert squatter.stdout.readline() == "b''\n"


def test_ranks_of_a_run_are_found_by_what_they_were_started_with(folder: Path) -> None:
    hooks = f'{{"sockets": "{folder}", "eval": true}}'
    environ = {**os.environ, "GUARDRUN_RUN_ID": f"r-{folder.name}", "GUARDRUN_HOOKS": hooks, "RANK": "6"}
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as process:
        try:
            assert find_ranks(f"r-{folder.name}") == {6: (folder, True)}
            assert find_ranks("another") == {}
        finally:
            process.communicate(b"\n")
