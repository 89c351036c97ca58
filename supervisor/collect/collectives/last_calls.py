"""What the ranks of a fallen attempt had called last: their calls pages outlive them."""

from __future__ import annotations

import os

from guardrun.hooks.wire.calls_page import calls_name
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.collectives.calls_page import PageCall, read_calls
from guardrun.supervisor.collect.collectives.process_groups import LAST_CALLS, join
from guardrun.supervisor.engine.model.looks import GroupLook


def read_last_calls(
    sockets_dir: str | os.PathLike[str], attempt: int, global_rank: int, clock: EngineClock
) -> list[GroupLook]:
    """A rank's groups as its page has them; empty where it has none, or none that can be read.

    A call that raised counts as under way: whoever lost a peer in it had not got what it was for.
    """
    try:
        page = read_calls(os.path.join(sockets_dir, calls_name(attempt, global_rank)))
    except (OSError, ValueError):
        return []
    page = page._replace(calls=[_as_begun(call) if call.has_raised else call for call in page.calls])
    return join(page, None, at_ns=clock.at_ns, last=LAST_CALLS)


def _as_begun(call: PageCall) -> PageCall:
    return call._replace(has_raised=False, has_returned=False, done_ns=0, after=-1)
