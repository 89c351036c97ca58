"""Who keeps copies of whose ranks' states: each node's next in the ring of those that train.

    MirrorOffer  ◀ a node has copies to send, and this is its key
    MirrorOpen   ▶ the next node: let that key in
    MirrorReady  ◀ it may come here
    MirrorTo     ▶ the first: go there

Nothing is remembered: a node that gets no answer, or loses its connection, offers again.
"""

from __future__ import annotations

from collections.abc import Callable

from guardrun.supervisor.engine.state.state import Attempt
from guardrun.supervisor.fleet.protocol.messages import MirrorOffer, MirrorOpen, MirrorReady, MirrorTo


def next_in_ring(attempt: Attempt | None, number: int, node: str) -> str:
    """Empty: there is none, or that attempt is not the current one, or the node has no part in it."""
    if attempt is None or attempt.number != number:
        return ""
    ring = list(dict.fromkeys(known.rank.node for _, known in sorted(attempt.ranks.items())))
    if node not in ring or len(ring) < 2:
        return ""
    return ring[(ring.index(node) + 1) % len(ring)]


def on_mirror_message(
    attempt: Attempt | None,
    node: str,
    message: MirrorOffer | MirrorReady,
    send: Callable[[str, MirrorOpen | MirrorTo], object],
) -> None:
    """What a node says of it."""
    number = message.attempt
    if isinstance(message, MirrorOffer):
        if target := next_in_ring(attempt, number, node):
            send(target, MirrorOpen(attempt=number, source=node, key=message.key))
    elif next_in_ring(attempt, number, message.source) == node:
        to = MirrorTo(attempt=number, address=message.address, port=message.port, key=message.key)
        send(message.source, to)
