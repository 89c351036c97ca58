"""guardctl asking a supervisor, over a real socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.cli.verbs import order
from guardrun.supervisor.client import supervisor_client
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import STATUS, Ctl, FakeSupervisor, stacks_answer


def test_status(ctl: Ctl, live: FakeSupervisor) -> None:
    out = ctl("status")
    for part in ("live-1", "training", "attempt 1", "2 min 5 s", "1 restart", "93%", "step 100", "250 ms", "stopped"):
        assert part in out, part
    assert "It hung." in out
    assert live.asked[0].verb == "status"


def test_status_json(ctl: Ctl, live: FakeSupervisor) -> None:
    extra = {"run_dir", "source", "why", "summary"}
    data = ctl.json("status")
    assert {key: value for key, value in data.items() if key not in extra} == STATUS
    assert data["source"] == "supervisor"


def test_shares_of_time_and_what_hooks_say(ctl: Ctl, live: FakeSupervisor) -> None:
    ranks = [{**rank, "data_share": 0.42, "gc_share": 0.07} for rank in STATUS["ranks"]]
    notes = [f"rank {n}: gc policy: not followed: the script collects by itself" for n in range(2)]
    live.answers["status"] = Answer(is_ok=True, data={**STATUS, "ranks": ranks, "notes": [*notes, "rank 1: other: x"]})
    out = ctl("status")
    for part in ("42%", "7%", "gc policy: not followed: the script collects by itself (2 ranks)", "other: x (rank 1)"):
        assert part in out, part


def test_the_warm_process_has_a_line(ctl: Ctl, live: FakeSupervisor) -> None:
    assert "warm" not in ctl("status")
    for warm, words in (
        ({"state": "not begun"}, "warm ranks: not begun\n"),
        ({"state": "ready", "modules": 811, "memory_mb": 342}, "warm ranks: ready, 811 modules, 342 MB\n"),
        ({"state": "given up", "why": "it has ended"}, "warm ranks: given up, it has ended\n"),
    ):
        live.answers["status"] = Answer(is_ok=True, data={**STATUS, "warm": warm})
        assert words in ctl("status")


def test_many_ranks_share_rows(ctl: Ctl, live: FakeSupervisor) -> None:
    ranks = [{**STATUS["ranks"][0], "global_rank": rank, "step": 5 if rank == 9 else 6} for rank in range(512)]
    live.answers["status"] = Answer(is_ok=True, data={**STATUS, "ranks": ranks})
    out = ctl("status")
    assert "0-8,10-511" in out
    assert len(out.splitlines()) < 15


def test_watch_goes_on_until_the_run_ends(ctl: Ctl, live: FakeSupervisor) -> None:
    ended = {**STATUS, "state": "ended"}
    seen: list[dict[str, Any]] = []

    class Counting(dict[str, Answer | None]):
        def get(self, verb: str, default: Any = None) -> Answer:
            seen.append(STATUS if len(seen) < 2 else ended)
            return Answer(is_ok=True, data=seen[-1])

    live.answers = Counting()
    lines = ctl("status", "--watch", "--every", "0.01", "--json").splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["training", "training", "ended"]


def test_watch_ends_quietly_with_ctrl_c(live: FakeSupervisor, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "status", "--watch", "--every", "60", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["state"] == "training"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_stacks(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([0, 1, 2])
    out = ctl("stacks")
    assert out.index("Rank 1\n") < out.index("Ranks 0,2\n")
    assert "    fetch_vocabulary_update (train.py:73)\n" in out
    assert "    … 2 frames of requests\n" in out
    assert "Rank 7: it is gone" in out
    assert live.asked[0].arguments == {"rank": None}


def test_stacks_of_several_nodes(ctl: Ctl, live: FakeSupervisor) -> None:
    answer = stacks_answer([0, 1, 2])
    live.answers["stacks"] = Answer(is_ok=True, data={**answer.data, "nodes": {"0": "n1", "1": "n2", "2": "n2"}})
    out = ctl("stacks")
    assert "Rank 1 on n2\n" in out and "Ranks 0,2 on n1, n2\n" in out


def test_every_stack_by_itself(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([0, 1, 2])
    out = ctl("stacks", "--all")
    assert [line for line in out.splitlines() if line in ("Rank 0", "Rank 1", "Rank 2")] == [
        "Rank 0",
        "Rank 1",
        "Rank 2",
    ]
    groups = ctl.json("stacks")["groups"]
    assert [group["ranks"] for group in groups if group["kind"] == "main thread"] == ["1", "0,2"]
    assert groups[0]["frames"][1] == {"folded": "2 frames of requests"}


def test_stacks_of_one_rank(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([1])
    data = ctl.json("stacks", "1")
    assert live.asked[0].arguments == {"rank": 1}
    [look] = data["ranks"]
    assert look["global_rank"] == 1
    assert look["process"]["threads"][0]["frames"][3][:1] == ["fetch_vocabulary_update"]
    assert data["missing"] == {"7": "it is gone"}


def test_stacks_that_nobody_has(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["stacks"] = Answer(is_ok=True, data={"ranks": [], "missing": {"0": "ptrace refused"}})
    assert "Rank 0: ptrace refused" in ctl("stacks", code=1)
    live.answers["stacks"] = Answer(is_ok=False, error="no rank 9: there are [0, 1]")
    ctl("stacks", "9", code=1)
    assert ctl.err == "guardctl: run live-1: no rank 9: there are [0, 1]\n"
    live.answers["stacks"] = Answer(is_ok=True, data={"ranks": [{"strange": 1}]})
    ctl("stacks", code=1)
    assert "not one of this version" in ctl.err


@pytest.mark.parametrize("verb", ["hold", "unhold", "checkpoint"])
def test_orders(ctl: Ctl, live: FakeSupervisor, verb: str) -> None:
    live.answers[verb] = Answer(is_ok=True, data={"held": verb == "hold"})
    assert ctl(verb).strip()
    assert ctl.json(verb, "live-1") == {"ok": True, "held": verb == "hold"}
    assert live.asked[0].verb == verb
    assert live.asked[0].arguments["who"]


def test_an_order_that_is_refused(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["checkpoint"] = Answer(is_ok=False, error="the script does not ask should_checkpoint()")
    ctl("checkpoint", code=1)
    assert "does not ask should_checkpoint()" in ctl.err


def test_frames_that_are_no_answer_are_passed_over(ctl: Ctl, live: FakeSupervisor) -> None:
    live.noise = [b"", b"\xc1", b"\x81\xa4type\xa3ack"]
    assert ctl.json("status")["source"] == "supervisor"


def test_a_supervisor_that_says_nothing(ctl: Ctl, live: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_client.ask, "__defaults__", (None, 0.2))
    monkeypatch.setattr(order.ask_run, "__defaults__", (0.2,))
    monkeypatch.setattr(order, "STACKS_TIMEOUT_S", 0.2)
    live.answers.clear()
    data = ctl.json("status")
    assert (data["state"], data["source"]) == ("unreachable", "directory")
    assert "did not answer within 0.2 s" in data["why"]
    for verb in ("hold", "stacks"):
        ctl(verb, code=1)
        assert "did not answer" in ctl.err


def test_a_supervisor_that_ends_while_it_is_asked(ctl: Ctl, live: FakeSupervisor) -> None:
    """The run is over: nobody waits until the time is up, two minutes in this case."""
    live.ends_at = "examine"
    began_s = time.monotonic()
    ctl("memory", "0", "--seconds", "10", code=1)
    assert "its supervisor ended before it had answered" in ctl.err
    assert time.monotonic() - began_s < 60


def test_a_socket_nobody_listens_on(
    ctl: Ctl, stale_socket: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client.ask, "__defaults__", (None, 0.2))
    stale_socket()
    began_s = time.monotonic()
    assert ctl.json("status")["state"] == "unreachable"
    assert time.monotonic() - began_s < 30
