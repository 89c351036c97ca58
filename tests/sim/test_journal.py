"""What the simulation tells survives the journal's file: the same decisions, the same memory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal import Journal, recover, replay
from tests.sim import activity as act
from tests.sim.cluster import Cluster

_ACTIONS = msgspec.json.Decoder(list[ac.Action])


def eventful() -> Cluster:
    """A bit of everything."""
    cluster = Cluster(ranks=8, seed=5)
    cluster.collect(global_rank=2, at_s=60, seconds=2.5)
    cluster.do(act.SPIN, global_rank=3, at_s=100)
    error = ev.ErrorRecord(error="ValueError", message="ünusual 'text'\x00", frames=[("/home/user/train.py", "f", 1)])
    cluster.crash(global_rank=4, at_s=400, error=error)
    cluster.restart_supervisor(at_s=500, seconds=2)
    cluster.freeze(at_s=600, seconds=30)
    cluster.stop_process(global_rank=1, at_s=700)
    cluster.signal(15, at_s=900)
    return cluster.run(until_s=1000)


@pytest.mark.parametrize("rotate_bytes", [10**9, 60_000])
def test_a_run_replayed_from_its_files(tmp_path: Path, rotate_bytes: int) -> None:
    cluster = eventful()
    assert [i.cause for i in cluster.incidents.values()] == ["gc_pause", "rank_spinning", "exception", "rank_stopped"]
    journal = Journal(tmp_path, rotate_bytes=rotate_bytes)
    live = type(cluster.engine)()
    for entry in cluster.journal:
        live.handle(entry.event, entry.now_s)
        journal.append(entry.event, _ACTIONS.decode(entry.actions), entry.now_s)
        journal.rotate_if_large(live)
    journal.close()
    assert (len(list(tmp_path.iterdir())) > 1) is (rotate_bytes < 10**9)
    assert replay(tmp_path).mismatches == []
    engine, result = recover(tmp_path)
    assert result.mismatches == [] and result.set_aside == 0
    assert msgspec.json.decode(engine.snapshot()) == msgspec.json.decode(cluster.engine.snapshot())
