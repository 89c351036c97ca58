"""Contact as a lease: a node's ranks have ended before the job may go on without it.

The danger is two attempts at once: the head believes a node dead and starts the next attempt, while that node, cut off,
trains on and writes checkpoints. So a node without contact may keep ranks only for so long. **`ranks_end_s` is that
rule, and nothing else computes it.** The follower asks it of its own times (`Follower._keep_lease`), or its launcher
does (`LeaseFence`); the head asks it of what it has seen itself, with the margins of `ranks_gone_s`
(`EventAggregator._is_gone`); so do the simulation (benchmarks/sim/world.py) and the tests' coordinator. What goes in:

| | a node, of its own ranks | the head, of a node's |
|---|---|---|
| contact_s | the *sending* of its newest frame that was answered | the *receipt* of its newest frame |
| progress_s | when its ranks last advanced with those of other nodes | when the last other node said: mine have ended |
| still_s | as its reports show, no more than the head knows | as the same reports show |
| clock | CLOCK_BOOTTIME (`boot_s`) | the run's seconds, CLOCK_MONOTONIC of the head |

Why each of the head's times is the later one, whichever way a link is cut and however long frames lie on the way: let
the newest frame that the node has an answer to be sent at real time S. The head received that frame, at a real time
R >= S (an answer is only given to what was received, and nothing is received before it is sent). If the way up is cut,
the newest frames are neither received nor answered: both count from the last that got through. If the way down is cut,
the head hears of newer frames, which only makes it wait longer. An answer that lies on the way for an hour extends
nothing: it counts from its frame's sending. A frame that lies on the way only makes R later. And what ranks do together
with those of other nodes ends when those have been ended, which is before their nodes can say so.

The head's clock has to show so much more than the node's (`on_another_clock`): if either is wrong by no more than
CLOCK_RATE, what the node takes for the term lasts at most term / (1 - CLOCK_RATE), and the head's clock may show
(1 + CLOCK_RATE) times that. To this the head adds END_MARGIN_S, in which the node acts on the end of its lease.

What the argument asks of its users:
- The clocks must not stand still while ranks run: CLOCK_MONOTONIC does not, in a process that is stopped or starved;
  where the whole machine is suspended (and comes back), its ranks were too, but CLOCK_BOOTTIME goes on and this does
  not: that is why the node's side takes it.
- The rule is only as good as who acts on it, within END_MARGIN_S. A supervisor that is itself stopped or killed acts
  on nothing: its launcher replaces it (launcher/control/supervision.py), and meanwhile ends the ranks itself where
  contact had been lost before (launcher/control/lease_fence.py). Where it had not, the next supervisor counts from its
  own start, and none ends anything: a supervisor that is gone takes the contact with it, and nothing need be cut.
- A node that did not run as a whole asks for WAKE_S whether its ranks are still meant (`Waking`): they are alive for so
  long, but have nobody to train with. It asks for HEAD_WAKE_S where the head's host takes its connection, and no
  process answers: as where the whole job was suspended, and the head is continued last. That is for ranks alone that
  were seen to work with those of other nodes, and so get nowhere without them.
- A head that was started anew does not know what its predecessor received last: it counts every node from its own
  start, which is later than whatever that one can have answered, and takes MOST_STILL_S for still_s.
- The term is one for the whole run: a head that would shorten it would have to wait for the longer one first.
- Of those that train together, one at least is in contact and has said that its ranks have ended. Nodes that are all
  cut off from the head, but not from each other, advance together; with no other node's ranks to end, nothing ends
  that.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

from guardrun.supervisor.engine.model.events import RankReport

CLOCK_RATE = 1e-3
"""The most that a clock's rate is taken to be off: NTP slews by no more than 500 ppm (adjtimex(2)), and crystals are
off by 100 ppm at most."""
END_MARGIN_S = 3.0
"""In which a node whose lease is over has ended its ranks: its supervisor looks once a second, its launcher kills them
(SIGKILL). The head waits so much longer."""


def ranks_end_s(contact_s: float, progress_s: float, *, term_s: float, still_s: float) -> float:
    """When a node's ranks are to be ended, if nothing more comes: without contact, and without progress.

    contact_s, progress_s: the newest of each, in seconds of one clock, which that of the answer is; -inf: there was
    none. term_s: what contact is good for, [fleet] term_s; still_s: what progress is, see ProgressTimeout.
    """
    return max(contact_s + term_s, progress_s + still_s)


def ranks_gone_s(heard_s: float, others_ended_s: float, *, term_s: float, still_s: float) -> float:
    """From when on the head may take it that a node's ranks have ended. Seconds of the head's clock.

    heard_s: when the newest frame of the node came; others_ended_s: when the last other node said that its own ranks
    have ended, -inf: none has. term_s, still_s: as the node has them, in seconds of its own clock.
    """
    to_end_s = ranks_end_s(heard_s, others_ended_s, term_s=on_another_clock(term_s), still_s=on_another_clock(still_s))
    return to_end_s + on_another_clock(END_MARGIN_S)


def on_another_clock(seconds: float) -> float:
    """What this clock must show to be sure that another one has shown so many seconds."""
    return seconds * (1 + CLOCK_RATE) / (1 - CLOCK_RATE)


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

    def note(self, ranks: Iterable[RankReport]) -> float | None:
        """Take a report in: when the ranks have advanced, as it shows, in its seconds; None: they have not.

        Its own times count, not when it came: else node and head would not measure the same pauses.
        """
        moved_s: float | None = None
        has_steps = False
        for rank in ranks:
            number = rank.global_rank
            if rank.joint > self._joint.get(number, 0):
                # It is counted once a second, and what the rank has done since is its own.
                moved_s = max(moved_s or 0.0, min(rank.progress_s, rank.heart_s))
            has_steps = has_steps or rank.step > 0
            self._joint[number] = rank.joint
        if has_steps and not self._has_steps:  # what came before was the start
            self._has_steps, self._advances = True, 0
            self._gaps_s.clear()
        if moved_s is None:
            return None
        if self._advances >= START:
            self._gaps_s.append(moved_s - self._at_s)
        self._advances += 1
        self._at_s = moved_s
        return moved_s

    @property
    def is_joint(self) -> bool:
        """Whether the ranks have been seen to do anything together with those of other nodes."""
        return any(self._joint.values())

    @property
    def limit_s(self) -> float:
        """So long without progress is none."""
        if self._is_partial and len(self._gaps_s) < KEPT:
            return MOST_STILL_S
        return still_limit_s(max(self._gaps_s, default=0.0))


def still_limit_s(pause_s: float) -> float:
    """How long ranks may stand still whose longest pause, of late, was that long."""
    return max(STILL_S, min(STEPS * pause_s, MOST_STILL_S))


def end_words(node: str, contact_s: float, still_s: float) -> str:
    """Why a node's ranks are ended: a sentence. So long ago it had contact, and they progress."""
    return (
        f"{node} has had no contact with the head for {contact_s:.0f} s, and its ranks have done nothing with those of "
        f"other nodes for {still_s:.0f} s: ending them"
    )


