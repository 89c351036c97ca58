"""One job's events out of its nodes': pure, without a socket or a clock.

The engine knows attempts, looks and exits; each node tells its part. What is one rank's goes on at once, but not
before the attempt has started: the engine hears of ranks, then of what they do. A node that does not answer is not
waited for beyond what its order may take; for its ranks' end, beyond its lease.

One class, as each event is passed on, held or dropped by the same state: who has said what of the attempt.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from guardrun.supervisor.collect.ranks.look import limit_s
from guardrun.supervisor.engine.membership.node_silence import silence_limit_s
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Reading
from guardrun.supervisor.fleet.protocol.lease import ProgressTimeout, ranks_gone_s
from guardrun.supervisor.fleet.protocol.messages import Down
from guardrun.supervisor.wire.control_messages import Place, Stop, start_of

SILENT_S = 5.0
"""Nothing heard of a node for so long: it pulses once a second."""
EXITS_S = 4.0
"""What read_exits may take, a dead mount included, and the way there and back."""
WAY_S = 3.0
"""Beyond a look's own limit."""
SETTLE_S = 2.0
"""The engine gives a node up first; then it is told that an attempt has started without it."""
START_LIMIT_S = 180.0
"""A node that is heard, and has neither started its ranks nor said why not, is waited for so long after the last that
did: more than its follower waits for its launcher (supervisor/node/launcher_takeover.py)."""
STOP_LIMIT_S = 60.0
"""Likewise one that has not said that its ranks have ended, beyond GRACES times the grace."""
GRACES = 2
_OF_RANKS = (
    ev.RankExited,
    ev.UncaughtExceptionReported,
    ev.RankEnded,
    ev.NodeReport,
    ev.GcHeld,
    ev.BatchesNamed,
    ev.ModulesDied,
    ev.GradientsGrew,
    ev.BatchesLeftOut,
    ev.DataReplayed,
    ev.CheckpointSaved,
    ev.CheckpointLoaded,
    ev.CheckpointOpened,
    ev.HooksMissing,
)
_KILLED = (-9, 137)


@dataclass
class _Asked:
    """A question to several nodes."""

    nodes: list[str]
    by_s: float
    parts: dict[str, ev.LookTaken | ev.ExitsRead] = field(default_factory=dict)
    first: int = 0
    """Whoever is before this has answered: of thousands of answers none must be looked for among all nodes."""

    def __post_init__(self) -> None:
        self.known = frozenset(self.nodes)


@dataclass
class _Attempt:
    """The current attempt, as its nodes tell it."""

    order: ac.StartAttempt
    firsts: list[int]
    by_role: dict[str, tuple[int, int]]
    """Per node: its first rank among those of its role, and how many these are."""
    ordered: set[str] = field(default_factory=set)
    """Nodes that have been told to start: what each of them has is not known before it says so."""
    started: dict[str, ev.AttemptStarted] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    is_told: bool = False
    """The engine has had AttemptStarted."""
    held: list[ev.Event] = field(default_factory=list)
    store: tuple[str, int] | None = None
    start_moved_s: float | None = None
    """When the last node answered the order to start, or from when on they could; None: not seen by a tick yet."""
    overdue: dict[str, str] = field(default_factory=dict)
    """Nodes whose answer to the order to start is not waited for any more; they may have ranks."""
    grace_s: float | None = None
    """Not None: it is being stopped."""
    stop_s: float | None = None
    """Since when, likewise."""
    stopped: dict[str, ev.AttemptStopped] = field(default_factory=dict)
    last_stopped_s: float = -math.inf
    """When the last node said that its ranks have ended."""
    since_s: float = 0.0
    """Since when its nodes have been listened to."""
    exited: set[int] = field(default_factory=set)
    """Ranks whose end the engine has been told."""
    is_over: bool = False
    still: defaultdict[str, ProgressTimeout] = field(default_factory=lambda: defaultdict(ProgressTimeout))
    """Per node: how long it allows itself to stand still without contact."""
    killed: set[str] = field(default_factory=set)
    """Nodes of which a rank was killed by SIGKILL."""
    first_unstarted: int = 0
    """Nodes before this have answered the order to start; likewise."""
    first_unstopped: int = 0

    def __post_init__(self) -> None:
        self.places = {node: place for place, node in enumerate(self.order.nodes)}


