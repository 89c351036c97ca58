"""A real Slurm of several nodes on this machine, for tests: `lab.submit(script)`, `lab.kill_node("n3")`.

One is shared by all tests of a session (fixture `slurm_session`); a test takes it by `slurm_lab`, which gives it with
all nodes idle and takes it back without jobs. A test that needs another configuration makes a SlurmLab of its own.

Every lab has a folder, a munged and ports of its own: any number may run at once. All nodes share the machine: they see
one hostname, one /tmp and one another's processes. Tell them apart by SLURMD_NODENAME. Daemons and jobs run as root
(`user="nobody"` asks Slurm as another). No accounting: sacct knows nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.forkserver.alone import make_programs
from tests.support.guardrun_run import clean_environment
from tests.support.ports import free_ports
from tests.support.processes import Process, descendants, is_alive, kill, read_process
from tests.support.slurmlab_conf import LabSettings, render_conf
from tests.support.waiting import wait_until

KEEPER = Path(__file__).with_name("slurmlab_keeper.py")
START_S = 60.0
CALL_S = 60.0


class SlurmLab:
    """A running Slurm: munged, slurmctld, and slurmd for each of n1, n2, …"""

    def __init__(self, settings: LabSettings | None = None) -> None:
        self.settings = settings or LabSettings()
        self.nodes = [f"n{index + 1}" for index in range(self.settings.nodes)]
        self.folder = Path(tempfile.mkdtemp(prefix="slurmlab-"))
        self.state = self.folder / "state"
        """Where guardrun keeps what it knows of the nodes; a test finds it empty."""
        self.programs = make_programs(self.folder / "venv")
        """Where a guardrun lies that forks what it starts."""
        self._inits: dict[str, int] = {}
        """Pids below which daemons live, by the daemon's node, or its name."""
        try:
            self._make_folder()
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment("", {}),
            )
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    @property
    def munge_socket(self) -> str:
        """Of the lab's own munged."""
        return f"{self.folder}/munge.sock"

    @property
    def guardctl(self) -> tuple[str, ...]:
        """guardctl as one whose scripts start the guardrun of `programs`."""
        return str(self.programs / "python"), "-m", "guardrun.supervisor.cli.guardctl"

    # Asking Slurm ------------------------------------------------------------------------------------------------

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a process needs to speak with this Slurm; nothing of another one, nor of a run.

        What guardrun isolates in the lab is kept in the lab: its nodes' names are not this machine's.
        """
        own = {"SLURM_CONF": f"{self.folder}/slurm.conf", "GUARDRUN_NODE_STATE_DIR": str(self.state)}
        return clean_environment("", {**own, **(extra or {})})

    def run(
        self,
        *command: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        is_checked: bool = True,
        timeout_s: float = CALL_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs, or anything that should speak with this Slurm.

        user: under whose account. is_checked: raise AssertionError, with what it printed, unless it ends with 0.
        """
        done = subprocess.run(
            [os.fspath(part) for part in command],
            env=self.environment(env),
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            user=user,
            group=None if user is None else "nogroup",
            extra_groups=None if user is None else [],
        )
        assert not is_checked or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, script: str, *flags: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Submit a batch script by its text (a line `#!` is put before one without); the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        descriptor, path = tempfile.mkstemp(suffix=".sh", dir=self.folder)
        with open(descriptor, "w") as file:
            file.write(text)
        where = () if any(flag.startswith(("-o", "--output")) for flag in flags) else ("-o", f"{self.folder}/out-%j")
        return self.run("sbatch", "--parsable", *where, *flags, path, env=env, cwd=cwd).stdout.strip().split(";")[0]

    def output(self, job: str) -> str:
        """What a submitted job has printed so far, where `submit` was left to choose its file."""
        path = self.folder / f"out-{job}"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`; empty for one that Slurm does not know (any more)."""
        done = self.run("scontrol", "show", "job", "-o", job, is_checked=False)
        return dict(re.findall(r"(\S+?)=(\S*)", done.stdout)) if done.returncode == 0 else {}

    def node(self, node: str) -> dict[str, str]:
        """The fields of `scontrol show node`; of Reason its whole text."""
        text = self.run("scontrol", "show", "node", "-o", node).stdout
        fields = dict(reversed(re.findall(r"(\S+?)=(\S*)", text)))  # a reason, at the end, may hold anything
        reason = re.search(r"\bReason=(.*?)( \[\S+@[^\]]*\])?( Comment=|$)", text.strip())
        return fields | {"Reason": reason[1] if reason else ""}

    def wait_state(self, job: str, *states: str, timeout_s: float = 20.0) -> dict[str, str]:
        """Wait until a job is in one of these states (RUNNING, PENDING, COMPLETED, …); its fields then."""
        seen: dict[str, str] = {}

        def is_there() -> bool:
            seen.clear()
            seen.update(self.job(job))
            return seen.get("JobState") in states

        try:
            wait_until(is_there, timeout_s, f"job {job} to be {' or '.join(states)}", every_s=0.1)
        except TimeoutError as error:
            said = self.output(job)[-4000:]
            raise TimeoutError(f"{error}; it is {seen}; it said:\n{said}\n{self._log_tail()}") from None
        return dict(seen)

    def wait_node(self, node: str, *states: str, timeout_s: float = 20.0) -> None:
        """Wait until a node's state has one of these words: IDLE, ALLOCATED, MIXED, DRAIN, DOWN, …"""
        wanted = set(states)
        wait_until(
            lambda: wanted & set(re.split(r"[+*]", self.node(node).get("State", ""))),
            timeout_s,
            f"{node} to be {' or '.join(states)}",
            every_s=0.1,
        )

    # What befalls nodes ------------------------------------------------------------------------------------------

    def processes_of(self, node: str) -> list[Process]:
        """Everything that runs on a node, slurmd and steps included; by descent, so whatever it was started for."""
        init = self._inits.get(node)
        found = descendants(init) if init is not None else []
        return [process for process in found if process.state not in "ZX"]

    def kill_node(self, node: str) -> None:
        """The node loses its power: slurmd and all that runs there is gone, at once and without a word."""
        self.stop_node(node)
        while left := self.processes_of(node):
            # Children first: their parents stand still and say nothing of it. The kernel would wake a stopped process
            # whose parent dies, with SIGHUP: srun takes that for an order to end the step on all nodes.
            for process in reversed(left):
                kill(process)
        init = read_process(self._inits.pop(node, -1))
        if init is not None:
            kill(init)

    def stop_node(self, node: str) -> None:
        """The node stands still (SIGSTOP to everything there), until `continue_node`."""
        stopped: set[int] = set()
        while fresh := [process for process in self.processes_of(node) if process.pid not in stopped]:
            for process in fresh:
                stopped.add(process.pid)
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)

    def continue_node(self, node: str) -> None:
        for process in self.processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    def start_node(self, node: str) -> None:
        """Start the node's slurmd (again)."""
        self._inits[node] = self._order(f"slurmd {node}")

    def stop_controller(self) -> None:
        """slurmctld is ended, once it has saved what it knows: every question to Slurm waits, or fails."""
        init = read_process(self._inits.pop("slurmctld"))
        below = descendants(init.pid) if init else []
        for process in below:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            wait_until(lambda: not any(is_alive(process.pid) for process in below), 10.0, "slurmctld's end")
        for process in [*below, init] if init else []:
            kill(process)

    def start_controller(self) -> None:
        self._inits["slurmctld"] = self._order("slurmctld")
        wait_until(lambda: self._states() is not None, START_S, "slurmctld", every_s=0.1)

    def drain(self, node: str, reason: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def set_prolog(self, text: str) -> None:
        """A script that every node runs as root before a job; empty: none."""
        self._set_script("prolog", text)

    def set_epilog(self, text: str) -> None:
        """A script that every node runs as root after a job; empty: none."""
        self._set_script("epilog", text)

    # Beginning and end -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """As it was at the beginning: no jobs, no scripts, nothing known of the nodes, all of them idle."""
        self.set_prolog("")
        self.set_epilog("")
        for node in self.nodes:
            if node not in self._inits or not self.processes_of(node):
                self.start_node(node)
            else:
                self.continue_node(node)
        if "slurmctld" not in self._inits:
            self.start_controller()
        jobs = self.run("squeue", "-h", "-o", "%A").stdout.split()
        if jobs:
            self.run("scancel", "--signal=KILL", *jobs, is_checked=False)
            self.run("scancel", *jobs, is_checked=False)
        wait_until(lambda: not self.run("squeue", "-h").stdout.strip(), START_S, "the end of all jobs", every_s=0.1)
        shutil.rmtree(self.state, ignore_errors=True)
        self._wait_idle()

    def close(self) -> None:
        """End every process of this lab and remove its folder."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        for node in self.nodes:
            self.continue_node(node)
        self._keeper.stdin.close()
        try:
            self._keeper.wait(START_S)
        except subprocess.TimeoutExpired:
            for process in [*descendants(self._keeper.pid), read_process(self._keeper.pid)]:
                if process is not None:
                    kill(process)
            self._keeper.wait()
        self._keeper.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> None:
        self.folder.chmod(0o755)
        for name in ("ctld", "spool", "log", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for name in ("prolog", "epilog"):
            script = self.folder / f"{name}.sh"
            script.write_text(f"#!/bin/sh\n[ -x {self.folder}/{name} ] || exit 0\nexec {self.folder}/{name}\n")
            script.chmod(0o755)
        host = socket.gethostname().partition(".")[0]
        conf = render_conf(self.settings, self.folder, host, free_ports(1 + len(self.nodes)))
        (self.folder / "slurm.conf").write_text(conf)
        if self.settings.topology:
            (self.folder / "topology.conf").write_text(self.settings.topology)
        if self.settings.gpus:
            devices = [self.folder / f"gpu{index}" for index in range(self.settings.gpus)]
            for device in devices:
                device.touch()
            (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))

    def _start_all(self) -> None:
        self._inits["munged"] = self._order("munged")
        wait_until((self.folder / "munge.sock").exists, START_S, "munged")
        self._inits["slurmctld"] = self._order("slurmctld")
        for node in self.nodes:
            self.start_node(node)
        try:
            self._wait_idle()
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self._log_tail()}") from None

    def _wait_idle(self) -> None:
        """Wait until every node is idle; one that is down or drained is asked to come back."""

        def is_idle() -> bool:
            states = self._states()
            if states is None:
                return False
            for node, state in states.items():
                if state.rstrip("*") in {"down", "drained", "draining", "drng", "drain"}:
                    self.run("scontrol", "update", f"nodename={node}", "state=resume", is_checked=False)
            return set(states) == set(self.nodes) and set(states.values()) == {"idle"}

        wait_until(is_idle, START_S, "all nodes to be idle", every_s=0.1)

    def _states(self) -> dict[str, str] | None:
        """What sinfo says of each node; None while no controller answers."""
        done = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", is_checked=False)
        if done.returncode:
            return None
        return {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}

    def _order(self, order: str) -> int:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(f"{order}\n")
        self._keeper.stdin.flush()
        return int(self._keeper.stdout.readline())

    def _set_script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        if text:
            fresh = path.with_suffix(".new")
            fresh.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}")
            fresh.chmod(0o755)
            fresh.rename(path)

    def _log_tail(self) -> str:
        logs = [self.folder / "log" / "slurmctld.log", *sorted((self.folder / "log").glob("slurmd-*.log"))]
        texts = [
            f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in logs if path.exists()
        ]
        return "\n".join(texts)
