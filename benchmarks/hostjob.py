"""One run on several hosts in network namespaces, under guardrun or torchrun: one rank a host."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from benchmarks.job import Job, Launcher
from tests.support.netlab import Lab

PORT = 29700


class HostJob(Job):
    """The same command on each of the lab's first hosts; the first one leads."""

    def __init__(
        self,
        launcher: Launcher,
        lab: Lab,
        script: str,
        arguments: Sequence[str] = (),
        *,
        nodes: int,
        spares: int = 0,
        flags: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """torchrun gets c10d's rendezvous: with a static one its agents never restart together."""
        self._hosts = lab.hosts[: nodes + spares]
        self._nodes, self._spares = nodes, spares
        super().__init__(launcher, script, arguments, ranks=nodes, flags=flags, environment=environment)

    def _start(self, launcher: list[str], script: list[str]) -> subprocess.Popen[bytes]:
        endpoint = f"{self._hosts[0].name}:{PORT}"
        job = [f"--nnodes={self._nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
        job += ["--rdzv-id=bench"]
        if self.launcher is Launcher.GUARDRUN:
            job.append(f"--guard-spares={self._spares}")
        command = [*launcher, *job, *script]
        with self._output.open("wb") as output:
            processes = [
                host.popen(command, self._environment, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
                for host in self._hosts
            ]
        self._others = processes[1:]
        return processes[0]
