"""Whom a real agent listens to, whom it refuses and in which words, and what nobody can make it do."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from guardrun.supervisor.client.agent_client import RefusedError
from guardrun.supervisor.wire.agent_messages import (
    MAX_TO_AGENT_BYTES,
    PROTOCOL,
    Answer,
    Ask,
    Refused,
    Subscribe,
    ToAgent,
    Welcome,
    pack,
)
from tests.agent.bed import AgentBed
from tests.agent.callers import Raw, as_nobody, hello
from tests.support.waiting import wait_until


@pytest.mark.real("root")
def test_facts_are_for_everybody_and_acts_are_not(agent: AgentBed, open_folder: Path) -> None:
    agent.start()
    code = """
print(ask("facts", path=path, timeout_s=30)["readouts"][0]["sensor"])
for verb in ("isolate", "release"):
    for run_id in ("", "somebody-elses"):
        try:
            ask(verb, {"run_id": run_id}, path=path, timeout_s=30)
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
    end = time.monotonic() + 60
    while not until() and time.monotonic() < end:
        client.read()
        time.sleep(0.02)

other = register(os.getppid(), "theirs")
read(other, lambda: other.refusal)
print(other.is_connected, other.refusal.replace(str(os.getppid()), "PID"))
mine = register(os.getpid(), "mine")
read(mine, lambda: any(job["run_id"] == "mine" for job in ask("jobs", path=path, timeout_s=30)["jobs"]))
asked = {"run_id": "mine", "cause": "gpu_xid", "reason": "Xid 79.", "is_automatic": True}
held = ask("isolate", asked, path=path, timeout_s=30)["quarantine"]["holding"]
print([(one["cause"], one["who"], one["run_id"]) for one in held])
print(ask("release", {"run_id": "mine", "reason": "mended"}, path=path, timeout_s=30))
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

    def is_long() -> bool:
        readouts = agent.ask("facts")["readouts"]
        return bool(readouts) and len(readouts[0].get("samples", [])) == 4000

    wait_until(is_long, 20, "the long readout")
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


@pytest.mark.cold
def test_those_who_do_not_read_cost_bounded_memory_together(agent: AgentBed) -> None:
    process = agent.start()
    agent.tell("".join(f"disk:/{'x' * 400}{n} note {'y' * 400}{n}\n" for n in range(4000)))
    readouts = lambda: agent.ask("facts")["readouts"]  # noqa: E731
    wait_until(lambda: [len(one.get("samples", [])) for one in readouts()] == [4000], 20, "the long readout")
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
