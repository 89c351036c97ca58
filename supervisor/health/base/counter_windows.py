"""How a counter grows over a window of time. Pure."""

from __future__ import annotations

from collections import deque


class WindowedCounter:
    """A counter of a driver's, which begins anew when the driver is loaded again: one that falls starts over."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def take(self, value: float, at_s: float) -> float:
        """How much it has grown since the last value; 0 for the first one, and for one that begins anew."""
        last = self._points[-1][1] if self._points else value
        if value < last:
            self._points.clear()
            last = value
        self._points.append((at_s, value))
        while len(self._points) > 2 and self._points[1][0] <= at_s - self._window_s:
            self._points.popleft()
        return value - last

    def growth(self) -> float:
        """Over the window, or since it is known where that is shorter."""
        return self._points[-1][1] - self._points[0][1] if self._points else 0.0

    def spent_s(self) -> float:
        """What growth is over."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    def rate(self) -> float:
        """A second; 0 where it is known only once."""
        return self.growth() / self.spent_s() if self.spent_s() else 0.0
