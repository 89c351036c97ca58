"""What torch's NCCL watchdog and its store say of other ranks: who timed out in which call, who had not issued it.

Pure; text in, facts out. The words are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (2.6 to 2.13) and
TCPStore.cpp. Whoever says them waited for somebody: it is a victim, whatever the process ends with.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from guardrun.supervisor.engine.observation.frames import ranks_text

MAX_LINES = 6
MAX_LINE_CHARS = 400

_PREFIX = re.compile(r"\[PG ID \S+ PG GUID (\S+?)\(([^)]*)\) Rank (\d+)\]")
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+).*?Timeout\(ms\)=(\d+)\)"
)
_STANDING = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d+),(?: last started work: -?\d+,)? last completed (?:NCCL )?work: (-?\d+)",
    re.IGNORECASE,
)
_STUCK = re.compile(
    r"watchdog got stuck for (\d+) seconds|due to ProcessGroupNCCL watchdog hang"
    r"|Heartbeat monitor timed out.*NCCL watchdog"
)
_ENDED_BY_PEER = re.compile(r"Terminating the process after attempting to dump debug info, due to collective timeout")
_JOINED = re.compile(r"Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined")
_UNIQUE_ID = re.compile(
    r"retrieving ncclUniqueId from \[(\d+)\] via c10d key-value store by key '([^']*)'(?:.*keys: (\S*))?", re.DOTALL
)
_PEER = re.compile(r"(?:remote peer|from peer|Connect to|recv from|send to) \[?([^\s<>\[\]]+?)\]?<\d+>")
"""nccl src/misc/socket.cc and src/transport/net_ib*: `NET/IB: Got completion from peer 10.0.0.7<41234> with …`."""
_TELLING = (_TIMEOUT, _STANDING, _STUCK, _ENDED_BY_PEER)
FEW = 3
"""Of as many ranks that had a timeout, one may be named for having said nothing: before the first of them ends, each
monitor has had a second or more to tell how far its rank was."""
DEFAULT_GROUP = "default_pg"
"""The name of the group of all ranks, in which a member's number is its rank's."""


class CallTimeout(msgspec.Struct, frozen=True):
    """A call that a rank has waited in until the group's timeout."""

    seq: int
    op: str
    limit_s: float


