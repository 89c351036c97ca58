"""A sensor that reads what it is told to."""

from __future__ import annotations

from collections.abc import Callable

from guardrun.supervisor.health.base.readings import Readout


class Plain:
    """Reads whatever `act` answers."""

    def __init__(
        self, name: str, act: Callable[[float], object] = lambda _: None, period_s: float = 60, timeout_s: float = 5
    ) -> None:
        self.name, self.period_s, self.timeout_s = name, period_s, timeout_s
        self.act = act
        self.is_closed = False

    def read(self, now_s: float) -> Readout:
        """What `act` answers; None: a readout without samples."""
        answer = self.act(now_s)
        return Readout(sensor=self.name, at_s=now_s) if answer is None else answer  # type: ignore[return-value]

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True