class EventAggregator:
    """Feed it what nodes tell, and the engine's orders; it answers with events, and fills `orders`."""

    def __init__(self, term_s: float, run_id: str = "", lost_s: float = 25.0) -> None:
        """term_s, lost_s: as in [fleet]."""
        self._term_s = term_s
        self._lost_s = lost_s
        self._run_id = run_id
        self.orders: list[tuple[str, Down]] = []
        """Node, order: for the caller to send and clear."""
        self._heard_s: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        """Nodes that are silent → when their connection was closed; 0.0: it was not."""
        self._attempt: _Attempt | None = None
        self._look: tuple[ac.TakeLook, _Asked] | None = None
        self._exits: tuple[ac.ReadExits, _Asked] | None = None

    # Orders of the engine ------------------------------------------------------------------------------------

    def start(self, order: ac.StartAttempt, sizes: Mapping[str, int], roles: Mapping[str, str] | None = None) -> None:
        """Have an attempt started. sizes, roles: ranks and --role of each node."""
        known = self._attempt
        if known is None or known.order.attempt != order.attempt or known.order.nodes != order.nodes:
            firsts = [0]
            for node in order.nodes:
                firsts.append(firsts[-1] + sizes[node])
            self._attempt = known = _Attempt(order, firsts, _by_role(order.nodes, sizes, roles or {}))
        self._order_start(known, order.nodes[:1])
        if known.store is not None:
            self._order_start(known, order.nodes[1:])

    def resume(
        self, attempt: int, ranks: Iterable[ev.Rank], now_s: float, roles: Mapping[str, str] | None = None
    ) -> None:
        """A head that was started anew: this attempt has been told already; what its nodes last said is not known."""
        by_node: dict[str, list[ev.Rank]] = {}
        for rank in ranks:
            by_node.setdefault(rank.node, []).append(rank)
        firsts = [min(rank.global_rank for rank in group) for group in by_node.values()]
        total = sum(map(len, by_node.values()))
        order = ac.StartAttempt(attempt=attempt, nodes=list(by_node))
        by_role = _by_role(order.nodes, {node: len(group) for node, group in by_node.items()}, roles or {})
        self._attempt = _Attempt(order, [*firsts, total], by_role, is_told=True, since_s=now_s, last_stopped_s=now_s)
        for node, group in by_node.items():
            self._attempt.still[node] = ProgressTimeout(is_partial=True)
            self._attempt.started[node] = ev.AttemptStarted(attempt=attempt, ranks=group)

    def stop(self, order: ac.StopAttempt) -> None:
        """Have an attempt stopped on all nodes."""
        current = self._attempt
        if current is None or current.order.attempt != order.attempt:
            return
        current.grace_s = order.grace_s
        stop = Stop(attempt=order.attempt, grace_s=order.grace_s, is_last=order.is_last)
        self.orders += [(node, stop) for node in current.places]

    def look(self, order: ac.TakeLook, now_s: float) -> None:
        """Have a look taken on all nodes."""
        nodes = self._nodes(order.attempt)
        ranks = max((len(part.ranks) for part in self._parts()), default=8)
        self._look = (order, _Asked(nodes, now_s + limit_s(ranks) + WAY_S))
        self.orders += [(node, order) for node in nodes]

    def read_exits(self, order: ac.ReadExits, now_s: float) -> None:
        """Have exits read on all nodes of the attempt; what is missing after EXITS_S is left out."""
        nodes = self._nodes(order.attempt)
        self._exits = (order, _Asked(nodes, now_s + EXITS_S))
        self.orders += [(node, order) for node in nodes]

    def _nodes(self, attempt: int) -> list[str]:
        return list(self._attempt.order.nodes) if self._attempt and self._attempt.order.attempt == attempt else []

    def _parts(self) -> list[ev.AttemptStarted]:
        return list(self._attempt.started.values()) if self._attempt else []

    def _order_start(self, current: _Attempt, nodes: list[str]) -> None:
        order = current.order
        for node in nodes:
            current.ordered.add(node)
            group_rank = current.places[node]
            address, port = current.store if current.store and group_rank else ("", 0)
            role_rank, role_size = current.by_role[node]
            place = Place(
                group_rank=group_rank,
                nodes=len(order.nodes),
                first_rank=current.firsts[group_rank],
                world_size=current.firsts[-1],
                role_rank=role_rank,
                role_size=role_size,
                address=address,
                port=port,
                run_id=self._run_id,
            )
            self.orders.append((node, start_of(order, place)))

    # What nodes tell -----------------------------------------------------------------------------------------

    def serving(self, attempt: int, address: str, port: int) -> None:
        """The store is there: everybody else may start."""
        current = self._attempt
        if current is None or current.order.attempt != attempt:
            return
        current.store = (address, port)
        current.start_moved_s = None
        self._order_start(current, current.order.nodes[1:])

    def joined(self, node: str, attempt: int, now_s: float, is_new: bool = True) -> None:
        """A node is there (again). attempt: whose ranks it has; -1: none. is_new: a follower with no memory of ours.

        What its last follower was told by the launcher, and did not pass on, the launcher is asked to repeat.
        """
        self._heard_s[node] = now_s
        self._silent.pop(node, None)
        current = self._attempt
        is_meant = current is not None and node in current.places and not current.is_over
        if current is None or not is_meant:
            if attempt >= 0:  # of an attempt that has gone on without it
                self.orders.append((node, Stop(attempt=attempt, grace_s=0.0)))
        elif current.grace_s is not None:
            if node not in current.stopped:
                self.orders.append((node, Stop(attempt=current.order.attempt, grace_s=current.grace_s)))
        elif is_new and node in current.started and attempt != current.order.attempt:
            # Nothing of it is alive there; a launcher that has seen its end tells it, a new one that there is nothing.
            self.orders.append((node, Stop(attempt=current.order.attempt, grace_s=0.0)))
        elif is_new and node in {*current.ordered, *current.started}:
            self._order_start(current, [node])

    def on_contact(self, node: str, at_s: float) -> list[ev.Event]:
        """A node has given a sign of life, the newest at at_s; nothing follows where that is known."""
        known_s = self._heard_s.get(node, -math.inf)
        if at_s <= known_s and node in self._silent:
            return []
        self._heard_s[node] = max(at_s, known_s)
        if self._silent.pop(node, None) is None:
            return []
        return [ev.NodeContactRestored(node=node)]

    def dropped(self, node: str, now_s: float, heard_s: float = -math.inf) -> list[ev.Event]:
        """A node's end of the connection was closed: a sign of life of its kernel's. heard_s: its last word."""
        if self._silent.get(node) or node not in self._heard_s:
            return []  # known already; or it has said that it ends
        self._heard_s[node] = max(heard_s, self._heard_s[node])
        self._silent[node] = now_s
        return [ev.NodeSuspected(node=node, since_s=self._heard_s.get(node, now_s), is_dropped=True)]

    def on_node_event(self, node: str, event: ev.Event, now_s: float) -> list[ev.Event]:
        """An event of a node's → those for the engine."""
        current = self._attempt
        number = current.order.attempt if current else -1
        if isinstance(event, ev.AttemptStarted | ev.AttemptNotStarted | ev.AttemptStopped):
            if current is None or event.attempt != number or node not in current.places:
                return []
            if not isinstance(event, ev.AttemptStopped):
                current.start_moved_s = now_s
            if isinstance(event, ev.AttemptStarted):
                current.started[node] = event
            elif isinstance(event, ev.AttemptNotStarted):
                current.refused[node] = event.error
            else:
                current.stopped[node] = event
                current.last_stopped_s = now_s
                return self._ends_untold(current, node, event, now_s) + self._progress(now_s)
            return self._progress(now_s)
        if isinstance(event, ev.LookTaken):
            return self._answered(self._look, node, event, event.look, now_s)
        if isinstance(event, ev.ExitsRead):
            return self._answered(self._exits, node, event, event.attempt, now_s)
        if isinstance(event, _OF_RANKS):
            if current is None or event.attempt != number:
                return []
            if isinstance(event, ev.NodeReport):
                current.still[node].note(event.ranks)
            if isinstance(event, ev.RankExited):
                current.exited.add(event.global_rank)
                if event.exitcode in _KILLED:
                    current.killed.add(node)
            if not current.is_told:
                current.held.append(event)
                return []
        return [event]

    def _ends_untold(self, current: _Attempt, node: str, stopped: ev.AttemptStopped, now_s: float) -> list[ev.Event]:
        """Ranks that are gone, and whose end was lost with who was to tell it: killed, where nobody has seen it."""
        started = current.started.get(node)
        told: list[ev.Event] = []
        for rank in started.ranks if started is not None else ():
            number = rank.global_rank
            if number not in current.exited:
                code = stopped.exitcodes.get(number, -9)
                exited = ev.RankExited(
                    attempt=stopped.attempt, global_rank=number, pid=rank.pid, exitcode=code, at_s=now_s
                )
                told += self.on_node_event(node, exited, now_s)
        return told

    def tick(self, now_s: float) -> list[ev.Event]:
        """Once a second, or when due: who is silent, what is waited for no longer."""
        out: list[ev.Event] = []
        for node, at_s in self._heard_s.items():
            if now_s - at_s >= SILENT_S and node not in self._silent:
                self._silent[node] = 0.0
                out.append(ev.NodeSuspected(node=node, since_s=at_s))
        return out + self._progress(now_s) + self._overdue(now_s)

    def skipped(self, now_s: float, gap_s: float) -> None:
        """The head itself did not run for gap_s: nobody was silent meanwhile, nor late with an answer."""
        self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._silent = {node: now_s if closed_s else 0.0 for node, closed_s in self._silent.items()}
        for asked in (self._look, self._exits):
            if asked is not None:
                asked[1].by_s += gap_s
        current = self._attempt
        if current is not None:
            current.last_stopped_s = min(current.last_stopped_s + gap_s, now_s)
            if current.start_moved_s is not None:
                current.start_moved_s = min(current.start_moved_s + gap_s, now_s)
            if current.stop_s is not None:
                current.stop_s = min(current.stop_s + gap_s, now_s)

    def forget(self, node: str) -> None:
        """It has said that it ends, and that its ranks have."""
        current = self._attempt
        if current is not None and node in current.places:
            gone = ev.AttemptStopped(attempt=current.order.attempt, exitcodes={}, stopped_by_us=[])
            current.stopped.setdefault(node, gone)
        self._heard_s.pop(node, None)
        self._silent.pop(node, None)

    # Putting together ----------------------------------------------------------------------------------------

    def _progress(self, now_s: float) -> list[ev.Event]:
        current = self._attempt
        if current is None or current.is_over:
            return []
        out = [] if current.is_told else self._try_told(current, now_s)
        if current.is_told or current.grace_s is not None:
            out += self._try_over(current, now_s)
        return out

    def _try_told(self, current: _Attempt, now_s: float) -> list[ev.Event]:
        nodes = current.order.nodes
        if current.start_moved_s is None:
            current.start_moved_s = now_s
        current.first_unstarted = _first_not_in(nodes, current.first_unstarted, current.started, current.refused)
        is_late = now_s >= current.start_moved_s + START_LIMIT_S
        first = nodes[current.first_unstarted] if current.first_unstarted < len(nodes) else ""
        # Without the node that was to serve the store nobody else can start.
        is_in_vain = current.store is None and nodes[0] in current.refused
        if first and not is_late and not is_in_vain and not self._is_given_up(first, now_s):
            return []
        missing = [node for node in nodes if node not in current.started and node not in current.refused]
        awaited = [node for node in missing if not self._is_given_up(node, now_s)]
        if is_late:
            said = f"no answer to the order to start for {now_s - current.start_moved_s:.0f} s"
            current.overdue |= {node: said for node in awaited if node in current.ordered}
            awaited = [node for node in awaited if node not in current.ordered]
        is_in_vain = is_in_vain or (nodes[0] in missing and nodes[0] not in awaited and current.store is None)
        if awaited and not is_in_vain:
            return []
        if not current.started and current.refused:
            error = "; ".join(f"{node}: {why}" for node, why in current.refused.items())
            current.is_over = True
            return [ev.AttemptNotStarted(attempt=current.order.attempt, error=error)]
        current.is_told = True
        ranks = [rank for node in nodes if node in current.started for rank in current.started[node].ranks]
        started = ev.AttemptStarted(
            attempt=current.order.attempt,
            ranks=ranks,
            resumed_from=current.order.checkpoint,
            memory=[wait for node in nodes if node in current.started for wait in current.started[node].memory],
        )
        held, current.held = current.held, []
        left: list[ev.Event] = [
            ev.NodeLeft(node=node, why=f"it could not start its ranks: {why}", is_unfit=True)
            for node, why in (current.refused | current.overdue).items()
        ]
        return [started, *left, *held]

    def _is_given_up(self, node: str, now_s: float) -> bool:
        """Whether the engine has given a node up by now: what it starts later is no part of the attempt."""
        if node not in self._silent:
            return node not in self._heard_s
        if closed_s := self._silent[node]:
            return now_s >= closed_s + silence_limit_s(self._lost_s, is_dropped=True) + SETTLE_S
        heard_s = self._heard_s.get(node, now_s)
        return now_s >= heard_s + silence_limit_s(self._lost_s, is_dropped=False) + SETTLE_S

    def _try_over(self, current: _Attempt, now_s: float) -> list[ev.Event]:
        """Nothing of the attempt is alive on any node, as far as that can be known."""
        nodes = current.order.nodes
        if current.grace_s is not None and current.stop_s is None:
            current.stop_s = now_s
        current.first_unstopped = _first_not_in(nodes, current.first_unstopped, current.stopped, current.refused)
        node = nodes[current.first_unstopped] if current.first_unstopped < len(nodes) else ""
        is_begun = node in current.ordered or node in current.started
        is_late = self._is_stop_late(current, now_s)
        if is_begun and not is_late and self._is_heard(node):
            return []
        begun = [node for node in current.order.nodes if node in current.ordered or node in current.started]
        waiting = [node for node in begun if node not in current.stopped and node not in current.refused]
        if current.grace_s is None and waiting:
            return []
        if is_late and (deaf := [node for node in waiting if self._is_heard(node)]):
            return self._drop_unresponsive_nodes(current, deaf, now_s)
        if not all(self._is_gone(node, current, now_s) for node in waiting):
            return []
        current.is_over = True
        parts = current.stopped.values()
        return [
            ev.AttemptStopped(
                attempt=current.order.attempt,
                exitcodes={rank: code for part in parts for rank, code in part.exitcodes.items()},
                stopped_by_us=sorted(rank for part in parts for rank in part.stopped_by_us),
                survivors=[pid for part in parts for pid in part.survivors],
                took_s=max((part.took_s for part in parts), default=0.0),
            )
        ]

    def _is_gone(self, node: str, current: _Attempt, now_s: float) -> bool:
        """Whether a node that cannot be asked has ended its ranks by now."""
        if self._is_heard(node):
            return False
        heard_s = self._heard_s.get(node, current.since_s)
        still_s = current.still[node].limit_s
        return now_s >= ranks_gone_s(heard_s, current.last_stopped_s, term_s=self._term_s, still_s=still_s)

    def _is_heard(self, node: str) -> bool:
        return node in self._heard_s and node not in self._silent

    def _is_stop_late(self, current: _Attempt, now_s: float) -> bool:
        """Whoever is heard, and has not said by now that its ranks have ended, will not."""
        if current.grace_s is None or current.stop_s is None:
            return False
        return now_s >= max(current.stop_s, current.last_stopped_s) + GRACES * current.grace_s + STOP_LIMIT_S

    def _drop_unresponsive_nodes(self, current: _Attempt, nodes: list[str], now_s: float) -> list[ev.Event]:
        """Go on without nodes that do not say that their ranks have ended."""
        assert current.stop_s is not None
        why = f"it is there, but has not said for {now_s - current.stop_s:.0f} s that its ranks have ended"
        number = current.order.attempt
        for node in nodes:
            current.stopped[node] = ev.AttemptStopped(attempt=number, exitcodes={}, stopped_by_us=[])
            self.orders.append((node, Stop(attempt=number, grace_s=0.0)))
        left: list[ev.Event] = [ev.NodeLeft(node=node, why=why, is_unfit=True) for node in nodes]
        return left + self._try_over(current, now_s)

    def _answered(
        self,
        asked: tuple[ac.TakeLook | ac.ReadExits, _Asked] | None,
        node: str,
        event: ev.LookTaken | ev.ExitsRead,
        number: int,
        now_s: float,
    ) -> list[ev.Event]:
        if asked is None:
            return []
        order, question = asked
        if node not in question.known or number != (order.look if isinstance(order, ac.TakeLook) else order.attempt):
            return []
        question.parts[node] = event
        return self._overdue(now_s)

    def _overdue(self, now_s: float) -> list[ev.Event]:
        """Questions that all have answered who still can, or whose time is up."""
        out: list[ev.Event] = []
        if self._look is not None and self._is_done(self._look[1], now_s):
            (order, question), self._look = self._look, None
            out.append(self._join_looks(order, question))
        if self._exits is not None and self._is_done(self._exits[1], now_s):
            (asked, question), self._exits = self._exits, None
            out.append(self._join_exits(asked, question))
        return out

    def _is_done(self, question: _Asked, now_s: float) -> bool:
        if now_s >= question.by_s:
            return True
        question.first = _first_not_in(question.nodes, question.first, question.parts)
        if question.first < len(question.nodes) and question.nodes[question.first] not in self._silent:
            return False
        missing = [node for node in question.nodes if node not in question.parts and node not in self._silent]
        return not missing

    def _join_looks(self, order: ac.TakeLook, question: _Asked) -> ev.LookTaken:
        parts = {node: part for node, part in question.parts.items() if isinstance(part, ev.LookTaken)}
        missing = {rank: why for part in parts.values() for rank, why in part.missing.items()}
        for node in question.nodes:
            if node not in parts and self._attempt and node in self._attempt.started:
                why = f"{node} did not answer"
                missing |= {rank.global_rank: why for rank in self._attempt.started[node].ranks}
        return ev.LookTaken(
            look=order.look,
            attempt=order.attempt,
            ranks=[look for part in parts.values() for look in part.ranks],
            missing=missing,
            took_s=max((part.took_s for part in parts.values()), default=0.0),
            folder=next((part.folder for part in parts.values() if part.folder), ""),
            readings=[reading for node, part in parts.items() for reading in _of_node(node, part)],
        )

    def _join_exits(self, order: ac.ReadExits, question: _Asked) -> ev.ExitsRead:
        parts = {node: part for node, part in question.parts.items() if isinstance(part, ev.ExitsRead)}
        killed = self._attempt.killed if self._attempt else set()
        # Memory that ran out elsewhere has killed nobody here; and pids of several nodes mean nothing side by side.
        counts = [part.oom_kills for node, part in parts.items() if node in killed and part.oom_kills >= 0]
        free: dict[str, int] = {}
        for part in parts.values():
            for folder, size in part.disk_free_bytes.items():
                free[folder] = min(size, free.get(folder, size))
        return ev.ExitsRead(
            attempt=order.attempt,
            traces=[trace for part in parts.values() for trace in part.traces],
            oom_kills=sum(counts) if counts else -1,
            oom_pids=[pid for node, part in parts.items() if node in killed for pid in part.oom_pids],
            disk_free_bytes=free,
            readings=[reading for node, part in parts.items() for reading in _of_node(node, part)],
            last_words={node: words for part in parts.values() for node, words in part.last_words.items()},
        )


def _first_not_in(nodes: list[str], first: int, *answers: Container[str]) -> int:
    """The place of the first node, from `first` on, that is in none of these."""
    while first < len(nodes) and any(nodes[first] in known for known in answers):
        first += 1
    return first


def _of_node(node: str, part: ev.LookTaken | ev.ExitsRead) -> list[Reading]:
    """What is odd on a node, with its name; that all is well on a thousand of them is not worth telling."""
    return [msgspec.structs.replace(r, note=f"{node}: {r.note}".rstrip(": ")) for r in part.readings if r.is_odd]


def _by_role(nodes: list[str], sizes: Mapping[str, int], roles: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """As torchrun counts ROLE_RANK and ROLE_WORLD_SIZE: per node, its first of the former, and the latter."""
    counts: Counter[str] = Counter()
    firsts = {}
    for node in nodes:
        firsts[node] = counts[roles.get(node, "")]
        counts[roles.get(node, "")] += sizes[node]
    return {node: (firsts[node], counts[roles.get(node, "")]) for node in nodes}
