"""With how much patience guardrun is played, and what its own policy then says of each class of faults."""

from __future__ import annotations

import msgspec

from benchmarks.gym.case import Doubt
from guardrun.supervisor.config.tables import HangTable
from guardrun.supervisor.engine.detectors.hang.hang import TORCH_TIMEOUT_S
from guardrun.supervisor.engine.detectors.hang.stalls import ALONE, COMPUTING
from guardrun.supervisor.engine.model.hang_patience import Sensitivity
from guardrun.supervisor.engine.model.hang_patience import patience as policy

HARD_TIMEOUT_S = HangTable().hard_timeout_s
TELL_S = HangTable().tell_s
"""Nothing scales it. So many times as late is told what nobody waits for (ALONE), and what computes (COMPUTING)."""
SHORTEST_HARD_S = COMPUTING * TELL_S + 60.0
"""A hard limit that is shorter would be over before the last of the classes is told."""
TOLD_SLACK_S = 5.0
ACTED_SLACK_S = 15.0
"""Between a time being over and the look that finds it over, on a machine that is busy."""
EARLY_S = 2.0
"""By which the supervisor may know of a progress before the script's log does."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """What guardrun is started with."""

    sensitivity: Sensitivity = "normal"
    scale: float = 0.1
    """hang.scale. It multiplies the times without proof, and nothing else: not hang.tell_s, not the times with proof,
    not hang.hard_timeout_s."""
    hard_timeout_s: float = SHORTEST_HARD_S

    def flags(self) -> tuple[str, ...]:
        """For guardrun's command line; empty where all is as it is by default."""
        given = []
        if self.sensitivity != "normal":
            given.append(f"--guard-hang-sensitivity={self.sensitivity}")
        if self.scale != 1:
            given.append(f"--guard-hang-scale={self.scale:g}")
        if self.hard_timeout_s != HARD_TIMEOUT_S:
            given.append(f"--guard-hang-hard-timeout-s={self.hard_timeout_s:g}")
        return tuple(given)

    def in_full(self) -> Patience:
        """The same without scaling."""
        return Patience(sensitivity=self.sensitivity, scale=1.0, hard_timeout_s=HARD_TIMEOUT_S)

    def acts_s(self, doubt: Doubt) -> float:
        """After how long a fault of that class is acted on, by the policy's table. At once: 0."""
        times = policy(self.sensitivity, self.scale)
        if doubt is Doubt.ALONE:
            # Where somebody watches, what nobody waits for gets what a silent source of data gets.
            return float(times["data_patience_s"]) if self.sensitivity == "eager" else self.hard_timeout_s
        wanted_s = float(times[doubt.setting]) if doubt.setting else 0.0
        # What a device holds up gets as long as torch itself would wait, which nothing scales.
        wanted_s = max(wanted_s, TORCH_TIMEOUT_S) if doubt is Doubt.DEVICE else wanted_s
        return min(wanted_s, self.hard_timeout_s)

    def acts_within_s(self, doubt: Doubt) -> float:
        """The target for it."""
        return self.acts_s(doubt) + ACTED_SLACK_S if doubt.needs_patience else doubt.limit_s

    def is_too_soon(self, doubt: Doubt, acted_s: float) -> bool:
        """Whether it was acted on without the patience that a job at work elsewhere is owed."""
        return doubt.needs_patience and acted_s < self.acts_s(doubt) - EARLY_S

    def told_within_s(self, doubt: Doubt) -> float:
        """The target for telling; what is acted on sooner is told by that."""
        if not doubt.needs_patience:
            return doubt.limit_s
        factor = ALONE if doubt is Doubt.ALONE else COMPUTING if doubt is Doubt.COMPUTING else 1.0
        return min(factor * TELL_S, self.acts_s(doubt)) + TOLD_SLACK_S

    def __str__(self) -> str:
        words = f'`hang.sensitivity = "{self.sensitivity}"`'
        if self == self.in_full():
            return words
        return f"{words}, `hang.scale = {self.scale:g}`, `hang.hard_timeout_s = {self.hard_timeout_s:g}`"


def played_at(sensitivity: Sensitivity, scale: float) -> Patience:
    """A drill's patience. The hard limit is shortened as the rest is, as far as telling lets it."""
    hard_s = HARD_TIMEOUT_S if scale == 1 else max(HARD_TIMEOUT_S * scale, SHORTEST_HARD_S)
    return Patience(sensitivity=sensitivity, scale=scale, hard_timeout_s=hard_s)


def played_on_devices(sensitivity: Sensitivity, scale: float) -> Patience:
    """The same on the emulated device: the hard limit is what makes torch's own timeout, of which guardrun scales
    nothing, so many times shorter. What computes natively, and is told late, is not played there."""
    hard_s = HARD_TIMEOUT_S if scale == 1 else TORCH_TIMEOUT_S * scale
    return Patience(sensitivity=sensitivity, scale=scale, hard_timeout_s=hard_s)
