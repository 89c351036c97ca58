"""How each failure shows: to the ranks, and through them and the nodes to the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from benchmarks.sim import hiccups
from benchmarks.sim.attempt import PEER_LOST, Attempt
from benchmarks.sim.failures import AGAIN_S, SENSED, Failure, Truth
from benchmarks.sim.nodes import Node
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.base.findings import Finding, Response

if TYPE_CHECKING:
    from benchmarks.sim.world import World

_FRAMES = [("/home/user/train.py", "train", 60)]


def _error(kind: str, message: str) -> ev.ErrorRecord:
    return ev.ErrorRecord(error=kind, message=message, frames=_FRAMES)


_CUDA = "torch.AcceleratorError"
ERRORS = {
    Truth.GPU_GONE: _error(_CUDA, "CUDA error: GPU is lost"),
    Truth.GPU_BAD: _error(_CUDA, "CUDA error: unspecified launch failure"),
    Truth.GPU_HICCUP: _error(_CUDA, "CUDA error: unspecified launch failure"),
    Truth.KERNEL_BUG: _error(_CUDA, "CUDA error: an illegal memory access was encountered"),
    Truth.STORAGE_ERROR: _error("OSError", "[Errno 5] Input/output error: '/data/shard-17'"),
    Truth.DISK_FULL: _error("OSError", "[Errno 28] No space left on device: '/out'"),
    Truth.LINK_FLAP: _error("torch.distributed.DistBackendError", "NCCL error: unhandled system error"),
    Truth.NIC_BAD: _error("torch.distributed.DistBackendError", "NCCL error: unhandled system error"),
    Truth.NAN: _error("ValueError", "loss is nan"),
}
OF_NODE = frozenset({Truth.GPU_GONE, Truth.GPU_BAD, Truth.NIC_BAD})
HANGS = frozenset({Truth.HANG, Truth.SPIN, Truth.ALL_WAIT, Truth.STORAGE_HANG})
PAUSES = {Truth.HANG: 6.0, Truth.STORAGE_HANG: 1.8, Truth.SPIN: 1.2}
"""What a pause looks like: as hangs do, and as often."""
PEERS = 3
"""Ranks that say that they lost a peer before all are stopped."""
SLOW = 1.3


def befall(world: World, failure: Failure) -> None:
    """Have it happen."""
    names = world.parameters.names
    node, truth = world.nodes[names[failure.node]], failure.truth
    if truth is Truth.OUTAGE:
        size = world.parameters.switch_nodes
        first = failure.node // size * size
        # The switch of the head is left alone, as the head is.
        for other in world.parameters.names[max(first, size) : first + size] or []:
            _goes(world, world.nodes[other], failure.lasts_s, is_dead=False)
    elif truth is Truth.CONTACT:
        _mute(world, node, failure.lasts_s)
    elif truth is Truth.FREEZE:
        hiccups.freeze(world, node, failure.lasts_s)
    elif truth is Truth.SUSPEND:
        hiccups.suspend(world, failure.lasts_s)
    elif truth in (Truth.NODE_DEAD, Truth.CONTAINER):
        node.is_touched = True
        _goes(world, node, failure.lasts_s, is_dead=True, is_closed=truth is Truth.CONTAINER)
    elif truth is Truth.SLOW:
        _slow(world, node, failure.lasts_s)
    elif truth in OF_NODE:
        _turns_bad(world, node, failure)
    else:
        _of_the_script(world, failure)


# Nodes -------------------------------------------------------------------------------------------------


def _goes(world: World, node: Node, lasts_s: float, *, is_dead: bool, is_closed: bool = False) -> None:
    """A node (or its switch) goes; is_dead: and what ran on it."""
    if not node.is_up:
        return
    node.is_up, node.has_died = False, is_dead
    world.silence(node, is_closed)
    attempt = world.attempt
    if attempt is not None and node in attempt.nodes and attempt.failed_s is None:
        attempt.fail(world.now_s)
        if world.random.random() < 0.5:
            world.after(world.random.uniform(1.0, 20.0), lambda: _peers_raise(world, attempt, node))

    def back() -> None:
        node.is_up = True
        if not node.is_muted:
            world.heard_again(node)

    world.after(lasts_s, back)


def _mute(world: World, node: Node, lasts_s: float) -> None:
    if not node.is_heard:
        return
    node.is_muted = True
    world.silence(node)

    def back() -> None:
        node.is_muted = False
        if node.is_up:
            world.heard_again(node)

    world.after(lasts_s, back)


def _slow(world: World, node: Node, lasts_s: float) -> None:
    node.slow_until_s, node.slow = world.now_s + lasts_s, SLOW

    def retune() -> None:
        attempt = world.attempt
        if attempt is not None and attempt.failed_s is None and world.now_s >= attempt.training.first_s:
            slow = max((n.slow for n in attempt.nodes if n.slow_until_s > world.now_s), default=1.0)
            attempt.training.slow_down(world.now_s, slow)

    retune()
    world.after(lasts_s + 0.001, retune)


def _turns_bad(world: World, node: Node, failure: Failure) -> None:
    node.is_touched, node.bad, node.bad_s = True, failure.truth, world.now_s
    sick_s = node.bad_s

    def found() -> None:
        if node.bad is not None and node.bad_s == sick_s:
            world.repair(node)

    world.after(world.parameters.found_s, found)
    attempt = world.attempt
    if attempt is not None and node in attempt.nodes:
        _breaks(world, attempt, node, failure.truth, failure.luck)


def fail_again(world: World, attempt: Attempt, node: Node) -> None:
    """An attempt has started on a bad node: it will fail there."""
    truth, sick_s = node.bad, node.bad_s
    assert truth is not None

    def fails() -> None:
        if node.bad is truth and node.bad_s == sick_s and world.attempt is attempt:
            _breaks(world, attempt, node, truth, world.random.random())

    world.after(world.random.expovariate(1 / AGAIN_S[truth]) + 1.0, fails)


def _breaks(world: World, attempt: Attempt, node: Node, truth: Truth, luck: float) -> None:
    """A rank of a bad node fails; sensors may have seen why."""
    if attempt.failed_s is not None:
        return
    rank = attempt.rank_on(node, luck)
    # The same luck in every attempt of a sick spell: a part without a sensor stays without one.
    if (node.bad_s * 7919 % 1) < SENSED[truth]:
        told_s = world.random.uniform(-1.0, 3.0)
        world.after(max(0.0, told_s), lambda: _sense(world, node, rank, truth))
    crash(world, attempt, rank, ERRORS[truth], exitcode=1, delay_s=1.0)


def _sense(world: World, node: Node, rank: int, truth: Truth) -> None:
    is_gpu = truth is not Truth.NIC_BAD
    subject = f"gpu:GPU-{node.number}" if is_gpu else "nic:mlx5_0"
    finding = Finding(
        id=f"{'gpu_xid' if is_gpu else 'network'}/{subject}",
        cause="gpu_xid" if is_gpu else "network",
        key="" if is_gpu else "network_flapping",
        subject=subject,
        since_s=world.now_s,
        told_s=world.now_s,
        summary="Xid 79: the GPU has fallen off the bus" if is_gpu else "mlx5_0 comes and goes",
        response=Response.ISOLATE,
    )
    if node.bad is truth:
        node.finding = finding
        tell(world, node, rank)


def tell(world: World, node: Node, rank: int) -> None:
    """Have the head know what a node's sensors find, where one is left that does not. rank: who trains on the part."""
    finding = node.finding
    if finding is None or not node.is_heard or node.told_session == world.session:
        return
    node.told_session = world.session
    devices: dict[int, ev.Device | None] = {}
    if finding.subject.startswith("gpu:"):
        devices[rank] = ev.Device(subject=finding.subject, index=0)
    world.feed(ev.NodeFindingsReported(node=node.name, findings=[finding], devices=devices))


