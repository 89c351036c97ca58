"""Passes on what ranks write to their stderr, byte for byte, and keeps the end of it: a small program of its own.

    python -I -S stderr_relay.py READER:COPY[:TO:FROM] …

Each reader (a pipe's reading end, or a pty's master) has a copy, a memfd. What is read is appended to the copy; what is
in the copy beyond its file offset is written to this program's stderr. So what was taken is the copy's size, what was
passed on is its offset, and the kernel keeps both: where this program is ended, at whatever moment, the next one goes
on at the very byte. The kernel moves bytes from a pty to a copy in two steps alone: between them they are in a pipe
(TO and FROM are its ends), which the launcher has open as well.

It ends once nobody has the other end of any reader any more (0), or once nobody reads its stderr (BROKEN). Where its
stderr takes nothing it waits, and the ranks do, as they would without it. launcher/attempt/stderr_capture.py starts and
watches it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OUT = 2
BROKEN = 3
"""Exit status: nobody reads its stderr any more."""
TAKE_BYTES = 64 << 10
PIPE_BYTES = 4 << 10
"""What the smallest of pipes has room for."""
KEPT_BYTES = 64 << 10
"""Of each rank's output, at least, once there was so much."""
FULL_BYTES = 256 << 10
"""A copy of this size is cut down to KEPT_BYTES."""
BROKEN_BY = (errno.EPIPE, errno.EIO, errno.ECONNRESET, errno.ENXIO)
LOOK_EVERY_MS = 500
"""How often the window size is looked at, where there is a terminal (nobody tells a session of its own), or the end."""
_IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGTSTP", "SIGTTOU", "SIGCONT")
"""What a whole job or session is sent: the ranks may still have something to say."""


class Source:
    """One rank's output, by its descriptors.

    A plain class: what makes records would take longer to import than all else here.
    """

    def __init__(self, reader: int, copy: int, to: int = -1, from_: int = -1) -> None:
        self.reader, self.copy, self.to, self.from_ = reader, copy, to, from_

    @property
    def numbers(self) -> list[int]:
        """The descriptors that it has, in the order of the program's argument."""
        return [number for number in (self.reader, self.copy, self.to, self.from_) if number >= 0]


def relay_available(source: Source) -> bool:
    """Move what is there to the end of the copy. False where nobody can write any more.

    Each step is one of the kernel's, so that nothing is lost between two.
    """
    if source.to < 0:
        return _splice(source.reader, source.copy)
    is_open = _splice(source.reader, source.to)
    relay_between(source)
    return is_open


def relay_between(source: Source) -> None:
    """Move what is in the pipe between, if there is one, to the end of the copy."""
    while source.to >= 0 and waiting_bytes(source.from_):
        _splice(source.from_, source.copy)


def _splice(reader: int, to: int) -> bool:
    """False where nobody can write any more. to: a copy, or a pipe with room."""
    is_copy = not stat.S_ISFIFO(os.fstat(to).st_mode)
    try:
        return os.splice(reader, to, TAKE_BYTES, offset_dst=os.fstat(to).st_size if is_copy else None) > 0
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno == errno.EIO:  # what a pty's master answers once nobody has the slave
            return False
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EPERM):
            raise
    return _copy(reader, to, is_copy)


def _copy(reader: int, to: int, is_copy: bool) -> bool:
    """As `_splice`, in two steps: for kernels that have no such way between the two."""
    try:
        data = os.read(reader, PIPE_BYTES)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise
    at, is_open = os.fstat(to).st_size, bool(data)
    while data:
        written = os.pwrite(to, data, at) if is_copy else os.write(to, data)
        at, data = at + written, data[written:]
    return is_open


def waiting_bytes(reader: int) -> int:
    """What can be read of it. Of a pty, what was written is under way to its master until that is polled."""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    poller.poll(0)
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


def pass_on(copy: int) -> None:
    """Write what has not been written yet; waits for whoever reads. Raises BrokenPipeError or another OSError."""
    size = os.fstat(copy).st_size
    while (offset := os.lseek(copy, 0, os.SEEK_CUR)) < size:
        try:
            os.sendfile(OUT, copy, None, size - offset)
        except BlockingIOError:  # somebody has made the user's end non-blocking
            select.select([], [OUT], [])
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                raise
            written = os.write(OUT, os.pread(copy, size - offset, offset))
            os.lseek(copy, offset + written, os.SEEK_SET)


def cut(copy: int) -> None:
    """Keep the end of a copy that is full and has been passed on. Ended in between, some of the end is lost at most.

    Its offset is beyond its size then, which `mend` sees. In place of the truncation, a write would change pages that a
    pipe may still refer to.
    """
    size = os.fstat(copy).st_size
    if size < FULL_BYTES:
        return
    end = os.pread(copy, KEPT_BYTES, size - KEPT_BYTES)
    os.ftruncate(copy, 0)
    os.lseek(copy, len(end), os.SEEK_SET)
    os.pwrite(copy, end, 0)


def mend(copy: int) -> None:
    """What a predecessor has left that was ended within `cut`: all of it had been passed on."""
    size = os.fstat(copy).st_size
    if os.lseek(copy, 0, os.SEEK_CUR) > size:
        os.lseek(copy, size, os.SEEK_SET)


def copy_window_size(masters: list[int]) -> None:
    """From the terminal to its stand-ins."""
    try:
        size = fcntl.ioctl(OUT, termios.TIOCGWINSZ, bytes(8))
        for master in masters:
            if fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)) != size:
                fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    except OSError:
        pass


def serve(sources: Iterable[Source], is_over: Callable[[], bool] | None = None) -> None:
    """Pass on until nobody can write any more, or it is over. Raises OSError, one of BROKEN_BY where nobody reads."""
    left = {source.reader: source for source in sources}
    poller = select.poll()
    for reader, source in left.items():
        mend(source.copy)
        relay_between(source)  # what this one's predecessor had taken
        pass_on(source.copy)
        os.set_blocking(reader, False)
        poller.register(reader, select.POLLIN)
    masters = [reader for reader in left if os.isatty(reader)]
    patience_ms = LOOK_EVERY_MS if masters or is_over is not None else None
    while left and not (is_over is not None and is_over()):
        copy_window_size(masters)
        for reader, _ in poller.poll(patience_ms):
            is_open = relay_available(left[reader])
            pass_on(left[reader].copy)
            cut(left[reader].copy)
            if not is_open:
                poller.unregister(reader)
                del left[reader]


def main(arguments: list[str]) -> int:
    """Relay until all writers have closed; answers the exit status.

    arguments: one READER:COPY[:TO:FROM] a rank, as descriptors. BROKEN where nobody reads its stderr any more.
    """
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        serve(Source(*map(int, argument.split(":"))) for argument in arguments)
    except OSError as error:
        if error.errno in BROKEN_BY:
            return BROKEN
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
