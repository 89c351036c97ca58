"""Sends ranks' messages as fast as they are taken: ADDRESS COUNT SAVES_IN RANKS."""

from __future__ import annotations

import sys
import time

import msgspec
import zmq

from guardrun.hooks.wire.messages import Beat, CheckpointSaved

address, count, saves_in, ranks = sys.argv[1], *map(int, sys.argv[2:5])
encode = msgspec.msgpack.Encoder().encode
now_ns = time.monotonic_ns()
beats = [
    encode(Beat(attempt=0, global_rank=r, pid=1, sent_ns=now_ns, group_seqs={"default_pg": 123456, "mesh_dp": 7890}))
    for r in range(ranks)
]
saved = encode(
    CheckpointSaved(
        attempt=0,
        global_rank=0,
        pid=1,
        path="/checkpoints/run/step_1000/model.pt",
        writer="torch.save",
        step=1000,
        began_ns=now_ns,
        ended_ns=now_ns,
    )
)
with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
    socket.set(zmq.LINGER, 60_000)
    socket.connect(address)
    for number in range(1, count + 1):
        socket.send(saved if number % saves_in == 0 else beats[number % ranks])
