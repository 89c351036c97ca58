"""The type of the fixture fake_slurm, and a job as Slurm prints it."""

from __future__ import annotations

from collections.abc import Callable

from guardrun.slurm.client.commands import Slurm

FakeSlurm = Callable[..., Slurm]
JOB = (
    "JobId=2 ArrayJobId=2 ArrayTaskId=7 JobName=we ird UserId=1 JobState=FAILED UserId=root(0) GroupId=root(0)"
    " MCS_label=N/A JobState=RUNNING Reason=None Requeue=1 Restarts=1 BatchFlag=1 SubmitTime=1795266190"
    " StartTime=1795266198 EndTime=1795266798 PreemptTime=None Partition=main ExcNodeList=n4 NodeList=n[1-2]"
    " NumNodes=2-2 CPUs/Task=1 AllocNode:Sid=h:1 Command=/x/run me.sh --a=1 WorkDir=/x JobState=FAILED"
)
