"""What the runner asks of a sensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from guardrun.supervisor.health.base.readings import Happening, Readout, Sample, Value


class Sensor(Protocol):
    """Reads one part of the node, again and again, always in one and the same thread.

    Where it has an attribute `doing`, that says in words what it is at (`asking /scratch`): told where a call of it
    does not return.
    """

    name: str
    period_s: float
    timeout_s: float
    """A call that takes longer is told as silent."""

    def read(self, now_s: float) -> Readout:
        """What there is to tell now; now_s is CLOCK_MONOTONIC.

        It should not raise: what it cannot read is Unknown with the reason. One that raises is told as trouble.
        """
        ...

    def close(self) -> None:
        """Let go of whatever it holds. Called in the sensor's thread, after its last call has returned."""
        ...


@runtime_checkable
class WaitingSensor(Protocol):
    """A sensor that is also read when its descriptor can be, so that nothing has to be polled."""

    def fileno(self) -> int:
        """What to wait on for reading; -1 while there is nothing. Asked again after each read."""
        ...


def known(subject: str, **values: Value) -> list[Sample]:
    """Samples of one subject."""
    return [Sample(subject=subject, name=name, value=value) for name, value in values.items()]


def unknown(subject: str, names: Iterable[str], trouble: str) -> list[Sample]:
    """Samples that could not be read, with the reason."""
    return [Sample(subject=subject, name=name, trouble=trouble) for name in names]


def happened(subject: str, name: str, at_s: float, text: str = "", **data: Value) -> Happening:
    """Something that happened; its text is bounded."""
    return Happening(subject=subject, name=name, at_s=at_s, text=text[:MAX_TEXT], data=data)


MAX_TEXT = 400
"""Characters of a happening's text."""
