"""A real agent, real sockets: what it tells, and what it survives."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from guardrun.supervisor.client.agent_client import AgentClient, Unreachable, ask
from guardrun.supervisor.wire.agent_messages import Ask, Facts, Findings, QuarantineIs, Subscribe, Welcome
from tests.agent.bed import AgentBed
from tests.agent.callers import Raw, as_nobody, hello, read_until
from tests.support.waiting import wait_until

# What it tells ---------------------------------------------------------------------------------------------------


def test_a_subscriber_hears_all_that_is_known_and_then_what_changes(agent: AgentBed) -> None:
    agent.start()
    client = AgentClient(path=agent.socket)
    try:
        first = read_until(client, Findings)
        assert isinstance(first[0], Welcome)
        assert [news.is_whole for news in first if isinstance(news, Facts | Findings)] == [True, True]
        agent.tell("cpu temperature_c 99\ncpu is_hot 1\n! cpu mce Bank 5\n")
        heard = read_until(client, Findings)
        readouts = [readout for news in heard if isinstance(news, Facts) for readout in news.readouts]
        assert {s.name: s.value for r in readouts for s in r.samples}["temperature_c"] == 99
        assert [h.name for r in readouts for h in r.happenings] == ["mce"]
        findings = [f for news in heard if isinstance(news, Findings) for f in news.findings]
        assert [(f.cause, f.subject, f.is_over) for f in findings] == [("thermal", "cpu", False)]
        assert client.is_connected
    finally:
        client.close()


def test_nobody_is_told_more_often_than_once_a_second(agent: AgentBed, raw: Raw) -> None:
    raw.say(hello())
    raw.say(Subscribe())
    times = []
    for number in range(4):
        while not isinstance(message := raw.hear(), Facts):
            pass
        if not message.is_whole:
            times.append(message.at_s)
        agent.tell(f"cpu temperature_c {number}\n")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(gap > 0.99 for gap in gaps), gaps


def test_what_does_not_change_is_not_told_again(agent: AgentBed, raw: Raw) -> None:
    raw.say(hello())
    raw.say(Subscribe())
    assert isinstance(raw.hear(), Welcome)
    wait_until(lambda: agent.ask("status")["counters"]["readouts"] > 25, 20, "some readouts")
    raw.say(Ask(id=7, verb="jobs"))
    heard = []
    while not isinstance(message := raw.hear(), type(None)):
        heard.append(type(message).__name__)
        if heard[-1] == "Answer":
            break
    assert heard.count("Facts") <= 2, heard


def test_findings_and_happenings_are_in_the_history(agent: AgentBed) -> None:
    agent.start()
    agent.tell("gpu:0 is_hot 1\n! gpu:0 xid Xid 63\n")
    assert agent.wait_for_entry("xid")["text"] == "Xid 63"
    assert agent.wait_for_entry("thermal", what="finding")["subject"] == "gpu:0"
    agent.tell("gpu:0 is_hot 0\n")
    wait_until(lambda: agent.history(name="thermal")["entries"][-1]["data"].get("is_over"), 20, "its end")


def test_a_judge_that_raises_costs_nobody_anything(agent: AgentBed) -> None:
    agent.tell("cpu raise 1\n")
    agent.start()
    wait_until(lambda: "a judge's bug" in agent.log, 20, "the bug in the log")
    agent.tell("cpu is_hot 1\n")
    agent.wait_for_entry("thermal", what="finding")


# Quarantine ------------------------------------------------------------------------------------------------------


def test_a_broken_device_isolates_its_node_and_a_persons_release_holds(agent: AgentBed) -> None:
    process = agent.start()
    client = AgentClient(path=agent.socket)
    try:
        read_until(client, Findings)
        agent.tell("gpu:0 is_broken 1\n")
        news = [n for n in read_until(client, QuarantineIs) if isinstance(n, QuarantineIs)][-1]
        assert [one["cause"] for one in news.quarantine["holding"]] == ["gpu_xid"]
        assert (agent.state / "quarantine.json").exists()
        answer = agent.ask("release", reason="looked at it")
        assert answer == {"quarantine": {}, "why": ""}
        news = [n for n in read_until(client, QuarantineIs) if isinstance(n, QuarantineIs)][-1]
        assert news.quarantine == {}
    finally:
        client.close()
    agent.end(process)
    # The judge starts anew and finds the same again; the person's word holds all the same.
    agent.start()
    wait_until(lambda: agent.ask("status")["counters"]["findings"], 20, "the finding")
    wait_until(lambda: "not_isolated" in agent.log, 20, "the reason")
    assert agent.ask("status")["quarantine"] == {}


def test_policy_act_false_isolates_nothing(agent: AgentBed) -> None:
    agent.tell("gpu:0 is_broken 1\n")
    agent.start(env={"GUARDRUN_POLICY_ACT": "false"})
    wait_until(lambda: "policy.act is false" in agent.log, 20, "the reason")
    assert agent.ask("status")["quarantine"] == {}


def test_what_somebody_else_wrote_is_noticed(agent: AgentBed) -> None:
    agent.start()
    record = '{"schema":1,"nodes":{"%s":{"isolations":[{"cause":"disk","who":"ann","since_wall_s":%f}]}}}'
    (agent.state / "quarantine.json").write_text(record % (os.uname().nodename, time.time()))
    held = wait_until(lambda: agent.ask("status")["quarantine"].get("holding"), 20, "the isolation")
    assert held[0]["who"] == "ann"


# What it survives ------------------------------------------------------------------------------------------------


def test_a_second_agent_is_refused_with_words(agent: AgentBed) -> None:
    first = agent.start()
    second = agent.spawn()
    assert second.wait(60) == 75
    assert f"another node agent, process {first.pid}, listens at {agent.socket} already" in agent.log
    assert agent.ask("status")["pid"] == first.pid


def test_a_clean_stop_leaves_no_socket_and_says_so(agent: AgentBed) -> None:
    process = agent.start()
    agent.notify.wait_for("READY=1")
    assert agent.end(process) == 0
    agent.notify.wait_for("STOPPING=1")
    assert not agent.socket.exists()
    with pytest.raises(Unreachable, match="no node agent listens at"):
        ask("status", path=agent.socket)


def test_after_a_sigkill_the_next_agent_has_the_history_and_clients_find_it(agent: AgentBed) -> None:
    process = agent.start()
    client = AgentClient(path=agent.socket)
    try:
        read_until(client, Findings)
        agent.tell("! gpu:0 xid before the end\n")
        agent.wait_for_entry("xid")
        assert agent.end(process, signal.SIGKILL) == -signal.SIGKILL
        agent.tell("cpu temperature_c 41\n")
        agent.start()
        assert agent.wait_for_entry("xid")["text"] == "before the end"
        heard = read_until(client, Welcome)
        while not isinstance(heard[0], Welcome):
            del heard[0]  # still from the first one
        if not any(isinstance(news, Findings) for news in heard):
            heard += read_until(client, Findings)
        assert any(isinstance(news, Facts) and news.is_whole for news in heard)
    finally:
        client.close()


def test_a_corrupt_history_is_set_aside_and_said(agent: AgentBed) -> None:
    agent.state.mkdir()
    (agent.state / "history.db").write_bytes(b"no database " * 1000)
    agent.start()
    assert "kept as history.db.spoilt" in agent.wait_for_entry("history_set_aside")["text"]
    assert (agent.state / "history.db.spoilt").read_bytes().startswith(b"no database")
    assert "history_set_aside" in agent.log


def test_a_state_folder_that_cannot_be_written_is_said_once(agent: AgentBed) -> None:
    (agent.folder / "state").write_text("a file stands in its place")
    agent.start()
    agent.tell("cpu is_hot 1\n")
    wait_until(lambda: agent.ask("status")["findings"] == 1, 20, "the finding")
    status = wait_until(lambda: agent.ask("status") if agent.ask("status")["history"]["trouble"] else None, 20, "it")
    assert status is not None
    assert agent.log.count("history_trouble") == 1
    assert agent.ask("history")["entries"] == []


@pytest.mark.real("mount")
def test_a_full_disk_costs_the_history_only(agent: AgentBed, tmp_path: Path) -> None:
    agent.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(agent.state)], check=True, timeout=60)
    try:
        process = agent.start()
        agent.wait_for_entry("agent_started")
        (agent.state / "filler").write_bytes(b"\0" * 40_000)
        with pytest.raises(OSError, match="No space"), (agent.state / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        agent.tell("".join(f"! gpu:0 xid {n} {'x' * 300}\n" for n in range(400)))
        wait_until(lambda: "history_trouble" in agent.log, 20, "the trouble")
        agent.tell("cpu is_hot 1\n")
        wait_until(lambda: agent.ask("status")["findings"] == 1, 20, "the finding")
        assert agent.end(process) == 0
    finally:
        subprocess.run(["umount", "--lazy", str(agent.state)], check=True, timeout=60)


def test_a_reload_takes_what_is_good_and_keeps_what_was(agent: AgentBed) -> None:
    config = agent.folder / "agent.toml"
    config.write_text("[policy]\nact = false\n")
    process = agent.start("--config", str(config))
    config.write_text("[policy]\nact = true\n")
    process.send_signal(signal.SIGHUP)
    agent.notify.wait_for("RELOADING=1")
    agent.notify.wait_for("STATUS=reloaded")
    agent.tell("gpu:0 is_broken 1\n")
    wait_until(lambda: agent.ask("status")["quarantine"].get("holding"), 20, "the isolation")
    config.write_text("[policy]\nact = perhaps\n")
    process.send_signal(signal.SIGHUP)
    agent.notify.wait_for("STATUS=the configuration is no good")
    assert agent.ask("status")["pid"] == process.pid


@pytest.mark.real("root")
def test_a_user_who_may_not_listen_there_is_told_so(agent: AgentBed, open_folder: Path) -> None:
    """With a standard error that only somebody else may open anew."""
    code = """
