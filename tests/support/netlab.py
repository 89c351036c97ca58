"""Hosts in network namespaces, each with an address, a hostname and an /etc/hosts of its own, on one switch.

    with Lab.open(3) as lab:
        lab.hosts[0].popen(["guardrun", …])
        lab.cut_one_way(lab.hosts[2], "in")

The namespaces have no name and no file: each lives as long as a process that holds it, which ends with this one,
however that ends. Processes, file systems and pids are the machine's; only what `hide` covers is a host's own.
Needs the real part "netns" (tests/support/real.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal

from tests.support.forkserver import client
from tests.support.processes import Process, kill, read_all, reap

PREFIX = "10.77.0"
"""Addresses exist inside the lab's namespaces only."""
INSIDE = "eth0"
COMMAND_TIMEOUT_S = 60.0
_ALL = ["--net", "--uts", "--mount"]


def run(*command: str) -> str:
    """Run a command to its end; returns its output. Raises RuntimeError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Namespaces:
    """Network, hostname and mounts of their own, held by a process that ends when its standard input does."""

    def __init__(self) -> None:
        command = ["unshare", *_ALL, "--propagation", "private", "sh", "-c", "echo ready; exec cat"]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("no namespaces: unshare failed")
        self.pid = self._holder.pid
        self._net = os.readlink(f"/proc/{self.pid}/ns/net")

    def inside(self, *command: str) -> list[str]:
        """A command that runs there."""
        return ["nsenter", f"--target={self.pid}", *_ALL, f"--wd={os.getcwd()}", "--", *command]

    def run(self, *command: str) -> str:
        return run(*self.inside(*command))

    def processes(self) -> list[Process]:
        """What lives there, the holder left out."""
        return [process for process in read_all() if process.pid != self.pid and self._is_here(process)]

    def end_all(self) -> None:
        """SIGKILL everything that lives there, also what is started meanwhile.

        Supervisors first: they would see the others die, and say so to other hosts.
        """
        while found := [process for process in self.processes() if process.state not in "ZX"]:
            for process in sorted(found, key=lambda one: "guardrund" not in one.command):
                kill(process)
            reap(found)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()

    def _is_here(self, process: Process) -> bool:
        try:
            return os.readlink(f"/proc/{process.pid}/ns/net") == self._net
        except OSError:
            return False


class Host:
    """One node: its name, its address, and what runs there."""

    def __init__(self, name: str, address: str, namespaces: Namespaces, outside: str) -> None:
        """outside: the switch's end of its cable."""
        self.name = name
        self.address = address
        self.outside = outside
        self.namespaces = namespaces
        self._started: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address})"

    def popen(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
    ) -> subprocess.Popen[Any]:
        """Start a program there; the pid is its own. It is ended with the lab. env: all of it; None: ours."""
        command = self.namespaces.inside("env", f"--chdir={cwd or os.getcwd()}", *argv)
        if client.can_fork(argv, dict(os.environ if env is None else env)):
            command = list(argv)
        with client.namespaces_of(self.namespaces.pid):
            process = subprocess.Popen(command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=text)
        self._started.append(process)
        return process

    def run(self, *argv: str) -> str:
        """Run a command there to its end; returns its output. Raises RuntimeError with what it said."""
        return self.namespaces.run(*argv)

    def python(self, code: str, *arguments: str) -> str:
        """Run Python code there; returns its output."""
        return self.run(sys.executable, "-c", code, *arguments)

    def hide(self, folder: Path) -> None:
        """Give the host an empty folder of its own there, in memory: what is not shared."""
        self.run("mount", "-t", "tmpfs", "tmpfs", str(folder))

    def crash(self) -> None:
        """End everything that runs there at once, as a power cut would; the kernel still closes its connections."""
        self.namespaces.end_all()

    def close(self) -> None:
        self.namespaces.end_all()
        for process in self._started:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self.namespaces.close()


