"""Replicas that are no longer equal: `numeric`, cause `replica_divergence`.

Ranks sum what they hold alike after the same steps (hooks/checksums), and nobody but the engine compares. What replicas
share stays equal bit by bit, so that every difference is one, and none heals by itself: it has to be seen in two checks
one after the other. What makes the difference between a machine that computes wrongly and a script that lets its ranks
differ stands in divergence_evidence.py; the latter is a remark, once.

Of two that differ nobody is named before an attempt trains the same steps again (divergence_rerun.py).

Only parameters decide. Moments that differ alone may be meant so (sharded ones, local momentum), and harm nobody; where
parameters differ with them they are named.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.detectors.numeric import divergence_evidence
from guardrun.supervisor.engine.detectors.numeric.divergence_evidence import (
    CAUSE,
    MAX_CULPRITS,
    Ballot,
    Before,
    Finding,
)
from guardrun.supervisor.engine.detectors.numeric.divergence_rerun import (
    KEPT,
    SCRIPT,
    DivergenceRerun,
    Held,
    Unsettled,
    held_in,
    place_of,
)
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView
from guardrun.supervisor.engine.model.verdicts import Detected, Diverged, Over, Remark, Verdict

PARAMETERS, MOMENTS, NAMES = 0, 1, 2
"""As the checksums page has them."""
MAX_SETS = 64
MAX_BALLOTS = 4
"""Of one set, for which not all ranks have reported."""
MOST_REPORTED = 3
"""Incidents in a run."""
MOST_REMARKS = 3
CONFIDENCE = 0.9
CONFIDENCE_OF_NOBODY = 0.75
CONFIDENCE_THROUGHOUT = 0.6
"""Nearly all of a rank's parameters differ: something other than a bit that flips may have made them."""


class Compared(msgspec.Struct, kw_only=True):
    """Tensors of one kind that several ranks hold, and what is known of them."""

    replicas: int
    ballots: dict[int, Ballot] = {}
    """By count: checks of which not all ranks have reported yet."""
    last: Ballot | None = None
    """The newest of which all have."""
    recent: list[Ballot] = []
    """Of two replicas' moments: those of late, for the parameters of the same checks."""
    layout: int = -1
    """Of that; -1: unknown."""
    left_out: tuple[list[int], list[int]] = msgspec.field(default_factory=lambda: ([], []))
    """Groups that the script lets differ, in a check and in an echo."""
    based: list[bool] = msgspec.field(default_factory=lambda: [False, False])
    """Whether a check, and an echo, have been compared: only what was equal before is missed."""


class Set(msgspec.Struct, kw_only=True):
    """Tensors that several ranks hold alike."""

    of: str = ""
    """As the checks have it."""
    parameters: Compared | None = None
    moments: Compared | None = None
    names: list[str] = []
    """What they belong to, then the parameters in order; empty: nobody has told."""
    agreed: int = -1
    """The step of the newest check in which all were equal; -1: none."""
    writes: dict[int, int] = {}
    """Until that check: in-place operations on the parameters, by rank."""
    usual_writes: dict[int, int] = {}
    """Between that check and the one before in which all were equal."""
    before: list[Held] = []
    """Of two replicas: the newest checks in which all were equal, KEPT at most."""
    doubt: Ballot | None = None
    """The newest check, in which they were not."""
    key: str = ""
    """Of its incident, as long as they differ."""
    is_remarked: bool = False


