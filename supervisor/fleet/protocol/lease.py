"""Contact as a lease: a node knows that it has lost the job before the job may go on without it.

The danger is two attempts at once: the head believes a node dead and starts the next attempt, while that node, cut off,
trains on and writes checkpoints. So a node may keep ranks only while it holds a lease:

- The node's side: every frame that goes to the head says when it was sent, on the node's clock; the answer says that
  time again. The lease runs until `term_s` after the *sending* of the newest frame that was answered.
- The head's side: it gives a node up for gone only when `term_s` has passed since the *receipt* of its newest frame.

Why that is enough, whichever way a link is cut and however long frames lie on the way: let the newest frame that the
node has an answer to be sent at real time S. The head received that frame, at a real time R ≥ S (an answer is only
given to what was received, and nothing is received before it is sent). The node's lease ends at S plus the term, the
head's begins no earlier than R: so the head's ends no earlier than the node's. If the way up is cut, the newest frames
are neither received nor answered: both ends count from the last that got through. If the way down is cut, the head
hears of newer frames, which only makes it wait longer. An answer that lies on the way for an hour extends nothing: it
counts from its frame's sending. A frame that lies on the way only makes R later.

Two clocks do not run alike: if either is wrong by no more than CLOCK_RATE, what the node takes for the term lasts at
most term / (1 - CLOCK_RATE), and the head's clock may show (1 + CLOCK_RATE) times that. The head waits so much longer.

What the argument asks of its users:
- The clocks must not stand still while ranks run: CLOCK_MONOTONIC does not, in a process that is stopped or starved;
  where the whole machine is suspended (and comes back), its ranks were too, but CLOCK_BOOTTIME goes on and this does
  not: the node's side takes CLOCK_BOOTTIME (`boot_s`).
- The lease is only as good as who acts on its end. The node needs time to end its ranks after the lease is over: the
  head adds it (`margin_s`). A supervisor that is itself stopped acts on nothing: the launcher, which ends or replaces
  a supervisor that gives no sign of life, must be done within that margin, too.
- A head that was started anew does not know what its predecessor received last: it counts every node from its own
  start (`HeadLease(term_s, now_s)`), which is later than whatever that one can have answered.
- The term is one for the whole run: a head that would shorten it would have to wait for the longer one first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from guardrun.supervisor.engine.model.events import RankReport

CLOCK_RATE = 1e-3
"""The most that a clock's rate is taken to be off: NTP slews by no more than 500 ppm (adjtimex(2)), and crystals are
off by 100 ppm at most."""


STILL_S = 5.0
"""A node whose lease is over keeps its ranks while they advance with others, and so long after that: without contact
it cannot know whether those are gone, and their end is the end of such progress. The head waits as long after it."""


MOST_STILL_S = 60.0
STEPS = 2.0
"""A node may be as still as so many times the longest of its last KEPT pauses between two advances."""
KEPT = 20
START = 2
"""What lies before the second advance is the start's: a resumed rank shows its checkpoint's step at once."""


class ProgressTimeout:
    """How long a node's ranks may stand still before that counts as no progress: STILL_S, longer where steps are long.

    The node and the head follow the same reports, so that what the node allows itself, the head waits for. What counts
    is what ranks do together with those of other nodes (RankReport.joint): it ends when the others have been stopped.
    What a node does by itself, an evaluation, steps between two exchanges, or all that it does where nothing is seen to
    tie it to others, could go on for ever beside the next attempt.
    """

    def __init__(self, is_partial: bool = False) -> None:
        """is_partial: the ranks have been followed by others before, whose limit is not known."""
        self._is_partial = is_partial
        self._joint: dict[int, int] = {}
        self._gaps_s: deque[float] = deque(maxlen=KEPT)
        self._has_steps = False
        self._advances = 0
        self._at_s = 0.0

    def note(self, ranks: Iterable[RankReport], now_s: float) -> bool:
        """Take a report in; whether it shows that the ranks have advanced. now_s: of any one clock."""
        has_moved = has_steps = False
        for rank in ranks:
            number = rank.global_rank
            has_moved = has_moved or rank.joint > self._joint.get(number, 0)
            has_steps = has_steps or rank.step > 0
            self._joint[number] = rank.joint
        if has_steps and not self._has_steps:  # what came before was the start
            self._has_steps, self._advances = True, 0
            self._gaps_s.clear()
        if not has_moved:
            return False
        if self._advances >= START:
            self._gaps_s.append(now_s - self._at_s)
        self._advances += 1
        self._at_s = now_s
        return True

    @property
    def limit_s(self) -> float:
        """So long without progress is none."""
        if self._is_partial and len(self._gaps_s) < KEPT:
            return MOST_STILL_S
        return max(STILL_S, min(STEPS * max(self._gaps_s, default=0.0), MOST_STILL_S))


ASLEEP_S = 2.0
"""Between two turns of a loop that turns once a second: it, or all of its node, was frozen, suspended or starved."""
WAKE_S = 5.0
"""A node that did not run asks for so long whether its ranks are still meant, before it goes by what it missed."""


class Waking:
    """Whether a node is still to ask: once for each loss of contact, as a loop that is always late has a lease, too."""

    def __init__(self, now_s: float) -> None:
        """now_s: as everywhere here, of `boot_s`."""
        self._turned_s = now_s
        self._asks_until_s = now_s

    def turn(self, now_s: float, lost_s: float) -> bool:
        """To be called at each turn of the loop. lost_s: how long ago the lease ended; 0: it is held."""
        if now_s - self._turned_s > ASLEEP_S and now_s - lost_s > self._turned_s:
            self._asks_until_s = now_s + WAKE_S
        self._turned_s = now_s
        return now_s < self._asks_until_s


def head_term_s(term_s: float) -> float:
    """How long the head's clock must run to be sure that a node's clock has shown term_s."""
    return term_s * (1 + CLOCK_RATE) / (1 - CLOCK_RATE)


def boot_s() -> float:
    """The node's clock for the lease: goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NodeLease:
    """The node's side. Times are seconds of the node's own clock, one that goes on in suspend."""

    def __init__(self, term_s: float) -> None:
        self.term_s = term_s
        self._answered_s: float | None = None

    def answered(self, sent_s: float) -> None:
        """A frame that was sent at sent_s has been answered."""
        if self._answered_s is None or sent_s > self._answered_s:
            self._answered_s = sent_s

    @property
    def ends_s(self) -> float | None:
        """When the lease ends, or ended; None: there has been none."""
        return None if self._answered_s is None else self._answered_s + self.term_s

    def is_held(self, now_s: float) -> bool:
        """Whether ranks may run."""
        return self._answered_s is not None and now_s < self._answered_s + self.term_s

    def has_answer_to(self, sent_s: float) -> bool:
        """Whether what was sent at sent_s has arrived."""
        return self._answered_s is not None and self._answered_s >= sent_s

    def contact_lost_s(self, now_s: float) -> float:
        """How long ago the lease ended; 0 while it is held, and before there was one."""
        return 0.0 if self._answered_s is None else max(0.0, now_s - self._answered_s - self.term_s)


class HeadLease:
    """The head's side, of one node. Times are seconds of the head's clock."""

    def __init__(self, term_s: float, now_s: float, margin_s: float = 0.0) -> None:
        """now_s: when this head began to listen. margin_s: what a node may take to end its ranks."""
        self._wait_s = head_term_s(term_s) + head_term_s(margin_s)
        self._heard_s = now_s

    def heard(self, at_s: float) -> None:
        """A frame of the node's was received."""
        self._heard_s = max(self._heard_s, at_s)

    @property
    def ends_s(self) -> float:
        """From when on the node's ranks are gone, if nothing more is heard."""
        return self._heard_s + self._wait_s

    def may_run(self, now_s: float) -> bool:
        """Whether the node may still have ranks, for all that the head knows."""
        return now_s < self.ends_s