class BackendWords(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's last words say of its groups."""

    group: str = ""
    """Description of the group that they are of: `default_pg`, or what the script calls it; empty: none is named."""
    timeout: CallTimeout | None = None
    enqueued: int | None = None
    """The group's calls that it had issued; None: not told."""
    is_stuck: bool = False
    """Its watchdog's own thread has stood still in a call of NCCL or CUDA."""
    was_ended_by_peer: bool = False
    """Its monitor has ended it because another rank had a timeout."""
    lacks: tuple[int, int] | None = None
    """(joined, expected) clients of the store, where some never came."""
    awaits_id: bool = False
    """It waited for another's id to connect to, …"""
    awaits_rank: int | None = None
    """… that rank's; None where it is a member of another group than that of all."""

    @property
    def is_victim(self) -> bool:
        """Whether it says that it waited for another."""
        return self.timeout is not None or self.was_ended_by_peer or self.lacks is not None or self.awaits_id


NOTHING_SAID = BackendWords()


def read_words(text: str) -> BackendWords:
    """Read a rank's last words: the end of its stderr, or its exception's message."""
    if not text:
        return NOTHING_SAID
    timeout, standing = _TIMEOUT.search(text), _STANDING.search(text)
    joined, unique_id = _JOINED.search(text), _UNIQUE_ID.search(text)
    is_default = unique_id is not None and DEFAULT_GROUP in (unique_id[3] or unique_id[2])
    return BackendWords(
        group=_group(text, standing.start() if standing else timeout.start() if timeout else 0),
        timeout=CallTimeout(int(timeout[1]), timeout[2], int(timeout[3]) / 1000) if timeout else None,
        enqueued=int(standing[1]) if standing else None,
        is_stuck=_STUCK.search(text) is not None,
        was_ended_by_peer=_ENDED_BY_PEER.search(text) is not None,
        lacks=(int(joined[2]), int(joined[3])) if joined and int(joined[2]) < int(joined[3]) else None,
        awaits_id=unique_id is not None,
        awaits_rank=int(unique_id[1]) if unique_id and is_default else None,
    )


def _group(text: str, at: int) -> str:
    """The group of the last prefix before a place in the text, else of the first at all."""
    before = [match for match in _PREFIX.finditer(text) if match.start() < at]
    found = before[-1] if before else _PREFIX.search(text)
    return found[2] if found else ""


def telling_lines(text: str) -> str:
    """The lines of a long text that `read_words` would go by; empty where there are none."""
    lines = [line[:MAX_LINE_CHARS] for line in text.splitlines() if any(one.search(line) for one in _TELLING)]
    return "\n".join(lines[:MAX_LINES])


def lost_peers(text: str) -> list[str]:
    """Hosts or addresses that NCCL says it has lost the connection to, each once."""
    return list(dict.fromkeys(_PEER.findall(text)))


# Together ---------------------------------------------------------------------------------------------------------


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """What the words of all ranks say together: who waited for whom."""

    culprits: list[int]
    """Empty where it cannot be told."""
    confidence: float
    what: str
    """The culprits' part, as a clause after their name; empty without culprits."""
    why_nobody: str


def who_was_waited_for(words: Mapping[int, BackendWords], silent: list[int]) -> Waited | None:
    """Put together what ranks said; None where nobody said anything of others.

    silent: ranks of the attempt that ended without any such words.
    """
    return _by_calls(words, silent) or _by_store(words, silent) or _by_unique_id(words) or _by_stuck_watchdogs(words)


def _by_calls(words: Mapping[int, BackendWords], silent: list[int]) -> Waited | None:
    """Ranks that timed out in a call that others had not issued, or of which nothing is heard."""
    calls: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for rank, said in words.items():
        if said.timeout is not None:
            calls[said.group or DEFAULT_GROUP, said.timeout.seq, said.timeout.op].append(rank)
    if not calls:
        return None
    (group, seq, op), waited = max(calls.items(), key=lambda one: (len(one[1]), -one[0][1]))
    behind = sorted(
        rank
        for rank, said in words.items()
        if rank not in waited and said.enqueued is not None and said.enqueued < seq and said.group == group
    )
    absent = behind
    if not behind and group == DEFAULT_GROUP and len(silent) * FEW <= len(waited):
        absent = sorted(silent)  # of other groups nobody knows here who belongs to them
    first = words[waited[0]].timeout
    assert first is not None
    call = f"{op}, call {seq} of {group}"
    until = f"in which {ranks_text(sorted(waited))} waited until its timeout of {first.limit_s:.0f} s"
    if absent and len(absent) <= len(waited) and len(waited) > 1:
        verb = "had not issued" if behind else "said nothing of"
        return Waited(culprits=absent, confidence=0.9 if behind else 0.7, what=f"{verb} {call}, {until}", why_nobody="")
    if behind:
        why = f"{ranks_text(behind)} had not issued {call}, {until}: which of them is wrong cannot be told"
    else:
        why = f"every rank that fell had waited in a collective until its timeout ({call}, {until})"
    return Waited(culprits=[], confidence=0.5, what="", why_nobody=why)


def _by_store(words: Mapping[int, BackendWords], silent: list[int]) -> Waited | None:
    """Ranks that never came to the store of init_process_group."""
    said = next((one.lacks for one in words.values() if one.lacks is not None), None)
    if said is None:
        return None
    joined, expected = said
    lacking = expected - joined
    told = f"{joined} of {expected} ranks had come to init_process_group when its timeout was over"
    if len(silent) == lacking:
        return Waited(
            culprits=sorted(silent), confidence=0.8, what=f"never got to init_process_group ({told})", why_nobody=""
        )
    return Waited(culprits=[], confidence=0.5, what="", why_nobody=f"{told}, and who did not come cannot be told")


def _by_unique_id(words: Mapping[int, BackendWords]) -> Waited | None:
    """The rank that was to tell the others how to connect, and did not."""
    awaited = Counter(said.awaits_rank for said in words.values() if said.awaits_rank is not None)
    if not awaited:
        return None
    rank, count = awaited.most_common(1)[0]
    if rank in words and words[rank].is_victim:
        return None
    what = f"never got to the first collective, for which {count} other{'s' if count > 1 else ''} waited for its id"
    return Waited(culprits=[rank], confidence=0.8, what=what, why_nobody="")


def _by_stuck_watchdogs(words: Mapping[int, BackendWords]) -> Waited | None:
    """Ranks whose watchdog stood still: a device or its driver does not answer, there or behind a link."""
    stuck = sorted(rank for rank, said in words.items() if said.is_stuck)
    if not stuck:
        return None
    if len(stuck) == 1:
        what = "had its NCCL watchdog stuck in a call of NCCL or CUDA: its device does not answer"
        return Waited(culprits=stuck, confidence=0.7, what=what, why_nobody="")
    why = f"the NCCL watchdogs of {ranks_text(stuck)} were stuck in calls of NCCL or CUDA: a device or a link"
    return Waited(culprits=[], confidence=0.5, what="", why_nobody=why)
