"""What the hosts of a job show, and what guardrun makes of that and of their flight recorders: the whole way.

Dumps as the ranks' worker servers would answer them, read (`parse_trace`), joined with the hooks' calls (`join`), put
together (`match`), judged (`judge`), and found (`find`), as the engine and `guardctl diagnose` do it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from guardrun.supervisor.collect.collectives.flight_recorder import merge_traces, parse_trace
from guardrun.supervisor.collect.collectives.process_groups import LAST_CALLS, join
from guardrun.supervisor.diagnose.hang_finding import Judged, judge_seen
from guardrun.supervisor.diagnose.scene import Glance
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.events import Rank, Settings
from guardrun.supervisor.engine.model.looks import PYSPY, Frame, GroupLook, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import Attempt, RankState, State
from tests.support.recorder_dumps import SCRIPT, WALL_NS, Job
from tests.support.recorder_script import FIRST, SECOND

BEFORE_S, AFTER_S = 1000.0, 1008.0
TRAIN = Frame("train", SCRIPT, 60)
SLEEPS = Frame("fetch_vocabulary", SCRIPT, 73)
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


@dataclass(frozen=True)
class Host:
    """How a rank's host looks; rates are a second."""

    stack: tuple[Frame, ...] = (TRAIN,)
    state: str = "S"
    cpu: float = 0.0
    io: float = 0.0
    has_gil: bool = True
    looks: dict[str, Any] = field(default_factory=dict)
    """Fields of RankLook."""
    advances: int = 0
    """Collectives that its heart counts between the looks."""
    is_read: bool = True
    """Its flight recorder could be."""
    is_garbled: bool = False
    """The last entry of its dump can't be read."""
    is_late: bool = False
    """Its dump of the second look is that of the first."""


HOSTS = {
    "sync": Host(state="R", cpu=1.0),  # Spins in a synchronisation: `loss.item()`.
    "sync, unread": Host(state="R", cpu=1.0, is_read=False),
    "sync, garbled": Host(state="R", cpu=1.0, is_garbled=True),
    "asleep": Host((SLEEPS, TRAIN)),
    "asleep, unread": Host((SLEEPS, TRAIN), is_read=False),
    "spins": Host((Frame("wait_for_flag", SCRIPT, 80), TRAIN), "R", 1.0),
    "launch": Host((TRAIN,), "R", 1.0, has_gil=False),  # Keeps the GIL in a launch on a full queue.
    "driver": Host((TRAIN,), "D"),
    "stopped": Host(state="T"),
    "barrier": Host(
        (Frame("barrier", f"{TORCH}/distributed/distributed_c10d.py", 4900), TRAIN), looks={"in_collective": "barrier"}
    ),
    "creates": Host(looks={"in_collective": "all_reduce"}),  # A communicator, in the group's first call.
    "saves": Host((Frame("save", SCRIPT, 75), TRAIN), "D", looks={"phase": "save"}),
    "writes": Host((Frame("save", SCRIPT, 75), TRAIN), io=2e8),
    "trains": Host(state="R", cpu=1.0, advances=40),
    "late": Host(state="R", cpu=1.0, is_late=True),
}


def verdict(job: Job, hosts: dict[int, str], *, has_page: bool = True, last: int = LAST_CALLS) -> tuple[Judged, str]:
    """What is found, and the sentence on it; hosts: those that are not in a synchronisation.

    has_page: False where the recorder is all that there is. last: completed calls that are kept of a group.
    """
    attempt = Attempt(
        number=0,
        started_s=1.0,
        ranks={n: RankState(rank=Rank(global_rank=n, local_rank=n, pid=1000 + n, node="a")) for n in range(job.ranks)},
    )
    state = State(phase=Phase.RUNNING, settings=Settings(), world_size=job.ranks, attempt=attempt)
    glances = []
    for look, at_s in ((FIRST, BEFORE_S), (SECOND, AFTER_S)):
        ranks = {}
        for rank in range(job.ranks):
            host = HOSTS[hosts.get(rank, "sync")]
            told = groups_of(job, rank, host, look, has_page=has_page, last=last)
            ranks[rank] = _look(job, rank, host, look, told)
        glances.append(Glance(state, ranks, {}, at_s, at_s))
    judged = judge_seen(glances[0], glances[1])
    found = judged.found
    return judged, "" if found is None else hang_sentence(attempt, found, judged.by_rank, 40)


def groups_of(
    job: Job, rank: int, host: Host, look: int = SECOND, *, has_page: bool = True, last: int = LAST_CALLS
) -> list[GroupLook]:
    """A rank's own account of its groups, as a look has it."""
    trace = None
    if host.is_read:
        backends = ["nccl", "gloo"] if job.uses_gloo(rank) else ["nccl"]
        dumps = [job.dump(rank, FIRST if host.is_late else look, backend) for backend in backends]
        if host.is_garbled:
            head, _, tail = dumps[0].rpartition(b'"state": "')
            dumps[0] = head + b'"state": "un' + tail
        trace = merge_traces(parse_trace(dump) for dump in dumps)
        assert bool(trace.trouble) == host.is_garbled
    page = job.page(rank, look) if has_page else None
    return join(page, trace, at_ns=lambda ns: ns / 1e9, wall_ns=WALL_NS, last=last)


def _look(job: Job, rank: int, host: Host, look: int, told: list[GroupLook]) -> RankLook:
    at_s = AFTER_S if look == SECOND else BEFORE_S
    counted = sum(group.issued_by_heart for group in job.page(rank, look).groups)
    return RankLook(
        global_rank=rank,
        at_s=at_s,
        process=_process(rank, host, at_s),
        heart_s=at_s if host.has_gil else 10.0,
        group_seq=counted + (host.advances if look == SECOND else 0),
        groups=told,
        **host.looks,
    )


def _process(rank: int, host: Host, at_s: float) -> ProcessLook:
    thread = ThreadLook(tid=1000 + rank, is_main=True, cpu_s=host.cpu * at_s, switches=5, frames=list(host.stack))
    return ProcessLook(
        pid=1000 + rank,
        state=host.state,
        cpu_s=host.cpu * at_s,
        io_bytes=int(host.io * at_s),
        threads=[thread],
        source=PYSPY,
    )
