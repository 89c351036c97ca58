"""What a lab's Slurm is configured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LabSettings:
    """What may differ between labs; times are in seconds."""

    nodes: int = 4
    cpus: int = 2
    gpus: int = 0
    """A node; counted by Slurm, and nothing stands behind them."""
    slurmd_timeout_s: int = 10
    """Until a node whose slurmd is silent is DOWN (Slurm looks every third of it)."""
    kill_wait_s: int = 10
    """From SIGTERM to SIGKILL at a job's end."""
    grace_s: int = 10
    """From the signal to the end of a job that is preempted."""
    requeue_wait_s: int = 5
    """cred_expire: until a job that was requeued may start again; Slurm takes 120 by default, and 5 at the least."""
    topology: str = ""
    """topology.conf, of topology/tree; empty: none."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """More of slurm.conf: its names and values."""


def render_conf(settings: LabSettings, folder: Path, host: str, ports: list[int]) -> str:
    """slurm.conf. ports: the controller's, then one a node, in a row of their own each."""
    nodes = f"n[1-{settings.nodes}]" if settings.nodes > 1 else "n1"
    values = {
        "ClusterName": "lab",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(ports[0]),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.sock,cred_expire={settings.requeue_wait_s}",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{folder}/ctld",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/ctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "ReturnToService": "2",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "MpiDefault": "none",
        "SlurmdTimeout": str(settings.slurmd_timeout_s),
        "KillWait": str(settings.kill_wait_s),
        "MinJobAge": "300",
        "JobRequeue": "1",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "SchedulerParameters": "sched_interval=2,bf_interval=2",
        # Scripts that a test puts there, and takes away; none: nothing is done.
        "Prolog": f"{folder}/prolog.sh",
        "Epilog": f"{folder}/epilog.sh",
        "PrologFlags": "Alloc",
        "PrologEpilogTimeout": "30",
        "GresTypes": "gpu",
        **({"TopologyPlugin": "topology/tree"} if settings.topology else {}),
    } | dict(settings.extra)
    lines = [f"{name}={value}" for name, value in values.items()]
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    lines += [
        f"NodeName=n{index} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs={settings.cpus}"
        f" RealMemory=1000 State=UNKNOWN{gres}"
        for index, port in enumerate(ports[1:], 1)
    ]
    common = f"Nodes={nodes} MaxTime=INFINITE State=UP"
    lines += [
        f"PartitionName=main {common} Default=YES OverSubscribe=YES PriorityTier=1 GraceTime={settings.grace_s}",
        # A job here takes the nodes of jobs in main.
        f"PartitionName=urgent {common} PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"