class Lab:
    """Hosts on one switch. Use `Lab.open`."""

    def __init__(self, folder: Path, names: Sequence[str], stack: ExitStack) -> None:
        self._switch = Namespaces()
        stack.callback(self._switch.close)
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "link", "set", "switch", "up")
        self.hosts: list[Host] = []
        addresses = {name: f"{PREFIX}.{number}" for number, name in enumerate(names, 1)}
        for number, name in enumerate(names, 1):
            host = Host(name, addresses[name], Namespaces(), f"port{number}")
            stack.callback(host.close)
            self._plug_in(host)
            _name(host, folder, addresses)
            self.hosts.append(host)

    @classmethod
    @contextmanager
    def open(cls, count: int = 2, names: Sequence[str] | None = None) -> Iterator[Lab]:
        """So many hosts, named host1, host2, … unless names are given. Everything is gone at the end."""
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="netlab-"))
            yield cls(Path(folder), names or [f"host{number}" for number in range(1, count + 1)], stack)

    def host(self, name: str) -> Host:
        """The host of that name."""
        return next(host for host in self.hosts if host.name == name)

    # Faults. Frames are dropped without a word: no carrier is lost, no error comes back. --------------------------

    def cut(self, host: Host) -> None:
        """Nothing gets through to or from this host."""
        self.cut_one_way(host, "in")
        self.cut_one_way(host, "out")

    def cut_one_way(self, host: Host, way: Literal["in", "out"]) -> None:
        """in: it hears nothing, and is heard. out: it is not heard, and hears."""
        self._queue(host, way, "blackhole")

    def slow(self, host: Host, bits_per_s: int) -> None:
        """Its link carries no more than that, either way."""
        for way in ("in", "out"):
            self._queue(host, way, "tbf", "rate", f"{bits_per_s}bit", "burst", "16kb", "latency", "2s")

    def restore(self, host: Host) -> None:
        """Its link is as it was."""
        for way in ("in", "out"):
            self._queue(host, way, "pfifo")

    def unplug(self, host: Host) -> None:
        """Its cable is out: the host itself sees that it has no carrier."""
        self._switch.run("ip", "link", "set", host.outside, "down")

    def plug_in(self, host: Host) -> None:
        self._switch.run("ip", "link", "set", host.outside, "up")

    def _queue(self, host: Host, way: str, *kind: str) -> None:
        """What leaves an end of the cable passes that end's queue: the host's for `out`, the switch's for `in`."""
        end, device = (host.namespaces, INSIDE) if way == "out" else (self._switch, host.outside)
        end.run("tc", "qdisc", "replace", "dev", device, "root", *kind)

    def _plug_in(self, host: Host) -> None:
        switch, outside, inside = self._switch, host.outside, host.namespaces
        switch.run(
            *("ip", "link", "add", outside, "type", "veth"),
            *("peer", "name", INSIDE, "netns", str(inside.pid)),
        )
        switch.run("ip", "link", "set", outside, "master", "switch", "up")
        inside.run("ip", "link", "set", "lo", "up")
        inside.run("ip", "address", "add", f"{host.address}/24", "dev", INSIDE)
        inside.run("ip", "link", "set", INSIDE, "up")


def _name(host: Host, folder: Path, addresses: Mapping[str, str]) -> None:
    """Its own name, the names of all, and its own devices below /sys."""
    hosts = folder / f"hosts-{host.name}"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    hosts.write_text("".join(f"{line}\n" for line in lines))
    host.run("sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname', host.name)
    host.run("mount", "--bind", str(hosts), "/etc/hosts")
    sys_folder = folder / f"sys-{host.name}"
    sys_folder.mkdir()
    host.run("mount", "-t", "sysfs", "-o", "ro", "sysfs", str(sys_folder))
    for part in ("class/net", "devices/virtual/net"):
        host.run("mount", "--bind", str(sys_folder / part), f"/sys/{part}")
    host.run("umount", str(sys_folder))
