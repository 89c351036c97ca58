"""How many ranks may meet at torch's store by one more connection each: it is in a process with a limit of open files.

torchrun's launcher has the store, or the script's rank 0. Out of files, that process could take no connection any more,
and training would stop at the next thing it wants of the store. Which of the two it is need not be known: both need
room. Where rank 0 is on another node than this, nobody here can tell, and UNSEEN ranks at most meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from guardrun.supervisor.collect.ranks.open_files import read_open_files

UNSEEN = 256
"""Of ranks that have a connection or two already, beside a default limit of 1,024."""
SPARE = 256
"""Files that stay free."""
UNLIMITED = 1_000_000


def count_room(pids: Iterable[int]) -> int:
    """For how many connections each of these processes has room; UNSEEN at least, and where there are none."""
    rooms = []
    for pid in pids:
        files = read_open_files(pid)
        if files is None:
            return UNSEEN
        rooms.append(files.limit - files.count - SPARE if files.limit else UNLIMITED)
    return max(UNSEEN, min(rooms, default=UNSEEN))
