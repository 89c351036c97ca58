"""The end of a node's lease where no supervisor is there to see it. Pure: the caller has the clock, `boot_s`.

A node's supervisor keeps the lease, and says once a second what it knows of it. Where it has fallen silent, it may be
gone, hang, or be given up, and the ranks would live on beside the next attempt. From then on the launcher goes by the
same rule (`ranks_end_s`), and by what the ranks' boards show of their progress.

A supervisor that is gone takes the contact with it: then the head hears nothing, though nothing is cut, and training
may go on as it would under torchrun. So only the lease of a node that was cut off already when its supervisor last
spoke ends here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.fleet.protocol.lease import ASLEEP_S, ranks_end_s
from guardrun.supervisor.wire.control_messages import Lease

QUIET_S = 2.0
"""Without a word, which comes once a second, no supervisor keeps the lease: with LOOK_S less than END_MARGIN_S."""
LOOK_S = 0.25
"""So often it is looked at where it may have to be ended here."""
UNANSWERED_S = 3.0
"""Contact older than this, when it was said, was cut: an answer comes once a second."""


class LeaseFence:
    """Says when a node's ranks are to be ended, where nobody else does."""

    def __init__(self) -> None:
        self._said: Lease | None = None
        self._lease: Lease | None = None
        """As it was said, with the progress since."""
        self._received_s, self._turned_s = -math.inf, math.inf
        self._joint: dict[int, int] = {}

    def receive(self, lease: Lease, now_s: float) -> None:
        """The newest that a supervisor has said, which may be known already."""
        if lease is self._said:
            return
        if self._said is None or self._said.attempt != lease.attempt:
            self._joint = {}
        self._said = self._lease = lease
        self._received_s = now_s

    def note(self, boards: Iterable[tuple[int, list[int]]], now_s: float, now_ns: int) -> None:
        """What the boards of the ranks, by global rank, show now. now_ns: as on them, CLOCK_MONOTONIC."""
        if self._lease is None:
            return
        for rank, words in boards:
            joint = words[Field.JOINT_SEQ]
            if joint > self._joint.get(rank, joint):
                # Counted at the hooks' beat: what the rank has done since is its own.
                moved_s = now_s - max(0.0, (now_ns - words[Field.HEART_NS]) / 1e9)
                progress_s = max(self._lease.progress_s, moved_s)
                self._lease = msgspec.structs.replace(self._lease, progress_s=progress_s)
            self._joint[rank] = joint

    def cut_off_lease(self, attempt: int) -> Lease | None:
        """What a new supervisor is to go by, of an attempt whose ranks it finds; None: it counts from its own start."""
        lease = self._lease
        if lease is None or lease.attempt != attempt or lease.at_s - lease.contact_s <= UNANSWERED_S:
            return None
        return lease

    def find_over(self, attempt: int, now_s: float) -> Lease | None:
        """The lease that the attempt's ranks are to be ended for now. To be asked at each turn of the loop."""
        if now_s - self._turned_s > ASLEEP_S:
            self._received_s = max(self._received_s, now_s)  # the node did not run, and its supervisor did not, either
        self._turned_s = now_s
        lease = self.cut_off_lease(attempt)
        if lease is None or now_s - self._received_s < QUIET_S:
            return None
        end_s = ranks_end_s(lease.contact_s, lease.progress_s, term_s=lease.term_s, still_s=lease.still_s)
        return lease if now_s >= end_s else None
