"""Ranks agree on whether a step is left out, by way of the store at which torch's ranks have met.

No collective: a rank that never comes would hang the others in it. Here whoever comes adds itself to a counter, the
last one to come writes the verdict down, and the others wait for that, WAIT_S at most. Who has waited for so long
writes down that there is none. The store takes the first verdict that is written and no other, so all ranks have the
same, those that come too late included: the step is taken, and these ranks are not asked to agree any more.

    key/7    arrivals of the seventh time, and in the upper half of the number how many of them want the step left out
    key/7v   the verdict

The connection to the store is our own: torch's threads never wait for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

WAIT_S = 10.0
"""For ranks that have come out of the same collective. Below [hang] tell_s: nobody takes it for a stall."""
MAX_RANKS = 256
"""That agree, unless more are known to have room: each is one more connection of the process that has the store, which
may hold 1,024 by default."""
LEAVE_OUT, TAKE, NONE = b"leave out", b"take", b"none"
_WANTS = 1 << 32


class Agreement:
    """One rank's part in it. Each rank asks in the same order, under the same keys."""

    def __init__(self, store: Any, world_size: int) -> None:
        """store: of torch.distributed, with a prefix of ours, for no one else's use. world_size: who has to come."""
        self._store = store
        self._world_size = world_size
        self._rounds: dict[str, int] = {}

    def ask(self, key: str, *, wants: bool) -> bool | None:
        """Whether the step is to be left out, as any rank that comes wants it; None: not all ranks have come.

        May raise what the store does.
        """
        number = self._rounds[key] = self._rounds.get(key, 0) + 1
        name = f"{key}/{number}"
        sum_ = self._store.add(name, 1 + (_WANTS if wants else 0))
        arrived = sum_ % _WANTS
        if arrived == self._world_size:
            verdict = self._decide(name, LEAVE_OUT if sum_ >= _WANTS else TAKE)
            self._forget(f"{key}/{number - 1}")
        elif arrived > self._world_size:
            verdict = NONE
        else:
            verdict = self._wait(name)
        return None if verdict == NONE else verdict == LEAVE_OUT

    def refuse(self, key: str) -> None:
        """Have there be no verdict of the next time, unless there is one already: this rank will not come for it.

        Who has come, or will, need not wait. May raise what the store does.
        """
        self._decide(f"{key}/{self._rounds.get(key, 0) + 1}", NONE)

    def _decide(self, name: str, verdict: bytes) -> bytes:
        """The verdict, unless there is another by now."""
        return bytes(self._store.compare_set(f"{name}v", "", verdict.decode()))

    def _wait(self, name: str) -> bytes:
        try:
            self._store.wait([f"{name}v"], timedelta(seconds=WAIT_S))
        except RuntimeError:  # torch.distributed.DistStoreError is one: not all have come
            pass
        return self._decide(name, NONE)

    def _forget(self, name: str) -> None:
        """All have come by for the next: nobody reads this any more."""
        self._store.delete_key(name)
        self._store.delete_key(f"{name}v")


def find_store(c10d: Any, most: int = MAX_RANKS) -> tuple[Any, str]:
    """The TCPStore of the default process group; or None, and why ranks can't agree by way of it.

    c10d: torch.distributed.distributed_c10d, with a process group. most: ranks that may.
    """
    store = c10d._get_default_store()
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    if type(store).__name__ != "TCPStore":
        return None, f"ranks have met by a {type(store).__name__}, where they can't agree on a step"
    if c10d.get_world_size() > most:
        return None, f"more than {most} ranks would have to agree"
    return store, ""


def connect(c10d: Any, prefix: str, limit_s: float = WAIT_S, most: int = MAX_RANKS) -> Any:
    """A connection of our own to that store. Raises where none can be had within limit_s.

    prefix: of our keys, of nobody else's in all the time that the store is there.
    """
    store, why = find_store(c10d, most)
    if store is None:
        raise RuntimeError(why)
    limit = timedelta(seconds=limit_s)
    own = type(store)(store.host, store.port, is_master=False, wait_for_workers=False, timeout=limit)
    return c10d.PrefixStore(prefix, own)
