"""From what was seen to what it is worth. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gym.case import Decoy, Doubt, Fault
from benchmarks.gym.observation import Observation, Told
from benchmarks.gym.patience import Patience


@dataclass(frozen=True)
class FaultScore:
    """One fault under one launcher, once. Times are seconds; None: it never came to that."""

    found: bool
    cause_right: bool = False
    culprit_right: bool = False
    line_named: bool | None = None
    """None: there is no line to name."""
    verdict_s: float | None = None
    """Until it was told."""
    acted_s: float | None = None
    """Until something was done about it, counted from the same moment. The other launchers only act: None."""
    restart_s: float | None = None
    """From acting, or the verdict where that is not told, to the next attempt's first line."""
    recover_s: float | None = None
    """From the last progress to the first new step."""
    steps_lost: int | None = None
    recovered: bool | None = None
    """None: giving up is right, or it ends by itself."""
    left: int = 0
    cause: str = ""
    culprits: tuple[int, ...] = ()

    def misses(self, fault: Fault, patience: Patience | None) -> list[str]:
        """What falls short of the targets, in words. patience: guardrun's; None: another launcher."""
        if not self.found:
            return ["not found"]
        missed = []
        if not self.cause_right:
            missed.append(f"cause {self.cause or 'not told'}")
        if not self.culprit_right:
            missed.append(f"culprits {list(self.culprits)}")
        if self.line_named is False:
            missed.append("line not named")
        if patience is not None:
            missed += self._misses_in_time(fault, patience)
        if self.recovered is False:
            missed.append("not recovered")
        if self.left:
            missed.append(f"{self.left} left running")
        return missed

    def _misses_in_time(self, fault: Fault, patience: Patience) -> list[str]:
        """Told late; acted on late, too soon or not at all."""
        if self.verdict_s is None:
            return []
        missed = []
        told_within_s = patience.told_within_s(fault.doubt)
        if self.verdict_s > told_within_s:
            missed.append(f"told later than {told_within_s:g} s")
        if fault.ends_by_itself or fault.is_only_told:
            return missed if self.acted_s is None else [*missed, "acted on"]
        acts_within_s = patience.acts_within_s(fault.doubt)
        if self.acted_s is None:
            missed.append("not acted on")
        elif self.acted_s > acts_within_s:
            missed.append(f"acted on later than {acts_within_s:g} s")
        elif patience.is_too_soon(fault.doubt, self.acted_s):
            missed.append(f"acted on before its {patience.acts_s(fault.doubt):g} s were over")
        return missed


@dataclass(frozen=True)
class DecoyScore:
    """One decoy under one launcher, once."""

    killed: bool
    """It was restarted, or did not end."""
    finished: bool
    incidents: tuple[str, ...] = ()
    """Those that call it a hang or a crash, whatever was done about it."""
    left: int = 0

    @property
    def is_clean(self) -> bool:
        return self.finished and not self.killed and not self.incidents and not self.left


def score_fault(fault: Fault, seen: Observation) -> FaultScore:
    """Judge it."""
    told = choose(fault, seen.told)
    left = len(seen.left)
    needs_restart = fault.recovers and not (fault.ends_by_itself or fault.is_only_told)
    recovered = seen.recovered_at is not None if needs_restart else None
    if told is None:
        return FaultScore(found=False, left=left, recovered=recovered)
    since = began(fault, seen)
    acted_at = told.at if told.acted_at is None else told.acted_at
    has_restarted = seen.restarted_at is not None and not fault.ends_by_itself
    return FaultScore(
        found=True,
        cause_right=bool(set(told.cause.split()) & set(fault.causes)) and fault.kind in ("", told.kind),
        culprit_right=is_culprit_right(fault, told),
        line_named=told.names_line if fault.has_line else None,
        verdict_s=since_onset_s(fault, seen, told.at),
        acted_s=since_onset_s(fault, seen, told.acted_at),
        restart_s=seen.restarted_at - acted_at if has_restarted and seen.restarted_at and told.attempt == 0 else None,
        recover_s=seen.recovered_at - since if recovered and seen.recovered_at and since else None,
        # A rank that saved just in time may have finished the very step in which the fault came.
        steps_lost=max(0, seen.steps_before - seen.resumed_step)
        if has_restarted and seen.resumed_step is not None
        else None,
        recovered=recovered,
        left=left,
        cause=told.cause,
        culprits=tuple(told.culprits),
    )


def began(fault: Fault, seen: Observation) -> float | None:
    """From when the time to a new step counts."""
    if fault.doubt is Doubt.CRASH or fault.ends_by_itself or seen.last_progress_at is None:
        return seen.planted_at
    return seen.last_progress_at


def since_onset_s(fault: Fault, seen: Observation, at: float | None) -> float | None:
    """How long after the onset that was: a crash begins at the end of the first rank to end, however long that took."""
    if fault.every_attempt or at is None:
        return None
    if fault.doubt is Doubt.CRASH and seen.ended_at is not None:
        return max(0.0, at - seen.ended_at)
    since = began(fault, seen)
    return None if since is None else at - since


def choose(fault: Fault, told: list[Told]) -> Told | None:
    """What was said of this fault: the first, or, where it comes again and again, the last."""
    if not told:
        return None
    return told[-1] if fault.every_attempt else told[0]


def is_culprit_right(fault: Fault, told: Told) -> bool:
    """Exactly those who caused it; nobody, only where that cannot be told."""
    if not told.culprits:
        return fault.may_name_nobody
    return sorted(told.culprits) == sorted(fault.to_name)


def score_decoy(decoy: Decoy, seen: Observation) -> DecoyScore:
    """Judge it: any restart is one too many, and so is an incident that calls it a hang."""
    hangs = tuple(told.cause or told.kind for told in seen.told if told.kind in ("hang", "crash"))
    return DecoyScore(
        killed=seen.attempts > 1 or seen.returncode is None,
        finished=seen.returncode == 0,
        incidents=hangs,
        left=len(seen.left),
    )
