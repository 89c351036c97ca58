"""A coordinator pinned to one core: NODES RANKS CORE.

RANKS: how many ranks of each report the engine is told of; 0: the reports are decoded, and no engine is asked.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import zmq

from benchmarks.engine_bench import opened_engine
from benchmarks.fleet import RANKS_A_NODE, Door, Measured
from guardrun.supervisor.engine.model.events import NodeReport
from guardrun.supervisor.fleet.transport.curve import make_key_pair
from guardrun.supervisor.fleet.transport.hub import Body, Hub, HubSettings, Joined
from guardrun.supervisor.wire.listening_addresses import Listen

SILENCE_S = 3.0
"""No report for so long: that was all."""


def main() -> None:
    nodes, ranks, core = map(int, sys.argv[1:4])
    os.sched_setaffinity(0, {core})  # before ZeroMQ starts its thread
    began_s = time.monotonic()
    engine = opened_engine(nodes * RANKS_A_NODE) if ranks else None
    decoder = msgspec.msgpack.Decoder(NodeReport)
    keys, client = make_key_pair(), make_key_pair()
    hub = Hub(time.monotonic, keys, [client.public], settings=HubSettings(listen=Listen(addresses=["127.0.0.1"])))
    poller = zmq.Poller()
    hub.register(poller)
    door = Door(hub.port, keys.public, client.public, client.secret)
    print(msgspec.json.encode(door).decode(), flush=True)
    latencies: list[float] = []
    first_s = last_s = cpu_began_s = cpu_s = first_join_s = last_join_s = 0.0
    while not first_s or time.monotonic() - last_s < SILENCE_S:
        ready = dict(poller.poll(100))
        happened = hub.read(ready)
        now_s = time.monotonic()
        for _, what in happened:
            if isinstance(what, Body):
                event = decoder.decode(what.body)
                latencies.append(now_s - event.ranks[0].heart_s)
                if engine is not None:
                    engine.handle(event, now_s - began_s)
                    engine.next_deadline_s()
            elif isinstance(what, Joined):
                first_join_s = first_join_s or now_s
                last_join_s = now_s
        hub.acknowledge()
        if any(isinstance(what, Body) for _, what in happened):
            last_s = time.monotonic()
            cpu_s = time.process_time()
            if not first_s:
                first_s, cpu_began_s = last_s, cpu_s
    third = max(1, len(latencies) // 3)
    measured = Measured(
        reports=len(latencies),
        seconds=last_s - first_s,
        cpu_s=cpu_s - cpu_began_s,
        early_ms=spread_ms(latencies[:third]),
        late_ms=spread_ms(latencies[-third:]),
        joined_s=last_join_s - first_join_s,
        malformed=hub.counters.malformed + hub.counters.late_frames,
    )
    hub.close()
    print(msgspec.json.encode(measured).decode(), flush=True)


def spread_ms(latencies: list[float]) -> list[float]:
    """Median, 99th percentile and the largest, in milliseconds."""
    ordered = sorted(latencies)
    return [round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3) for part in (0.5, 0.99, 1.0)]


main()
