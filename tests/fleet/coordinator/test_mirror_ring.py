"""Who keeps copies for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from guardrun.supervisor.fleet.coordinator.mirror_ring import on_mirror_message
from guardrun.supervisor.fleet.protocol.messages import MirrorOffer, MirrorOpen, MirrorReady, MirrorTo
from guardrun.supervisor.fleet.transport.curve import make_key_pair

KEY = make_key_pair().public


def attempt(*nodes: str) -> Any:
    ranks = {number: SimpleNamespace(rank=SimpleNamespace(node=node)) for number, node in enumerate(nodes)}
    return SimpleNamespace(number=3, ranks=dict(reversed(ranks.items())))


def orders(now: Any, node: str, message: MirrorOffer | MirrorReady) -> list[tuple[str, object]]:
    sent: list[tuple[str, object]] = []
    on_mirror_message(now, node, message, lambda to, order: sent.append((to, order)))
    return sent


def test_each_node_sends_to_the_next() -> None:
    ring = attempt("c", "c", "a", "b")
    for node, target in (("c", "a"), ("a", "b"), ("b", "c")):
        offer = MirrorOffer(attempt=3, key=KEY)
        assert orders(ring, node, offer) == [(target, MirrorOpen(attempt=3, source=node, key=KEY))]
        ready = MirrorReady(attempt=3, source=node, address="host", port=5, key=KEY)
        assert orders(ring, target, ready) == [(node, MirrorTo(attempt=3, address="host", port=5, key=KEY))]
        assert orders(ring, node, ready) == [], "not its next"


def test_nobody_is_sent_anywhere_without_a_next() -> None:
    offer = MirrorOffer(attempt=3, key=KEY)
    assert orders(None, "a", offer) == orders(attempt("a", "a"), "a", offer) == []
    assert orders(attempt("a", "b"), "spare", offer) == []
    assert orders(attempt("a", "b"), "a", MirrorOffer(attempt=2, key=KEY)) == []