print(command.run_node(["--socket", "/proc/no/agent.sock", "--state", "/proc/no"]))
"""
    assert as_nobody(code, agent.socket).splitlines()[-1] == "1"


def test_a_wrong_configuration_at_the_start_is_refused_with_words(agent: AgentBed) -> None:
    config = agent.folder / "agent.toml"
    config.write_text("[polici]\nact = true\n")
    assert agent.spawn("--config", str(config)).wait(60) == 2
    assert "unknown table [polici]" in agent.log


def test_the_watchdog_is_not_fed_while_the_agent_stands_still(agent: AgentBed) -> None:
    process = agent.start(env={"WATCHDOG_USEC": "600000"})
    agent.notify.wait_for("WATCHDOG=1")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 10, "a stop")
    agent.notify.listen()
    count = agent.notify.heard.count("WATCHDOG=1")
    time.sleep(0.8)  # longer than systemd would wait
    assert agent.notify.listen().count("WATCHDOG=1") == count
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: agent.notify.listen().count("WATCHDOG=1") > count, 10, "the next word")


def test_an_agent_that_does_not_answer_costs_a_second(agent: AgentBed) -> None:
    process = agent.start()
    process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match="did not answer within 1 s"):
        ask("status", path=agent.socket)
    assert time.monotonic() - began_s < 30
    client = AgentClient(path=agent.socket)
    try:
        began_s = time.monotonic()
        assert [client.read() for _ in range(50)] == [[]] * 50
        assert time.monotonic() - began_s < 30, "fifty times 1 s"
        assert not client.is_connected
    finally:
        client.close()
        process.send_signal(signal.SIGCONT)


def test_many_connections_keep_nobody_else_out(agent: AgentBed) -> None:
    process = agent.start()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 400
    crowd = []
    try:
        for _ in range(300):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            crowd.append(connection)
            connection.connect(str(agent.socket))
        assert agent.ask("status")["pid"] == process.pid
        wait_until(lambda: agent.ask("status")["clients"] <= 1, 30, "those without a Hello to be let go", every_s=0.5)
    finally:
        for connection in crowd:
            connection.close()


def test_a_set_clock_is_noticed_and_stops_nothing(agent: AgentBed) -> None:
    agent.start()
    clock = agent.folder / "readings.clock"
    for by_s in (-86400, 0):
        clock.with_suffix(".new").write_text(str(by_s))
        clock.with_suffix(".new").rename(clock)
        sign = "-" if by_s else "+"
        noticed = re.compile(rf" [{sign}]86[34]\d\d\.")  # a busy machine takes its time from one look to the next

        def entries(noticed: re.Pattern[str] = noticed) -> list[object]:
            return [one for one in agent.history(name="clock_set")["entries"] if noticed.search(one["text"])]

        wait_until(entries, 20, f"a day {sign}")
    agent.tell("! cpu mce after it\n")
    agent.wait_for_entry("mce")
