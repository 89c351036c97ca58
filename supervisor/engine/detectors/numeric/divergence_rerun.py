"""Two replicas that differ, and a later attempt that trains the same steps again: does it come again, and whose is it?

Of two sums that differ nothing tells which one is right, nor whether the script means them to. An attempt that goes on
from a checkpoint of before, for whatever reason, computes the same steps once more on both ranks, and says it where all
of this holds:

    the same job      as many ranks, the same tensors on the same two of them
    the same numbers  in checks that it passes again and in which the two were equal, both hold what both held then:
                      parameters and moments in one check, or parameters in ENOUGH of them. So the steps are the same
                      each time, data and all, and what it has loaded is of before the difference

Then both checks in which the two differed are compared with what it holds there:

    the same two sums on the same ranks   SCRIPT: or a device that is wrong each time; nobody is named
    what one of the two held, on both     RANK: the other one computed otherwise, and is named
    something else, but equal             ONCE: hardly the script's doing, if it had no other data since those before
    something else, and not equal         OTHERWISE: nothing is known

RANK is rare: ranks average their gradients, so what one holds wrongly has changed what both hold after the next step.
The other one is as it would have been only while it has not got into a gradient: what happened in the very step of a
check, a row of a table that nobody looks up, bits that a forward pass in lower precision cuts off.

A check that is missing on either side is not passed. Nothing is ever restarted for this.
"""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.detectors.numeric import divergence_evidence
from guardrun.supervisor.engine.detectors.numeric.divergence_evidence import CAUSE, Ballot, Finding
from guardrun.supervisor.engine.model.actions import Culprit
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView
from guardrun.supervisor.engine.model.verdicts import Changed, Verdict

KEPT = 3
"""Checks before a difference, of each set of two."""
ENOUGH = 2
CONFIDENCE = 0.9

RANK, SCRIPT, ONCE, OTHERWISE, UNLIKE = "rank", "script", "once", "otherwise", "unlike"
"""What a later attempt says, as the evidence has it; the last: it had other numbers before."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What two ranks held after one and the same step."""

    step: int
    is_echo: bool
    layout: int
    tensors: int
    parameters: list[str]
    """Sums, of both ranks in ascending order; one where they are equal."""
    moments: list[str] = []
    """Likewise; empty: not known, or there are none."""


def held_in(ballot: Ballot, moments: Ballot | None) -> Held | None:
    """What a check of two ranks shows; None where there are more, or where they can't be compared.

    moments: of the same check.
    """
    if ballot.size != 2 or len(ballot.layouts) != 1:
        return None
    sums = _sums(moments) if moments is not None and moments.size == 2 and len(moments.layouts) == 1 else []
    return Held(ballot.step, ballot.is_echo, ballot.layouts[0], ballot.tensors, _sums(ballot), sums)


def _sums(ballot: Ballot) -> list[str]:
    by_rank = {rank: digests for digests, ranks in ballot.votes.items() for rank in ranks}
    return list(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))


class Passage(msgspec.Struct, kw_only=True):
    """An attempt on its way by the same checks."""

    attempt: int = -1
    equal: list[int] = []
    """Steps of checks in which it held the same, before the difference."""
    had_moments: bool = False
    """In one of them these were the same, too."""
    is_unlike: bool = False
    """In one of them it was not so."""
    first: str | int | None = None
    """What _compare says of the first check that differed; None: that one has not been passed."""


class Unsettled(msgspec.Struct, kw_only=True):
    """Two replicas that differ, and nobody can say which one is right."""

    key: str
    """Of the incident."""
    of: str
    attempt: int
    ranks: int
    """Of the whole attempt."""
    finding: Finding
    places: list[Culprit]
    """The two, where they were."""
    before: list[Held]
    differing: list[Held]
    """The check in which they were first seen so, and the one that has confirmed it."""
    passage: Passage = msgspec.field(default_factory=Passage)
    is_told: bool = False
    """An attempt has come by, and left it open."""


class Repeat(msgspec.Struct, frozen=True):
    """A difference that was there before."""

    of: str
    step: int
    attempt: int
    """In which it is there again."""
    before: int
    """The attempt in which it was there."""
    words: str