# The script's own, and nobody's --------------------------------------------------------------------------


def _of_the_script(world: World, failure: Failure) -> None:
    """It befalls whoever trains at that place."""
    attempt, truth = world.attempt, failure.truth
    if attempt is None or attempt.failed_s is not None or not attempt.nodes:
        return
    node = attempt.nodes[failure.node % len(attempt.nodes)]
    rank = attempt.rank_on(node, failure.luck)
    if truth is Truth.DISK_FULL:
        if world.now_s >= world.space_s:
            world.space_s = world.now_s + world.parameters.human_s
    elif truth in HANGS:
        attempt.hang, attempt.culprit = truth, rank if truth is not Truth.ALL_WAIT else -1
        attempt.place = failure.place
        attempt.fail(world.now_s)
    elif truth is Truth.PAUSE:
        if world.now_s >= attempt.training.first_s and not attempt.is_standing:
            attempt.place = failure.place
            [how] = world.random.choices(list(PAUSES), list(PAUSES.values()))
            hiccups.pause(world, attempt, rank, how=how, lasts_s=failure.lasts_s)
    elif truth in (Truth.KILLED, Truth.OOM):
        attempt.oom_kills = int(truth is Truth.OOM)
        crash(world, attempt, rank, None, exitcode=-9)
    elif truth is Truth.LINK_FLAP:
        other = attempt.rank_on(attempt.nodes[(failure.node + 7919) % len(attempt.nodes)], failure.luck)
        crash(world, attempt, rank, ERRORS[truth], exitcode=1, also=other)
    else:
        crash(world, attempt, rank, ERRORS[truth], exitcode=1)


