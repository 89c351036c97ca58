"""Events a second through the engine, in one process, without journal and sockets.

run() -> figures; the names say what they are, rates are per second of one core
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev

NODES = 12_500
RANKS_A_NODE = 8
SECONDS = 1.0
"""How long each figure is measured."""


def opened_engine(ranks: int) -> Engine:
    """An engine that watches a running attempt."""
    engine = Engine()
    opened = ev.RunOpened(
        run_id="bench", settings=ev.Settings(), node="node-0", command=[], world_size=ranks, wall_s=0.0
    )
    engine.handle(opened, 0.0)
    started = [
        ev.Rank(global_rank=n, local_rank=n % RANKS_A_NODE, pid=n + 10, node=f"node-{n // RANKS_A_NODE}")
        for n in range(ranks)
    ]
    engine.handle(ev.AttemptStarted(attempt=0, ranks=started), 0.1)
    return engine


def reports(node: int, ranks: range, step: int, at_s: float) -> ev.NodeReport:
    """A node's report in which these of its ranks have advanced."""
    changed = [
        ev.RankReport(global_rank=number, progress=3 * step, progress_s=at_s, step=step, heart_s=at_s)
        for number in ranks
    ]
    return ev.NodeReport(node=f"node-{node}", attempt=0, ranks=changed)


def events_a_second(engine: Engine, events: Iterator[tuple[float, ev.Event]], chunk: int) -> float:
    """Feed events as the daemon does, asking for the next deadline after each; making them isn't counted."""
    handled, spent_s = 0, 0.0
    while spent_s < SECONDS:
        batch = [next(events) for _ in range(chunk)]
        began = time.process_time()
        for now_s, event in batch:
            engine.handle(event, now_s)
            engine.next_deadline_s()
        spent_s += time.process_time() - began
        handled += chunk
    return handled / spent_s


def one_node() -> Iterator[tuple[float, ev.Event]]:
    """Eight ranks, all of them changed each second."""
    step = 0
    while True:
        step += 1
        yield step + 0.5, reports(0, range(RANKS_A_NODE), step, step + 0.4)


def many_nodes() -> Iterator[tuple[float, ev.Event]]:
    """100,000 ranks: a report a second of each of 12,500 nodes, in which one rank has changed."""
    step = 0
    while True:
        step += 1
        for node in range(NODES):
            first = node * RANKS_A_NODE
            rank = first + step % RANKS_A_NODE
            yield step + node / NODES, reports(node, range(rank, rank + 1), step, step + node / NODES - 0.1)


def run() -> dict[str, float]:
    """Measure; takes some seconds."""
    large = opened_engine(NODES * RANKS_A_NODE)
    rate = events_a_second(large, many_nodes(), NODES)
    return {
        "engine_events_per_s_8_ranks": events_a_second(opened_engine(RANKS_A_NODE), one_node(), 1000),
        "engine_events_per_s_100000_ranks": rate,
        "engine_core_share_at_12500_reports_per_s": NODES / rate,
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:45} {value:12,.3f}")
