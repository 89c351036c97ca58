"""Who has come to take about twice the others' time, or more: seen within 40 s, or 40 steps where those take longer.

What is as plain as that needs no window of 20 s to be seen, only some time to be believed: it is compared as ever
(engine/observation/rank_baseline.py), over brief windows, against places that are learned from brief windows. A rank is
far behind that

- is a suspect there, and works FAR times as long as the slowest of the others, not only as their median;
- in each of WINDOWS in a row. A neighbour's burst of 20 s touches six at most, and the two at its ends in part.

One step of any length (an evaluation, a save, a collection) is in one window. Where data is so uneven that its places
move within half a minute, they move within brief windows, too: SPREADS times that is asked for, and nobody is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from guardrun.supervisor.engine.observation.rank_baseline import RankBaseline, Suspect, suspects
from guardrun.supervisor.engine.observation.step_times import BriefWindow

FAR = 1.75
"""Times the slowest of the others: who takes twice as long does so in most windows, not in each."""
WINDOWS = 7
MAX_RANKS = 10_000
"""Of a job that is compared so often: closing a window looks at each of them."""
LEARNS_FROM = 10
"""Brief windows, after those of warm-up: the usual places are known after a minute."""


class FarBehind(msgspec.Struct, kw_only=True):
    """Ranks' usual places in brief windows, and who is far from them."""

    usual: RankBaseline = msgspec.field(default_factory=lambda: RankBaseline(learns_from=LEARNS_FROM))
    strikes: dict[int, int] = {}
    """Per rank that is far behind: in how many windows in a row."""
    since_s: dict[int, float] = {}
    """Per such rank: since when."""

    def begin(self, world_size: int) -> None:
        """An attempt has begun."""
        self.strikes, self.since_s = {}, {}
        if self.usual.world_size != world_size:
            self.usual.forget(world_size)

    def observe(self, window: BriefWindow, nodes: Mapping[int, str], reported: Iterable[int]) -> list[Suspect]:
        """A window is closed: those that have been far behind for long enough. nodes: per rank.

        reported: ranks whose slowness is known, and must not become usual.
        """
        found = {each.rank: each for each in suspects(window, self.usual, nodes) if _is_far(each)}
        # Of a rank without steps in a window nothing is known: neither that it is slow, nor that it is not.
        known = {rank: count for rank, count in self.strikes.items() if rank in found or rank not in window.shares}
        self.strikes = {**known, **{rank: known.get(rank, 0) + 1 for rank in found}}
        self.since_s = {rank: self.since_s.get(rank, window.began_s) for rank in self.strikes}
        self.usual.learn(window, {*self.strikes, *reported})
        return [each for each in found.values() if self.strikes[each.rank] >= WINDOWS]


def _is_far(suspect: Suspect) -> bool:
    return suspect.own_s >= FAR * (suspect.own_s - suspect.loss_s)