def no_room(world: World, attempt: Attempt) -> None:
    """Rank 0 cannot write its checkpoint."""
    crash(world, attempt, attempt.ranks[0].global_rank, ERRORS[Truth.DISK_FULL], exitcode=1)


def crash(
    world: World,
    attempt: Attempt,
    rank: int,
    error: ev.ErrorRecord | None,
    *,
    exitcode: int,
    also: int = -1,
    delay_s: float = 0.0,
) -> None:
    """A rank falls, and some of its peers say that they lost it. also: another that says the same of itself."""
    if attempt.failed_s is not None:
        return
    attempt.fail(world.now_s)

    def fall() -> None:
        for fallen in (rank, also):
            if fallen >= 0:
                _falls(world, attempt, fallen, error, exitcode)
        world.after(world.random.uniform(0.05, 0.3), lambda: _raise_on(world, attempt, rank))

    world.after(delay_s, fall)


def _peers_raise(world: World, attempt: Attempt, lost: Node) -> None:
    _raise_on(world, attempt, attempt.places[lost.name] * attempt.size)


def _raise_on(world: World, attempt: Attempt, lost: int) -> None:
    """Ranks of other nodes that are heard lose a peer."""
    heard = [node for node in world.random.sample(attempt.nodes, min(2 * PEERS, len(attempt.nodes))) if node.is_heard]
    for node in [n for n in heard if attempt.places[n.name] != lost // attempt.size][:PEERS]:
        _falls(world, attempt, attempt.rank_on(node, world.random.random()), PEER_LOST, 1)


def _falls(world: World, attempt: Attempt, rank: int, error: ev.ErrorRecord | None, exitcode: int) -> None:
    if world.attempt is not attempt or rank in attempt.codes or (attempt.stop_s is not None and error is PEER_LOST):
        return
    attempt.codes[rank] = exitcode
    if error is not None:
        attempt.errors[rank] = msgspec.structs.replace(error, at_s=world.now_s)
        world.feed(ev.UncaughtExceptionReported(attempt=attempt.number, global_rank=rank, error=attempt.errors[rank]))
    world.feed(
        ev.RankExited(attempt=attempt.number, global_rank=rank, pid=1000 + rank, exitcode=exitcode, at_s=world.now_s)
    )
