"""How far the coordinator's clock is from this host's, from answers to what was sent; without a clock of its own.

Of one answer: the frame left at `sent` and the answer came at `got` (ours), it was heard at `heard` and answered at
`now` (theirs). Were both ways equally long, theirs is ahead of ours by ((heard - sent) + (now - got)) / 2 (RFC 5905,
section 8). They are not, and the error is at most half of what was spent on the way, whichever way was the longer. So
the answer that spent least wins, until its own error plus what the clocks may have drifted apart since is no better.
"""

from __future__ import annotations

DRIFT = 2e-4
"""Each of the two clocks may be 100 ppm off (RFC 5905: a tolerance of 15 ppm; crystals without NTP: up to 100)."""


class Offset:
    """The best estimate so far."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._error_s = float("inf")
        self._at_s = 0.0

    def answered(self, sent_s: float, got_s: float, heard_s: float, now_s: float) -> None:
        """Take an answer in: sent_s and got_s on this host's clock, heard_s and now_s on the coordinator's."""
        on_the_way_s = (got_s - sent_s) - (now_s - heard_s)
        if got_s < sent_s or now_s < heard_s or on_the_way_s < -DRIFT * (got_s - sent_s) - 1e-6:
            return  # no answer to anything: a clock that jumped, or nonsense
        error_s = max(0.0, on_the_way_s) / 2
        if error_s <= self.error_s(got_s):
            self._offset_s = ((heard_s - sent_s) + (now_s - got_s)) / 2
            self._error_s = error_s
            self._at_s = got_s

    @property
    def is_known(self) -> bool:
        """Whether an answer has been taken in: before, `offset_s` means nothing."""
        return self._error_s != float("inf")

    @property
    def offset_s(self) -> float:
        """Coordinator's seconds minus this host's; 0 before the first answer."""
        return self._offset_s

    def error_s(self, now_s: float) -> float:
        """The most that the offset can be wrong by at now_s of this host; infinite before the first answer."""
        return self._error_s + DRIFT * max(0.0, now_s - self._at_s)