ASLEEP_S = 2.0
"""Between two turns of a loop that turns once a second: it, or all of its node, was frozen, suspended or starved."""
WAKE_S = 5.0
"""A node that did not run asks for so long whether its ranks are still meant, before it goes by what it missed."""
HEAD_WAKE_S = 30.0
"""Likewise where the head does not run, either: nodes of a job are continued one after the other."""


class Waking:
    """Whether a node is still to ask: once for each loss of contact, as a loop that is always late has a lease, too."""

    def __init__(self, now_s: float) -> None:
        """now_s: as everywhere here, of `boot_s`."""
        self._turned_s = now_s
        self._woken_s = -math.inf

    def turn(self, now_s: float, lost_s: float, *, is_head_still: bool = False) -> bool:
        """To be called at each turn of the loop. lost_s: how long ago the lease ended; 0: it is held.

        is_head_still: the head does not run, as far as can be seen, and the ranks get nowhere without other nodes.
        """
        if now_s - self._turned_s > ASLEEP_S and now_s - lost_s > self._turned_s:
            self._woken_s = now_s
        self._turned_s = now_s
        return now_s < self._woken_s + (HEAD_WAKE_S if is_head_still else WAKE_S)


def boot_s() -> float:
    """The node's clock for the lease: goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NodeLease:
    """A node's contact. Times are seconds of the node's own clock, one that goes on in suspend."""

    def __init__(self, term_s: float) -> None:
        self.term_s = term_s
        self.contact_s = -math.inf
        """When the newest frame that was answered had been sent; -inf: none was."""

    def answered(self, sent_s: float) -> None:
        """A frame that was sent at sent_s has been answered."""
        self.contact_s = max(self.contact_s, sent_s)

    def is_held(self, now_s: float) -> bool:
        """Whether contact is newer than the term."""
        return now_s < self.contact_s + self.term_s

    def contact_lost_s(self, now_s: float) -> float:
        """How long ago the lease ended; 0 while it is held, and before there was one."""
        return 0.0 if self.contact_s == -math.inf else max(0.0, now_s - self.contact_s - self.term_s)
