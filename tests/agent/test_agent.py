"""A real agent, real sockets: what it tells, whom it refuses, what it survives."""

from __future__ import annotations

import itertools
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.node.client import AgentClient, RefusedError, Unreachable, ask
from guardrun.supervisor.node.wire import (
    FROM_AGENT,
    MAX_FROM_AGENT_BYTES,
    MAX_TO_AGENT_BYTES,
    PROTOCOL,
    Answer,
    Ask,
    Facts,
    Findings,
    FromAgent,
    Hello,
    QuarantineIs,
    Refused,
    Subscribe,
    ToAgent,
    Unpacker,
    Welcome,
    pack,
)
from tests.agent.bed import AgentBed
from tests.support.waiting import wait_until


class Raw:
    """A client that says whatever it likes."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._unpacker = Unpacker(MAX_FROM_AGENT_BYTES)
        self._frames: list[bytes] = []

    def say(self, message: ToAgent) -> None:
        self.send(pack(message))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self) -> FromAgent:
        """The next message. Raises EOFError at the end."""
        while not self._frames:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames += self._unpacker.feed(data)
        return FROM_AGENT.decode(self._frames.pop(0))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw(agent: AgentBed) -> Iterator[Raw]:
    agent.start()
    client = Raw(agent.socket)
    yield client
    client.close()


def hello(protocol: int = PROTOCOL, oldest: int = 1) -> Hello:
    return Hello(protocol=protocol, oldest=oldest, version="9.9", program="test")


def read_until(client: AgentClient, kind: type, timeout_s: float = 15.0) -> list[object]:
    """Poll the client's descriptor, as a supervisor does, until something of a kind has come."""
    heard: list[object] = []
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    deadline_s = time.monotonic() + timeout_s
    while not any(isinstance(news, kind) for news in heard):
        assert time.monotonic() < deadline_s, f"no {kind.__name__} in {heard}; {client.trouble}"
        poller.poll(200)
        heard += client.read()
    return heard


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
            times.append(time.monotonic())
        agent.tell(f"cpu temperature_c {number}\n")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(gap > 0.8 for gap in gaps), gaps


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


# Whom it refuses -------------------------------------------------------------------------------------------------


def as_nobody(code: str, path: Path) -> str:
    """Run Python as user nobody; its output."""
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from pathlib import Path; path = Path(sys.argv[1])\n" + code
    )
    preload = "from guardrun.supervisor.node.client import ask, AgentClient, RefusedError\n"
    preload += "import guardrun.supervisor.node.command as command, guardrun.supervisor.node.wire as wire\n"
    preload += "import pwd, socket, select, time\n"  # now: a user may not be let through to the interpreter's library
    done = subprocess.run(
        [sys.executable, "-c", preload + program, str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """The test's folder, passable for everybody."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


@pytest.mark.real("root")
def test_facts_are_for_everybody_and_acts_are_not(agent: AgentBed, open_folder: Path) -> None:
    agent.start()
    code = """
print(ask("facts", path=path, timeout_s=5)["readouts"][0]["sensor"])
for verb in ("isolate", "release"):
    for run_id in ("", "somebody-elses"):
        try:
            ask(verb, {"run_id": run_id}, path=path, timeout_s=5)
        except RefusedError as refused:
            print(refused)
"""
    lines = as_nobody(code, agent.socket).splitlines()
    assert lines == [
        "file",
        "only root may isolate this node, or the owner of a job that runs here, for it",
        "no job somebody-elses of yours is registered on this node",
        "only root may release this node, or the owner of a job that runs here, for it",
        "no job somebody-elses of yours is registered on this node",
    ]


@pytest.mark.real("root")
def test_a_jobs_owner_acts_for_it_and_nobody_registers_anothers(agent: AgentBed, open_folder: Path) -> None:
    agent.start()
    code = """
def start_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])

def register(pid, run_id):
    job = wire.RegisterJob(run_id=run_id, run_dir="", launcher_pid=pid, launcher_start=start_of(pid), token=run_id)
    return AgentClient(job, path)

def read(client, until):
    end = time.monotonic() + 20
    while not until() and time.monotonic() < end:
        client.read()
        time.sleep(0.02)