class DivergenceRerun(msgspec.Struct, kw_only=True):
    """What later attempts say of replicas that differed."""

    unsettled: list[Unsettled] = []
    repeat: Repeat | None = None
    """The last one."""

    def keep(self, one: Unsettled) -> None:
        """Nobody can say now which one of two is right."""
        if [len(held.parameters) for held in one.differing] == [2, 2]:
            self.unsettled = [*self.unsettled, one]

    def pass_check(self, of: str, held: Held, attempt: AttemptView, view: RunView) -> list[Verdict]:
        """An attempt holds this: what does it say of those before it?"""
        found: list[Verdict] = []
        for one in self.unsettled:
            if one.of == of and one.attempt < attempt.number and one.ranks == len(attempt.ranks):
                found += self._pass(one, held, attempt, view)
        return found

    def _pass(self, one: Unsettled, held: Held, attempt: AttemptView, view: RunView) -> list[Verdict]:
        if one.passage.attempt != attempt.number:
            one.passage = Passage(attempt=attempt.number)
        passage = one.passage
        if passage.is_unlike:
            return []
        for known in one.before:
            is_same = _is_same(known, held)
            if is_same:
                passage.equal = [*passage.equal, held.step]
                passage.had_moments = passage.had_moments or bool(held.moments)
            elif is_same is not None:
                passage.is_unlike = True
                return self._leave_open(one, UNLIKE, view)
        if not (len(passage.equal) >= ENOUGH or passage.had_moments):
            return []
        first, second = one.differing
        if _is_of(first, held):
            passage.first = _compare(first, held)
        elif _is_of(second, held) and passage.first is not None:
            return self._settle(one, passage.first, _compare(second, held), attempt, view)
        return []

    def _settle(
        self, one: Unsettled, first: str | int, second: str | int, attempt: AttemptView, view: RunView
    ) -> list[Verdict]:
        """What both checks say together."""
        if SCRIPT in (first, second) or OTHERWISE in (first, second):
            if first != second or first == OTHERWISE:
                return self._leave_open(one, OTHERWISE, view)
            found = self._script(one, attempt, view)
        elif isinstance(first, int) and second in (first, ONCE):
            found = self._name(one, first, view)
        else:
            found = self._once(one, view)
        self.unsettled = [other for other in self.unsettled if other is not one]
        return found

    def _name(self, one: Unsettled, odd: int, view: RunView) -> list[Verdict]:
        """One of the two computed otherwise than all the others. odd: its index."""
        culprit, other = one.places[odd], one.places[1 - odd].rank
        summary = (
            f"{_who(culprit)} computed otherwise than rank {other} in "
            f"{divergence_evidence.tensors_text(one.finding)}, between steps {one.finding.agreed} and "
            f"{one.finding.step}: attempt {one.passage.attempt} has trained the same steps again, and both its "
            f"replicas hold what rank {other} held."
        )
        more = {"differ": str(culprit.rank), "agree": 1}
        changed = self._changed(one, RANK, summary, view, **more)
        return [
            msgspec.structs.replace(
                changed, culprits=[culprit], node=culprit.node, confidence=CONFIDENCE, level="bad"
            )
        ]  # fmt: skip

    def _script(self, one: Unsettled, attempt: AttemptView, view: RunView) -> list[Verdict]:
        """They differ again, and in the same way."""
        is_moved = all(_spot(place_of(was.rank, attempt, view)) != _spot(was) for was in one.places)
        words = (
            "on other devices: the script lets them differ"
            if is_moved
            else "so the script lets them differ, or a device computes this wrongly each time"
        )
        now = one.passage.attempt
        self.repeat = Repeat(
            one.of, one.finding.step, now, one.attempt, f"they did so in attempt {one.attempt} in the same way, {words}"
        )
        text = f"they do so in attempt {now} in the same way, {words}"
        summary = divergence_evidence.two_sentence(one.finding, text)
        return [msgspec.structs.replace(self._changed(one, SCRIPT, summary, view), level="warn")]

    def _once(self, one: Unsettled, view: RunView) -> list[Verdict]:
        """They do not differ again."""
        words = (
            f"attempt {one.passage.attempt}, which held the same up to step {one.passage.equal[-1]}, has trained these "
            "steps again without a difference, so unless it had other data since then it is hardly the script's doing: "
            "a device computed otherwise, or a bit flipped in memory. Whose cannot be told: ranks that share gradients "
            "soon change together"
        )
        summary = divergence_evidence.two_sentence(one.finding, words)
        return [msgspec.structs.replace(self._changed(one, ONCE, summary, view), level="warn")]

    def _leave_open(self, one: Unsettled, says: str, view: RunView) -> list[Verdict]:
        """The attempt says nothing of it; a later one may."""
        if one.is_told:
            return []
        one.is_told = True
        words = "with other numbers" if says == UNLIKE else "and they differ in another way"
        words = f"attempt {one.passage.attempt} has trained these steps again, {words}, which says nothing of it"
        return [self._changed(one, says, divergence_evidence.two_sentence(one.finding, words), view)]

    def _changed(self, one: Unsettled, says: str, summary: str, view: RunView, **more: Any) -> Changed:
        incident = view.incident_of(one.key)
        assert incident is not None
        passage = one.passage
        rerun = {"attempt": passage.attempt, "equal_steps": passage.equal, "says": says}
        return Changed(
            key=one.key, evidence={**incident.evidence, **more, "rerun": rerun}, summary=summary, cause=CAUSE
        )

    def repeats(self, of: str, step: int, attempt: int) -> Repeat | None:
        """Whether a difference that begins with this step was there before."""
        known = self.repeat
        return known if known is not None and (known.of, known.step, known.attempt) == (of, step, attempt) else None


def place_of(rank: int | None, attempt: AttemptView, view: RunView) -> Culprit:
    """Where a rank of the attempt is."""
    assert rank is not None
    known, device = attempt.ranks[rank].rank, view.detectors.node_health.devices.get(rank)
    gpu = device.index if device is not None else None
    return Culprit(rank=rank, local_rank=known.local_rank, node=known.node, pid=known.pid, gpu=gpu)


def _spot(place: Culprit) -> tuple[str, int | None]:
    return place.node, place.gpu


def _who(place: Culprit) -> str:
    device = f" (GPU {place.gpu})" if place.gpu is not None else ""
    return f"Rank {place.rank} on {place.node}{device}"


def _is_of(known: Held, held: Held) -> bool:
    """Whether both are of the same check, and of the same tensors."""
    theirs = (known.step, known.is_echo, known.layout, known.tensors)
    return theirs == (held.step, held.is_echo, held.layout, held.tensors)


def _is_same(known: Held, held: Held) -> bool | None:
    """Whether all ranks hold in a check what they held before; None where that can't be compared."""
    if not _is_of(known, held) or bool(known.moments) != bool(held.moments):
        return None
    return known.parameters == held.parameters and known.moments == held.moments


def _compare(differing: Held, held: Held) -> str | int:
    """Which of two that differed is contradicted, by its index; else SCRIPT, ONCE or OTHERWISE."""
    if held.parameters == differing.parameters:
        return SCRIPT
    if len(held.parameters) > 1:
        return OTHERWISE
    return 1 - differing.parameters.index(held.parameters[0]) if held.parameters[0] in differing.parameters else ONCE
