"""The lab's hosts: they reach each other by name, cuts cut what they say, and nothing is left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netlab import Host, Lab
from tests.support.processes import is_alive

pytestmark = pytest.mark.real("netns")

ECHO = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    data, sender = udp.recvfrom(100)
    print("heard", data.decode(), flush=True)
    udp.sendto(data, sender)
"""
ASK = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(float(sys.argv[3]))
udp.sendto(sys.argv[2].encode(), (sys.argv[1], 7000))
try:
    print(udp.recv(100).decode())
except TimeoutError:
    print("no answer")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab.open(names=["head", "node2"]) as opened:
        yield opened


@pytest.fixture
def echo(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    process = lab.host("head").popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    lab.host("head").crash()
    process.wait()
    process.stdout.close()
    for host in lab.hosts:
        lab.restore(host)
        lab.plug_in(host)


ANSWERED_S, UNANSWERED_S = 60.0, 2.0
"""How long is waited for an answer that is to come, and for one that is not."""


def ask(host: Host, text: str, timeout_s: float = ANSWERED_S) -> str:
    return host.python(ASK, "head", text, str(timeout_s)).strip()


def heard(echo: subprocess.Popen[str]) -> str:
    """Everything that has reached it; ends it."""
    echo.kill()
    assert echo.stdout is not None
    return echo.stdout.read()


def test_hosts_have_names_and_addresses_of_their_own(lab: Lab, tmp_path: Path) -> None:
    head, node2 = lab.hosts
    assert node2.run("cat", "/proc/sys/kernel/hostname").strip() == "node2"
    assert node2.python("import socket; print(socket.gethostbyname('head'))").strip() == head.address
    assert set(node2.run("ls", "/sys/class/net").split()) == {"eth0", "lo"}
    assert node2.run("cat", "/sys/class/net/eth0/operstate").strip() == "up"
    assert socket.gethostname() not in ("head", "node2")
    (tmp_path / "file").write_text("shared")
    node2.hide(tmp_path)
    assert (node2.run("ls", str(tmp_path)), head.run("ls", str(tmp_path))) == ("", "file\n")


def test_a_cut_is_silent_and_heals(lab: Lab, echo: subprocess.Popen[str]) -> None:
    node2 = lab.host("node2")
    assert ask(node2, "one") == "one"
    lab.cut(node2)
    assert ask(node2, "two", UNANSWERED_S) == "no answer"
    lab.restore(node2)
    assert ask(node2, "three") == "three"
    lab.unplug(node2)
    assert node2.run("cat", "/sys/class/net/eth0/carrier").strip() == "0"
    lab.plug_in(node2)
    assert ask(node2, "four") == "four"
    assert heard(echo).split() == ["heard", "one", "heard", "three", "heard", "four"]


@pytest.mark.parametrize(("way", "reaches"), [("in", True), ("out", False)])
def test_one_way(lab: Lab, echo: subprocess.Popen[str], way: str, reaches: bool) -> None:
    node2 = lab.host("node2")
    assert ask(node2, "before") == "before"  # neighbours know each other
    lab.cut_one_way(node2, "in" if way == "in" else "out")
    assert ask(node2, "cut", UNANSWERED_S) == "no answer"
    assert echo.stdout is not None and echo.stdout.readline() == "heard before\n"
    if reaches:
        assert echo.stdout.readline() == "heard cut\n"
    assert heard(echo) == ""


def test_a_slow_link_is_slow(lab: Lab, echo: subprocess.Popen[str]) -> None:
    node2 = lab.host("node2")
    lab.slow(node2, 64_000)
    assert ask(node2, "small") == "small"
    code = (
        "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "began = time.monotonic()\n"
        "for _ in range(40): s.sendto(bytes(1000), ('head', 7001))\n"
        "s.sendto(b'last', ('head', 7000)); s.settimeout(60); s.recv(10); print(time.monotonic() - began)"
    )
    # 40 kB less the bucket of 16 kB, at 8 kB/s.
    assert 1.5 < float(node2.python(code)) < 30


def test_nothing_is_left(tmp_path: Path) -> None:
    with Lab.open(1) as lab:
        process = lab.hosts[0].popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert {process.pid, child} <= {found.pid for found in lab.hosts[0].namespaces.processes()}
    assert not is_alive(child)
    assert not is_alive(process.pid)
    assert "netlab-" not in Path("/proc/mounts").read_text()