class ReplicaDivergence(msgspec.Struct, kw_only=True):
    """Whether ranks still hold the same where they should."""

    sets: dict[str, Set] = {}
    count: int = 0
    """Incidents of this run."""
    remarks: int = 0
    rerun: DivergenceRerun = msgspec.field(default_factory=DivergenceRerun)

    def begin_attempt(self) -> None:
        """Forget the last one, but for what it has left open."""
        self.sets = {}

    def judge(
        self, reports: Sequence[tuple[int, ev.ReplicaCheck]], attempt: AttemptView, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        """Take checks of ranks in, and compare those of which all ranks have reported."""
        verdicts: list[Verdict] = []
        ready = []
        for rank, check in reports:
            known = self._set(check.of)
            if check.kind == NAMES:
                known.names = check.names or known.names
            elif check.kind in (PARAMETERS, MOMENTS) and rank in attempt.ranks:
                ballot = self._note(known, rank, check)
                if ballot is not None and check.kind == PARAMETERS:
                    ready.append((known, ballot))
        # Moments of the same reports are there by now.
        for known, ballot in ready:
            held = _held(known, ballot)
            if held is not None and not _is_poisoned(view, attempt.number):
                verdicts += self.rerun.pass_check(known.of, held, attempt, view)
            verdicts += self._compare(known, ballot, attempt, view, now_s)
        return verdicts

    def _set(self, ident: str) -> Set:
        known = self.sets.get(ident)
        if known is None:
            if len(self.sets) >= MAX_SETS:
                del self.sets[next(iter(self.sets))]
            known = self.sets[ident] = Set(of=ident)
        return known

    def _note(self, known: Set, rank: int, check: ev.ReplicaCheck) -> Ballot | None:
        """Take one in. Returns the ballot where it was the last vote that was missing."""
        compared = known.moments if check.kind == MOMENTS else known.parameters
        if compared is None or compared.replicas != check.replicas:
            compared = Compared(replicas=check.replicas)
            if check.kind == MOMENTS:
                known.moments = compared
            else:
                known.parameters = compared
        if compared.last is not None and check.count <= compared.last.count:
            return None
        ballot = compared.ballots.get(check.count)
        if ballot is None:
            if len(compared.ballots) >= MAX_BALLOTS:
                del compared.ballots[min(compared.ballots)]
            ballot = compared.ballots[check.count] = Ballot(
                count=check.count, step=check.step, is_echo=check.is_echo, tensors=check.tensors
            )
        ballot.note(rank, check)
        if ballot.size < compared.replicas:
            return None
        compared.last = ballot
        if check.kind == MOMENTS and compared.replicas == 2:
            compared.recent = [*compared.recent, ballot][-MAX_BALLOTS:]
        compared.ballots = {count: one for count, one in compared.ballots.items() if count > ballot.count}
        return ballot

    def _compare(
        self, known: Set, ballot: Ballot, attempt: AttemptView, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        compared = known.parameters
        assert compared is not None
        if ballot.layouts != [compared.layout]:
            compared.layout = ballot.layouts[0]
            compared.left_out, compared.based = ([], []), [False, False]
            known.agreed, known.doubt, known.before = -1, None, []
        left_out = compared.left_out[ballot.is_echo]
        differing = ballot.differing(left_out)
        if differing is None or _is_poisoned(view, attempt.number):
            return ()  # Other tensors, or numbers that are none, which need not be the same ones.
        if not differing:
            if not any(compared.left_out):
                compared.based = [True, True]
            compared.based[ballot.is_echo] = True
            known.usual_writes, known.writes = ballot.writes_since(known.writes), ballot.writes()
            known.agreed, known.doubt = ballot.step, None
            if (held := _held(known, ballot)) is not None:
                known.before = [*known.before, held][-KEPT:]
            return self._end(known, ballot)
        if not compared.based[ballot.is_echo]:
            compared.based[ballot.is_echo] = True
            left_out += differing
            if known.agreed >= 0:
                return ()
            known.agreed = ballot.step
            return self._remark(known, divergence_evidence.never_text(known.names, ballot))
        first, known.doubt = known.doubt, ballot
        if first is None or known.key:
            return ()
        before = Before(known.agreed, known.writes, known.usual_writes)
        finding = divergence_evidence.find(first, ballot, compared.left_out, known.names, before)
        if finding is None:
            return ()
        if finding.is_scripts:
            for one in (first, ballot):
                groups = compared.left_out[one.is_echo]
                groups += [group for group in one.differing(groups) or () if group not in groups]
            known.doubt = None
            return self._remark(known, divergence_evidence.script_text(finding))
        verdicts = self._detected(known, finding, attempt, view, now_s)
        pair = [held_in(one, None) for one in (first, ballot)]
        if verdicts and not finding.dissenters:
            self.rerun.keep(
                Unsettled(
                    key=known.key,
                    of=known.of,
                    attempt=attempt.number,
                    ranks=len(attempt.ranks),
                    finding=finding,
                    places=[place_of(rank, attempt, view) for rank in finding.ranks],
                    before=known.before,
                    differing=[one for one in pair if one is not None],
                )
            )
        return verdicts

    def _detected(
        self, known: Set, finding: Finding, attempt: AttemptView, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        if self.count >= MOST_REPORTED:
            return ()
        self.count += 1
        known.key = f"{CAUSE}/{self.count}"
        moments = known.moments.last if known.moments is not None else None
        finding.moments_too = moments is not None and bool(moments.differing(()))
        confidence = CONFIDENCE if finding.dissenters else CONFIDENCE_OF_NOBODY
        evidence = {**divergence_evidence.evidence(finding), "check_every": view.settings.check_every}
        if repeat := self.rerun.repeats(known.of, finding.step, attempt.number):
            finding.repeats = repeat.words
            evidence["rerun"] = {"attempt": repeat.before, "says": SCRIPT}
        nodes = {attempt.ranks[rank].rank.node for rank in finding.dissenters or finding.ranks}
        if not finding.dissenters:
            evidence["nodes"] = sorted(nodes)
        return [
            Detected(
                key=known.key,
                kind="numeric",
                cause=CAUSE,
                confidence=CONFIDENCE_THROUGHOUT if finding.is_throughout else confidence,
                summary=divergence_evidence.sentence(finding, attempt),
                culprits=finding.dissenters[:MAX_CULPRITS],
                onset_s=now_s,
                step=finding.step,
                evidence=evidence,
                level="bad",
                node=nodes.pop() if finding.dissenters and len(nodes) == 1 and not finding.is_throughout else "",
            ),
            Diverged(key=known.key),
        ]

    def _end(self, known: Set, ballot: Ballot) -> Sequence[Verdict]:
        key, known.key = known.key, ""
        return [Over(key=key, text=f"the replicas are equal again, as of step {ballot.step}")] if key else ()

    def _remark(self, known: Set, text: str) -> Sequence[Verdict]:
        if known.is_remarked or self.remarks >= MOST_REMARKS:
            return ()
        known.is_remarked = True
        self.remarks += 1
        return [Remark(text=text)]


def _held(known: Set, ballot: Ballot) -> Held | None:
    """What two replicas hold, for those that come after; None where the script lets some of it differ."""
    parameters, moments = known.parameters, known.moments
    if parameters is None or parameters.replicas != 2 or any(parameters.left_out):
        return None
    same = [one for one in moments.recent if one.count == ballot.count] if moments is not None else []
    return held_in(ballot, same[0] if same else None)


def _is_poisoned(view: RunView, attempt: int) -> bool:
    """Whether it is told already that numbers are none: NaN comes in several patterns of bits."""
    return any(
        incident.cause == "nan_loss" and incident.attempt == attempt and incident.recovered_s is None
        for incident in view.incidents.values()
    )