other = register(os.getppid(), "theirs")
read(other, lambda: other.refusal)
print(other.is_connected, other.refusal.replace(str(os.getppid()), "PID"))
mine = register(os.getpid(), "mine")
read(mine, lambda: any(job["run_id"] == "mine" for job in ask("jobs", path=path, timeout_s=5)["jobs"]))
asked = {"run_id": "mine", "cause": "gpu_xid", "reason": "Xid 79.", "is_automatic": True}
held = ask("isolate", asked, path=path, timeout_s=5)["quarantine"]["holding"]
print([(one["cause"], one["who"], one["run_id"]) for one in held])
print(ask("release", {"run_id": "mine", "reason": "mended"}, path=path, timeout_s=5))
"""
    assert as_nobody(code, agent.socket).splitlines() == [
        "True run theirs: its launcher, process PID, is not yours",
        "[('gpu_xid', 'guardrun', 'mine')]",
        "{'quarantine': {}, 'why': ''}",
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (hello(protocol=0, oldest=0), "speaks protocol 0; 1 is the oldest spoken here"),
        (hello(protocol=9, oldest=5), "wants protocol 5 or newer; 1 is the newest spoken here"),
        (Subscribe(), "say Hello first"),
    ],
)
def test_who_cannot_be_spoken_with_is_told_why(raw: Raw, said: ToAgent, words: str) -> None:
    raw.say(said)
    refused = raw.hear()
    assert isinstance(refused, Refused)
    assert words in refused.why
    with pytest.raises(EOFError):
        raw.hear()


def test_a_newer_supervisor_speaks_the_older_protocol(raw: Raw) -> None:
    raw.say(hello(protocol=7, oldest=1))
    welcome = raw.hear()
    assert isinstance(welcome, Welcome)
    assert welcome.protocol == PROTOCOL


def test_an_unknown_verb_is_refused_by_name(agent: AgentBed) -> None:
    agent.start()
    with pytest.raises(RefusedError, match="knows no 'dance'; it knows status"):
        agent.ask("dance")


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", MAX_TO_AGENT_BYTES + 1),
        struct.pack("!I", 4) + b"\xff\xff\xff\xff",
        struct.pack("!I", 60000) + b"\x91" * 60000,
        pack(hello()) + struct.pack("!I", 2**31),
    ],
    ids=["oversize", "no msgpack", "nested too deep", "oversize after Hello"],
)
def test_garbage_ends_its_own_connection_only(agent: AgentBed, raw: Raw, data: bytes) -> None:
    raw.send(data)
    with pytest.raises((EOFError, ConnectionResetError)):
        for _ in range(3):
            raw.hear()
    assert agent.ask("status")["pid"]


def test_who_does_not_read_is_let_go(agent: AgentBed, raw: Raw) -> None:
    raw.say(hello())
    agent.tell("".join(f"disk:/{'x' * 400}{n} note {'y' * 400}{n}\n" for n in range(4000)))
    wait_until(lambda: len(agent.ask("facts")["readouts"][0].get("samples", [])) == 4000, 20, "the long readout")
    for number in range(40):
        try:
            raw.say(Ask(id=number, verb="facts"))
        except OSError:
            break
    wait_until(lambda: agent.ask("status")["clients"] == 1, 20, "the connection to be gone")


def test_one_client_asks_no_more_than_is_answered(agent: AgentBed, raw: Raw) -> None:
    raw.send(pack(hello()) + b"".join(pack(Ask(id=number, verb="history")) for number in range(50)))
    assert isinstance(raw.hear(), Welcome)
    answers = [raw.hear() for _ in range(50)]
    refused = [answer.why for answer in answers if isinstance(answer, Refused)]
    assert len(refused) >= 40
    assert "questions of yours are still open" in refused[0]
    raw.say(Ask(id=99, verb="history"))
    assert isinstance(raw.hear(), Answer)


def test_those_who_do_not_read_cost_bounded_memory_together(agent: AgentBed) -> None:
    process = agent.start()
    agent.tell("".join(f"disk:/{'x' * 400}{n} note {'y' * 400}{n}\n" for n in range(4000)))
    wait_until(lambda: len(agent.ask("facts")["readouts"][0].get("samples", [])) == 4000, 20, "the long readout")
    crowd = [Raw(agent.socket) for _ in range(30)]
    try:
        for client in crowd:
            client.send(pack(hello()) + pack(Ask(id=1, verb="facts")) + pack(Ask(id=2, verb="facts")))
        assert agent.ask("status")["pid"] == process.pid
        wait_until(lambda: agent.ask("status")["clients"] < 30, 20, "some to be let go")
        kib = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])  # type: ignore[index]
        assert kib < 192 * 1024, "more than its unit gives it"
    finally:
        for client in crowd:
            client.close()


# What it survives ------------------------------------------------------------------------------------------------


def test_a_second_agent_is_refused_with_words(agent: AgentBed) -> None:
    first = agent.start()
    second = agent.spawn()
    assert second.wait(20) == 75
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
        heard = read_until(client, Findings)
        assert isinstance(heard[0], Welcome)
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(agent.state)], check=True, timeout=10)
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
        subprocess.run(["umount", "--lazy", str(agent.state)], check=True, timeout=10)


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
    assert agent.spawn("--config", str(config)).wait(20) == 2
    assert "unknown table [polici]" in agent.log


def test_the_watchdog_is_fed_by_the_loop_alone(agent: AgentBed) -> None:
    process = agent.start(env={"WATCHDOG_USEC": "600000"})
    agent.notify.wait_for("WATCHDOG=1")
    process.send_signal(signal.SIGSTOP)
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
    assert time.monotonic() - began_s < 3
    client = AgentClient(path=agent.socket)
    try:
        began_s = time.monotonic()
        assert [client.read() for _ in range(50)] == [[]] * 50
        assert time.monotonic() - began_s < 0.5
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
        sign = "-86400" if by_s else "+86400"
        wait_until(
            lambda sign=sign: [e for e in agent.history(name="clock_set")["entries"] if sign in e["text"]], 20, sign
        )
    agent.tell("! cpu mce after it\n")
    agent.wait_for_entry("mce")
