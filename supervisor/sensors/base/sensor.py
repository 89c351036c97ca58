"""What the runner asks of a sensor, and how sensors read the small files of /proc and /sys."""

from __future__ import annotations

import errno
import os
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


# Small files --------------------------------------------------------------------------------------------------------
# Reading the small files of /proc and /sys, with the reason where one cannot be read.


_BYTES = 1 << 20
_REASONS = {
    errno.ENOENT: "is not there",
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.EOPNOTSUPP: "is switched off in this kernel",
}


def below(root: str, path: str) -> str:
    """An absolute path, as seen from root."""
    return path if root == "/" else root.rstrip("/") + path


def why(error: OSError, path: str) -> str:
    """Why a file cannot be read, in words."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or type(error).__name__
    return f"{path} {reason}"


def read_text(path: str) -> tuple[str, str]:
    """What a file holds, and why it can't be read (empty: it could)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return "", why(error, path)
    try:
        chunks = []
        left = _BYTES
        while left > 0 and (chunk := os.read(fd, min(left, 1 << 16))):
            chunks.append(chunk)
            left -= len(chunk)
    except OSError as error:
        return "", why(error, path)
    finally:
        os.close(fd)
    return b"".join(chunks).decode("utf-8", "replace"), ""


def read_word(path: str) -> str:
    """The content of a file of one value; empty where it can't be read."""
    return read_text(path)[0].strip()


def parse_count(text: str) -> int | None:
    """A whole number, in decimal or (`0x…`) hexadecimal; None where it is none."""
    text = text.strip()
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None


def read_count(path: str) -> int | None:
    """The number that a file of one value holds; None where it can't be read."""
    return parse_count(read_word(path))


def list_folder(path: str) -> list[str]:
    """Names in a folder, sorted; empty where it is not there."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
