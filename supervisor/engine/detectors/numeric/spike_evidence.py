"""What is remembered of a value that has leapt up, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.observation.frames import all_ranks_text, rank_list, ranks_text
from guardrun.supervisor.engine.observation.metric_window import LOSS_FACTOR, NORM_FACTOR, SIGMAS

SPIKE, EXPLOSION = "loss_spike", "grad_explosion"
NAMES = {SPIKE: "loss", EXPLOSION: "gradient norm"}
TOGETHER = 25
"""Steps from one odd one to the next; where values are seen every few steps, four of these."""
MAX_SHOWN = 8
FAR = 4.0
STAYS = 0.75
"""Share of the way up that is left."""
CLEAR_SIGMAS = 2 * SIGMAS
"""Of a rank that was odd alone: one that is so by little was the first by chance."""


class Level(msgspec.Struct, kw_only=True):
    """One rank's loss or gradient norm since its first odd step."""

    step: int
    batch: int
    first: float
    """Its value there."""
    sigmas: float
    usual: float
    """Before."""
    limit: float
    """From there on it is far above that."""
    seen_s: float
    """When its newest report came."""
    now: float | None = None
    """Median of that, where it has nothing but later steps."""
    peak: float = 0.0
    """The highest of these medians."""
    highs: int = 0
    """Such reports in a row that were far above."""
    usual_loss: float | None = None
    loss: float | None = None
    """Of a norm: the loss before, and now."""

    @classmethod
    def of_loss(cls, step: ev.OddStep, metrics: ev.TrainingMetrics, now_s: float) -> Level | None:
        """Begin with an odd step of a loss; None where it is none."""
        if not step.loss_sigmas or step.loss is None or metrics.usual_loss is None:
            return None
        limit = _limit(step.loss, step.loss_sigmas, metrics.usual_loss, LOSS_FACTOR)
        return cls(
            step=step.step,
            batch=step.batch,
            first=step.loss,
            sigmas=step.loss_sigmas,
            usual=metrics.usual_loss,
            limit=limit,
            seen_s=now_s,
        )

    @classmethod
    def of_norm(cls, step: ev.OddStep, metrics: ev.TrainingMetrics, now_s: float) -> Level | None:
        """Begin with an odd step of a gradient norm; None where it is none."""
        if not step.norm_sigmas or step.grad_norm is None or metrics.usual_norm is None:
            return None
        limit = _limit(step.grad_norm, step.norm_sigmas, metrics.usual_norm, NORM_FACTOR)
        return cls(
            step=step.step,
            batch=step.batch,
            first=step.grad_norm,
            sigmas=step.norm_sigmas,
            usual=metrics.usual_norm,
            limit=limit,
            seen_s=now_s,
            usual_loss=metrics.usual_loss,
        )

    def note(self, value: float | None, loss: float | None, now_s: float, *, is_known: bool) -> None:
        """Take the median of a report in. is_known: an incident says that it is high: it ends half-way back.

        Before that, too, where half-way is FAR times the usual: a limit for single steps may lie far above what was
        usual where that had been falling, and is no limit for medians.
        """
        self.seen_s = now_s
        if loss is not None:
            self.loss = loss
        if value is None:
            return
        self.peak = value if self.now is None else max(self.peak, value)
        self.now = value
        back, goes_on = (self.usual + self.limit) / 2, self.limit
        if self.usual > 0:
            back = math.sqrt(self.usual * self.limit)
            goes_on = min(self.limit, max(back, FAR * self.usual))
        if is_known:
            goes_on = back
        self.highs = self.highs + 1 if value >= (goes_on if self.highs else self.limit) else 0

    def goes_on(self, start: ev.OddStep, metrics: ev.TrainingMetrics) -> bool:
        """Whether what is odd in its newest report is this one still: one that has not lasted was another spike."""
        is_new = start.step > metrics.first and start.step - self.step > TOGETHER
        return self.highs > 1 or (self.highs == 1 and not is_new)

    @property
    def factor(self) -> float:
        """Times the usual; 0: that cannot be said."""
        return self.now / self.usual if self.now is not None and self.usual > 0 else 0.0

    @property
    def stays(self) -> bool:
        """Whether it has not begun to come down: what does, is learned."""
        return self.now is not None and self.now - self.usual >= STAYS * (self.peak - self.usual)

    def is_loss_worse(self, factor: float) -> bool:
        """Of a norm: whether the loss is so many times what it was."""
        if self.loss is None or self.usual_loss is None:
            return False
        return self.loss - self.usual_loss >= (factor - 1) * abs(self.usual_loss) and self.loss > self.usual_loss


def _limit(value: float, sigmas: float, usual: float, factor: float) -> float:
    """From where on a value is odd, by one that is: of a window on a log scale, where both are positive."""
    if usual > 0 and value > 0:
        return max(usual * math.exp(math.log(value / usual) * SIGMAS / sigmas), usual * factor)
    return usual + (value - usual) * SIGMAS / sigmas


def start_of(steps: Sequence[ev.OddStep]) -> ev.OddStep:
    """The first of the last odd steps of a report that lie together: a single one long before is another spike."""
    apart = [after.step - before.step for before, after in pairwise(steps)]
    near = max(TOGETHER, 4 * min(apart, default=0))
    first = len(steps) - 1
    while first > 0 and apart[first - 1] <= near:
        first -= 1
    return steps[first]


