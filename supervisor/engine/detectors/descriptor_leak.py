"""A rank whose open files become more and more: `memory`, cause `descriptor_leak`.

At its limit every open, every connection and every pipe of the rank fails, mostly hours after the start and in a place
that has nothing to do with the leak. Files are opened for good reasons, too: workers that come and go, shards that stay
open, a save. So what is compared are the lowest counts of windows, and all of this must hold:

- LASTS windows in a row, or more, each have a higher one than the window before, by a like amount;
- by then it is RISE more than in any window before them: what went up that far once, and down, may do so again;
- half of the limit is used (events.MANY_FILES): a leak has as much time left then as it has taken;
- at this rate the limit is reached within a day, and the growth does not slow down so that it never is.

Windows are of several lengths, in Settings.files_window_s (two minutes to eight hours): a leak of a file a second is
found in minutes, and one of a few an hour in days.
Ranks that grow with the one that is reported are reported with it. Each rank is reported once a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.window_lows import LASTS, LENGTHS, Lows

RISE = 256
EVEN = 0.25
"""Share of the mean rise from window to window that each makes at least."""
ALIKE = 0.5
"""Share of the reported rank's rise that another has at least, to be reported with it."""
HORIZON_S = 86400.0
MOST_REPORTED = 3
"""Incidents in a run."""
MAX_CULPRITS = 64
CONFIDENCE = 0.9
CAUSE = "descriptor_leak"


class Reported(msgspec.Struct, kw_only=True):
    """An incident that is not over."""

    key: str
    ranks: list[int]
    length: int
    """Place in LENGTHS of the windows that showed it."""


class DescriptorLeak(msgspec.Struct, kw_only=True):
    """Whose open files become more and more."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)
    attempt: int = -1
    lows: dict[int, list[Lows]] = {}
    """Per rank: of each of LENGTHS."""
    reported: list[Reported] = []
    """Of this attempt."""
    known: set[int] = set()
    """Ranks that an incident of this run has named."""
    count: int = 0
    """Incidents of this run."""

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take the counts of a node's ranks in."""
        attempt = running_attempt(view)
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.attempt != attempt.number:
            self.attempt, self.lows, self.reported = attempt.number, {}, []
        verdicts: list[Verdict] = []
        for report in event.ranks:
            if report.open_files is not None:
                verdicts += self._count(report.global_rank, report.open_files, attempt, view, now_s)
        return verdicts

    def _count(
        self, rank: int, files: ev.OpenFiles, attempt: AttemptView, view: RunView, now_s: float
    ) -> list[Verdict]:
        lows = self.lows.setdefault(rank, [Lows() for _ in LENGTHS])
        verdicts: list[Verdict] = []
        for place, length in enumerate(LENGTHS):
            window_s = length * view.settings.files_window_s
            if not lows[place].add(int(now_s // window_s), files.count):
                continue
            verdicts += self._over(rank, place, attempt)
            if rank not in self.known and self.count < MOST_REPORTED and files.are_many:
                verdicts += self._judge(rank, place, files, attempt, now_s, window_s=window_s)
        return verdicts

    def _judge(
        self, rank: int, place: int, files: ev.OpenFiles, attempt: AttemptView, now_s: float, *, window_s: float
    ) -> list[Verdict]:
        grown = growth(self.lows[rank][place])
        left_s = _time_left_s(grown, files, window_s) if grown else None
        if left_s is None or left_s > HORIZON_S:
            return []
        rise = grown[-1] - grown[0]
        ranks = sorted(
            other
            for other, lows in self.lows.items()
            if other == rank or (other not in self.known and growth(lows[place], ALIKE * rise))
        )
        self.known.update(ranks)
        self.count += 1
        lasted_s = (len(grown) - 1) * window_s
        per_hour = round(3600 * rise / lasted_s)
        counts = {other: self.lows[other][place].low for other in ranks} | {rank: files.count}
        evidence: dict[str, Any] = {
            "ranks": rank_list(ranks),
            "open_files": {str(other): counts[other] for other in ranks[:MAX_CULPRITS]},
            "limit": files.limit,
            "rise": rise,
            "window_s": round(lasted_s, 1),
            "per_hour": per_hour,
            "left_s": round(left_s),
            "newest": dict(files.newest),
        }
        shown = ranks[:MAX_CULPRITS]
        found = Detected(
            key=f"{CAUSE}/{self.count}",
            kind="memory",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=_sentence(who(attempt, shown), len(ranks), files, per_hour, left_s),
            culprits=shown,
            onset_s=max(0.0, now_s - lasted_s - window_s),
            evidence=evidence,
        )
        self.reported.append(Reported(key=found.key, ranks=ranks, length=place))
        return [found]

    def _over(self, rank: int, place: int, attempt: AttemptView) -> list[Verdict]:
        """An incident ends where none of its ranks has grown for as long as it takes to find one that does."""
        verdicts: list[Verdict] = []
        for reported in list(self.reported):
            if reported.length != place or rank not in reported.ranks or not self.lows[rank][place].has_stopped():
                continue
            reported.ranks.remove(rank)
            if not reported.ranks:
                self.reported.remove(reported)
                low = self.lows[rank][place].closed[-1]
                verdicts.append(Over(key=reported.key, text=f"{who(attempt, [rank])} stays at {low:,} open files"))
        return verdicts


def growth(lows: Lows, least: float = RISE) -> list[int]:
    """The longest row of lows at the end that grows without end, as far as can be seen; empty where none does."""
    closed = lows.closed
    first = len(closed) - 1
    while first > 0 and closed[first] > closed[first - 1]:
        first -= 1
    for start in range(max(first, 0), len(closed) - LASTS):
        steps = [after - before for before, after in zip(closed[start:], closed[start + 1 :], strict=False)]
        is_even = min(steps) >= EVEN * sum(steps) / len(steps)
        if is_even and lows.risen(start) >= least:
            return closed[start:]
    return []


def _time_left_s(grown: Sequence[int], files: ev.OpenFiles, window_s: float) -> float | None:
    """Until the limit is reached at the rate of late; None where growth slows down so that it never is."""
    third = max(1, (len(grown) - 1) // 3)
    at_first, of_late = grown[third] - grown[0], grown[-1] - grown[-1 - third]
    # Each window adds so many times what the one before has added: below 1, all that is to come is a geometric series.
    factor = (of_late / at_first) ** (1 / (len(grown) - 1 - third))
    left = files.limit - files.count
    if factor < 1 and of_late / third * factor / (1 - factor) < left:
        return None
    return max(0.0, left * third * window_s / of_late)


def _sentence(subject: str, ranks: int, files: ev.OpenFiles, per_hour: int, left_s: float) -> str:
    has, its, each = ("has", "its", "") if ranks == 1 else ("have about", "their", " each")
    newest = ", ".join(
        f"{name} {count} times" if name.startswith(("/", "…")) else f"{count} {name}" for name, count in files.newest
    )
    return (
        f"{subject} {has} {files.count:,} files open{each}, {_rounded(per_hour):,} more every hour: {its} limit of "
        f"{files.limit:,} is reached in about {_span(left_s)}{f' (the newest: {newest})' if newest else ''}."
    )


def _rounded(number: int) -> int:
    """To two digits: 589 → 590."""
    return round(number, 2 - len(str(number)))


def _span(seconds: float) -> str:
    """`40 s`, `12 min` or `7 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