def median(values: Sequence[float]) -> float:
    """The upper one, of an even number."""
    return sorted(values)[len(values) // 2]


def culprit_of(losses: Mapping[int, Level], step: int) -> int | None:
    """The one rank whose loss was odd first, at the step where it began or before, and clearly so; None: there is none.

    With all ranks' losses rising for one reason, one of them is the first by chance.
    """
    if len(losses) < 2:
        return None
    first = min(level.step for level in losses.values())
    ranks = [rank for rank, level in losses.items() if level.step == first]
    if len(ranks) > 1 or first > step or losses[ranks[0]].sigmas < CLEAR_SIGMAS:
        return None
    return ranks[0]


def evidence(
    cause: str, levels: Mapping[int, Level], losses: Mapping[int, Level], *, first: int, last: int
) -> dict[str, Any]:
    """What was measured.

    levels: ranks that are far above the usual; losses: of ranks with odd ones; first: step of the onset; last: of now.
    """
    began = {rank: level for rank, level in sorted({**levels, **losses}.items()) if level.step <= first}
    usual = [level.usual for level in levels.values()]
    found: dict[str, Any] = {
        "value": NAMES[cause],
        "ranks": rank_list(list(levels)),
        "usual": median(usual),
        "now": median([level.now for level in levels.values() if level.now is not None]),
        "highest_first": max(level.first for level in levels.values()),
        "sigmas": round(max(level.sigmas for level in levels.values()), 1),
        "first_step": first,
        "steps_since": last - first,
        "first_ranks": rank_list(list(began)),
        "batches": {str(rank): level.batch for rank, level in list(began.items())[:MAX_SHOWN] if level.batch},
    }
    if cause == EXPLOSION:
        pairs = [(one.usual_loss, one.loss) for one in levels.values()]
        known = [(before, after) for before, after in pairs if before is not None and after is not None]
        if known:
            found["loss"] = {"usual": median([one[0] for one in known]), "now": median([one[1] for one in known])}
    return found


def groups(grown: Mapping[int, ev.GradientsGrew], culprit: int | None, *, since: int) -> dict[str, Any]:
    """Whose gradients had grown most, as one rank has told since then: the culprit, or the first of those that have."""
    told = {rank: one for rank, one in grown.items() if one.step >= since - TOGETHER and one.groups}
    if not told:
        return {}
    one = told[culprit if culprit in told else min(told)]
    norms = [{"group": group.name, "usual": group.usual, "now": group.now} for group in one.groups[:MAX_SHOWN]]
    return {"gradient_groups": norms, "gradient_groups_of": {"rank": one.global_rank, "step": one.step}}


def sentence(found: Mapping[str, Any], culprit: int | None, attempt: AttemptView, reporting: int) -> str:
    """The summary of the incident. found: its evidence; reporting: ranks that report the value."""
    name, first, ranks = found["value"], found["first_step"], str(found["ranks"])
    count = sum(len(range(*_span(part))) for part in ranks.split(","))
    whom = all_ranks_text(count) if count == reporting > 1 else f"rank{'s' if count > 1 else ''} {ranks}"
    level = f"is {found['now']:.4g} on {whom} since step {first}, where {found['usual']:.4g} was usual"
    text = f"The {name} {level}, and has not come back in {found['steps_since']} steps"
    if culprit is not None:
        text += f"; it began with the loss of {who(attempt, [culprit])[:1].lower()}{who(attempt, [culprit])[1:]}"
        batch = found["batches"].get(str(culprit))
        text += f" (batch {batch})" if batch else ""
    elif "loss" in found and found["loss"]["now"] > found["loss"]["usual"]:
        text += f"; the loss went from {found['loss']['usual']:.4g} to {found['loss']['now']:.4g}"
    first_group = next(iter(found.get("gradient_groups", ())), None)
    if first_group is not None and first_group["usual"] > 0 and first_group["group"]:
        text += f"; of all gradients those of {first_group['group']} had grown most"
    return f"{text}."


def _span(part: str) -> tuple[int, int]:
    first, _, last = part.partition("-")
    return int(first), int(last or first) + 1


def _shown(losses: Mapping[int, Level], norms: Mapping[int, Level]) -> tuple[str, Mapping[int, Level]]:
    return ("loss", losses) if losses else ("gradient norm", norms)


def back_text(losses: Mapping[int, Level], norms: Mapping[int, Level], cause: str) -> str:
    """What shows that an incident is over."""
    levels = norms if cause == EXPLOSION else losses
    now = median([level.now for level in levels.values() if level.now is not None] or [0.0])
    return f"the {NAMES[cause]} is back at {now:.4g}"


def healed_text(losses: Mapping[int, Level], norms: Mapping[int, Level], last: int) -> str:
    """A remark on what came back by itself."""
    name, levels = _shown(losses, norms)
    first = min(level.step for level in levels.values())
    ranks = sorted(rank for rank, level in levels.items() if level.step == first)
    level = levels[ranks[0]]
    return (
        f"{ranks_text(ranks)}: the {name} leapt to {level.first:.4g} at step {first}, where {level.usual:.4g} was "
        f"usual, and has come back by step {last}"
    )
