"""A save before the ranks are ended, by ranks of any node that is alive (docs/just-in-time.md).

    ReportSteps   ▶ every node of the attempt that can be reached: how many steps have its ranks finished?
    StepsReported ◀ and which part each holds, where that is sharded; where a trainer keeps them, random states
    SaveHere      ▶ the node of the first rank that is well, of each part; with the random states of other nodes' ranks
    SavedHere     ◀ what the rank has told; one that was not called is followed by the next, of whichever node
    SeekFile      ▶ every other node that is there, spares too: can what was written be seen there?
    FileSought    ◀ where all can, the head's chooser judges it

Only the head sends these orders, and a node takes them by its link alone: so they come from its own run's head. An
answer counts from the node that was asked, to what was asked last.

A node that cannot be reached is taken for dead, and not waited for; one that can, and does not answer, may have ranks
that are further, or save by themselves: nobody saves, then. A node that is lost while its rank saves may have written
anything: nobody else is asked. Whatever is late costs no more than the time that it has (`until_s`).
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from guardrun.hooks.wire.examinations import newest_ns
from guardrun.hooks.wire.random_page import MAGIC, SIZE_BYTES, random_name, read_page
from guardrun.supervisor.base.own_files import SECRET, write_own
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.saving.in_time_save import Answered, InTimeNode, NodeSaves, Steps, Wanted

STEPS_S = 3.0
"""For all to say the same number: a rank may be at the end of its step while others wait for it in the next."""
SEEK_S = 4.0
"""For all to find what was written; …"""
SEEK_AGAIN_S = 2.0
"""… and for one of them: a network file system may look at a folder anew only after a while."""
GONE_S = 5.0
"""A node that was asked to save, and whose connection is not back within this, is not waited for."""
GRAIN_NS = 2_000_000_000
"""By which times of one file may differ between two nodes of a network file system, or two looks at it."""
MAX_PAGES = 128
"""Of random states, in all: 20 kB each, and a message may have 4 MB."""
POLL_S = 0.1

Word = TypeVar("Word")

Order = msg.ReportSteps | msg.SaveHere | msg.SeekFile
Answer = msg.StepsReported | msg.SavedHere | msg.FileSought


class NodePart:
    """A node's part; the head's own, too. Runs on the loop's thread."""

    def __init__(self, node: InTimeNode) -> None:
        self._node, self._saves = node, NodeSaves(node)
        self._request = 0
        """The last one for which ranks of this node were asked; …"""
        self._answers: dict[int, msg.SavedHere | None] = {}
        """… and what each has answered; None: nothing yet."""

    def obey(self, order: Order, send: Callable[[Answer], object], *, is_running: bool) -> None:
        """Do it, and send the answer, which may take a while. is_running: ranks live here, and are not being ended."""
        if isinstance(order, msg.ReportSteps):
            send(self._report(order))
        elif isinstance(order, msg.SeekFile):
            self._seek(order, send)
        else:
            self._save(order, send, is_running=is_running)

    def _report(self, order: msg.ReportSteps) -> msg.StepsReported:
        found = self._saves.steps(order.attempt, order.ranks)
        pages = {} if found.why else self._pages(order.attempt)
        parts = self._saves.parts() if self._node.ingest.attempt == order.attempt else {}
        return msg.StepsReported(
            request=order.request,
            low=found.low,
            high=found.high,
            why=found.why,
            is_saving=found.is_saving,
            parts={number: part for number, part in parts.items() if part.count},
            pages=pages,
        )

    def _pages(self, attempt: int) -> dict[int, bytes]:
        if self._node.ingest.attempt != attempt:
            return {}
        ranks = sorted(self._node.ingest.ranks)[:MAX_PAGES]
        pages = {number: read_page(str(self._node.sockets / random_name(attempt, number))) for number in ranks}
        return {number: zlib.compress(page, 1) for number, page in pages.items() if page}

    def _save(self, order: msg.SaveHere, send: Callable[[Answer], object], *, is_running: bool) -> None:
        node, number = self._node, order.global_rank
        if order.request == self._request and number in self._answers:
            if (answer := self._answers[number]) is not None:
                send(answer)
            return  # one never saves twice
        if why := self._why_not(order, is_running=is_running):
            send(msg.SavedHere(request=order.request, global_rank=number, told={"why": why}))
            return
        if order.request != self._request:
            self._request, self._answers = order.request, {}
        self._answers[number] = None
        attempt, here = order.attempt, frozenset(node.ingest.ranks)

        def done(told: dict[str, Any] | None, missing: str) -> None:
            with suppress(RuntimeError):  # closing
                node.pool.submit(self._forget_pages, attempt, order.pages, here)
            answer = msg.SavedHere(request=order.request, global_rank=number, told=told, missing=missing)
            if order.request == self._request:
                self._answers[number] = answer
            send(answer)

        def ask() -> None:
            if (left_s := self._left_s(order)) > 0:
                self._saves.ask(number, Wanted(order.step, order.part, order.is_halting, order.token), left_s, done)
            else:
                done({"why": "it was asked too late"}, "")

        if not order.pages:
            ask()
            return

        def work() -> None:
            self._keep_pages(attempt, order.pages, here)
            node.post(ask)

        node.in_background(work, lambda error: None)

    def _why_not(self, order: msg.SaveHere, *, is_running: bool) -> str:
        node, settings = self._node, self._node.run_file.settings
        if not settings.act or settings.jit_s <= 0:
            return "its node is not to have ranks save"
        if not is_running or order.attempt != node.ingest.attempt:
            return "its node does not train that attempt"
        if order.global_rank not in node.ingest.ranks:
            return "its node has no such rank"
        return "" if self._left_s(order) > 0 else "it was asked too late"

    def _left_s(self, order: msg.SaveHere) -> float:
        return min(order.by_s - self._node.clock.now(), self._node.run_file.settings.jit_s)

    def _keep_pages(self, attempt: int, pages: Mapping[int, bytes], here: frozenset[int]) -> None:
        """Have them lie where the rank that saves looks for them."""
        for number, packed in list(pages.items())[:MAX_PAGES]:
            page = _unpacked(packed)
            if page and number not in here:
                with suppress(OSError):  # the rank says that it doesn't know them
                    write_own(self._node.sockets / random_name(attempt, number), page, SECRET)

    def _forget_pages(self, attempt: int, pages: Iterable[int], here: frozenset[int]) -> None:
        for number in list(pages)[:MAX_PAGES]:
            if number not in here:
                with suppress(OSError):
                    (self._node.sockets / random_name(attempt, number)).unlink()

    def _seek(self, order: msg.SeekFile, send: Callable[[Answer], object]) -> None:
        node = self._node

        def work() -> None:
            answered(why_unseen(order.path, order.written_ns))

        def answered(why: str) -> None:
            answer = msg.FileSought(request=order.request, global_rank=order.global_rank, why=why)
            node.post(lambda: send(answer))

        node.in_background(work, answered)


def _unpacked(packed: bytes) -> bytes:
    """A random page; empty where it is none."""
    try:
        page = zlib.decompressobj().decompress(packed, SIZE_BYTES + 1)
    except zlib.error:
        return b""
    is_page = len(page) == SIZE_BYTES and page[:8] == MAGIC.to_bytes(8, "little")
    return page if is_page else b""


def why_unseen(path: str, written_ns: int, patience_s: float = SEEK_AGAIN_S) -> str:
    """Why what was written then can't be seen here; empty: it can. Blocks."""
    until_s = time.monotonic() + patience_s
    while True:
        why = _why_unseen(path, written_ns)
        if not why or time.monotonic() >= until_s:
            return why
        time.sleep(POLL_S)


def _why_unseen(path: str, written_ns: int) -> str:
    try:
        with os.scandir(os.path.dirname(path)):
            pass  # opened: a network file system has to look whether there is something new in it
        found_ns = newest_ns(path)
    except (OSError, ValueError):
        return "it is not there"
    return "" if abs(found_ns - written_ns) <= GRAIN_NS else "what lies there is of another time"


@dataclass(eq=False)
class _Question:
    """What several nodes are asked at once."""

    kind: type
    number: int
    """Whose file is sought; -1: no file is."""
    awaited: set[str]
    by_s: float
    """time.monotonic()."""
    end: Callable[[dict[str, Any], list[str]], object]
    """Called with the answers by node, and with the nodes that have given none."""
    answers: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Asked:
    """A rank that is to save, by its node."""

    node: str
    by_s: float
    """The run's seconds."""
    done: Answered
    gone_s: float | None = None
    """Since when its connection is closed (time.monotonic()); None: it stands."""


class ManyNodes:
    """The head's part, of one save: how it reaches ranks (Reach of in_time_save.py). Runs on the loop's thread."""

    def __init__(
        self,
        node: InTimeNode,
        send: Callable[[str, Order], object],
        connected: Callable[[], Sequence[str]],
        homes: Mapping[int, str],
        left_out: Collection[str] = (),
    ) -> None:
        """connected: the other nodes that can be reached now, spares too. homes: the node of each of the job's ranks.

        left_out: nodes on which nothing is to resume.
        """
        self._node, self._send, self._connected, self._homes = node, send, connected, homes
        self._left_out = left_out
        self._me = node.run_file.node
        self._own = NodePart(node)
        self._request = 0
        self._questions: list[_Question] = []
        self._again: Callable[[], object] | None = None
        self._asked: dict[int, _Asked] = {}
        """By rank."""
        self._pages: dict[int, bytes] = {}

    # Reach -------------------------------------------------------------------------------------------------------

    def steps(self, action: ac.SaveInTime, done: Callable[[Steps], object]) -> None:
        """As Reach has it: asked again until all say the same, or STEPS_S are over."""
        self._request = action.request
        self._ask_steps(action, self._by(action, STEPS_S), done)

    def _ask_steps(self, action: ac.SaveInTime, by_s: float, done: Callable[[Steps], object]) -> None:
        there = {self._me, *self._connected()}
        ranks: dict[str, list[int]] = {node: [] for node in self._homes.values() if node in there}
        for number in action.alive:
            if (home := self._homes.get(number, "")) in there:
                ranks[home].append(number)

        def end(answers: dict[str, Any], missing: list[str]) -> None:
            silent = [node for node in missing if ranks[node]]
            compared = [answers[node] for node, numbers in ranks.items() if node in answers and numbers]
            why = f"{silent[0]} did not say how many steps its ranks have finished" if silent else ""
            why = next((one.why for one in compared if one.why), why)
            low, high = min((one.low for one in compared), default=0), max((one.high for one in compared), default=0)
            gone = {number for number, home in self._homes.items() if home not in answers}
            held = self._own_words(answers, lambda answer: answer.parts)
            steps = Steps(low, high, why, held, gone, any(one.is_saving for one in compared))
            if not why and steps.low != steps.high and not action.is_running and time.monotonic() < by_s:
                self._again = lambda: self._ask_steps(action, by_s, done)
                return
            if not action.is_running:
                pages = self._own_words(answers, lambda answer: answer.pages)
                self._pages = pages if len(pages) <= MAX_PAGES else {}
            done(steps)

        orders = {
            node: msg.ReportSteps(request=action.request, attempt=action.attempt, ranks=numbers)
            for node, numbers in ranks.items()
        }
        self._put(msg.StepsReported, -1, orders, by_s, end)

    def _own_words(
        self, answers: Mapping[str, msg.StepsReported], of: Callable[[msg.StepsReported], Mapping[int, Word]]
    ) -> dict[int, Word]:
        """What nodes say of ranks: a node's word counts for its own."""
        told = ((node, *pair) for node, answer in answers.items() for pair in of(answer).items())
        return {number: word for node, number, word in told if self._homes.get(number) == node}

    def ask(self, action: ac.SaveInTime, number: int, wanted: Wanted, done: Answered) -> None:
        """As Reach has it."""
        home = self._homes.get(number, "")
        if home != self._me and home not in self._connected():
            done({"why": f"{home} can't be reached"}, "")
            return
        self._asked[number] = _Asked(home, action.until_s, done)
        order = msg.SaveHere(
            request=action.request,
            attempt=action.attempt,
            global_rank=number,
            step=wanted.step,
            by_s=action.until_s,
            part=wanted.part,
            is_halting=wanted.is_halting,
            token=wanted.token,
            pages={other: page for other, page in self._pages.items() if self._homes[other] != home},
        )
        self._order(home, order)

    def seek(self, action: ac.SaveInTime, number: int, told: dict[str, Any], done: Callable[[str], object]) -> None:
        """As Reach has it. What another node's clock and file system say of it does not count here."""
        home, path, written_ns = self._homes.get(number, ""), told["path"], told.get("written_ns")
        if not isinstance(path, str) or not isinstance(written_ns, int):
            done("it is not known when it was written")
            return
        if home != self._me:
            told["inode"], told["wall_s"] = 0, time.time()

        def end(answers: dict[str, Any], missing: list[str]) -> None:
            why = next((f"{node} does not see it: {answer.why}" for node, answer in answers.items() if answer.why), "")
            done(why or (f"{missing[0]} does not say whether it sees it" if missing else ""))

        order = msg.SeekFile(request=action.request, global_rank=number, path=path, written_ns=written_ns)
        orders = {node: order for node in (self._me, *self._connected()) if node not in (home, *self._left_out)}
        self._put(msg.FileSought, number, orders, self._by(action, SEEK_S), end)

    # What comes back ---------------------------------------------------------------------------------------------

    def answered(self, node: str, answer: Answer) -> None:
        """A node's answer; what nobody has asked it is passed over."""
        if answer.request != self._request:
            return
        if isinstance(answer, msg.SavedHere):
            asked = self._asked.get(answer.global_rank)
            if asked is not None and node == asked.node:
                del self._asked[answer.global_rank]
                asked.done(answer.told, answer.missing)
            return
        number = answer.global_rank if isinstance(answer, msg.FileSought) else -1
        for question in list(self._questions):
            is_it = isinstance(answer, question.kind) and question.number == number
            if is_it and node in question.awaited:
                question.awaited.discard(node)
                question.answers[node] = answer
                self._try_end(question)

    def dropped(self, node: str) -> None:
        """A node's connection was closed: it is taken for dead, but if it is one that saves."""
        for question in list(self._questions):
            question.awaited.discard(node)
            self._try_end(question)

    def replaced(self, node: str) -> None:
        """A node has another supervisor now, which knows nothing of what its predecessor was asked."""
        self.dropped(node)
        for number, asked in list(self._asked.items()):
            if asked.node == node:
                self._give_up(number, "its supervisor was started anew")

    def tick(self) -> None:
        """Once a second: who is waited for no longer; what is asked again."""
        now, connected = time.monotonic(), self._connected()
        again, self._again = self._again, None
        if again is not None:
            again()
        for question in list(self._questions):
            self._try_end(question)
        for number, asked in list(self._asked.items()):
            if asked.node == self._me or asked.node in connected:
                asked.gone_s = None
            else:
                asked.gone_s = now if asked.gone_s is None else asked.gone_s
            if asked.gone_s is not None and now >= asked.gone_s + GONE_S:
                self._give_up(number, f"{asked.node} can't be reached any more")
            elif self._node.clock.now() >= asked.by_s:
                self._give_up(number, "no answer")

    def _give_up(self, number: int, why: str) -> None:
        if (asked := self._asked.pop(number, None)) is not None:
            asked.done(None, why)

    def _put(
        self,
        kind: type,
        number: int,
        orders: Mapping[str, Order],
        by_s: float,
        end: Callable[[dict[str, Any], list[str]], object],
    ) -> None:
        question = _Question(kind, number, set(orders), by_s, end)
        self._questions.append(question)
        for node, order in orders.items():
            self._order(node, order)
        self._try_end(question)

    def _order(self, node: str, order: Order) -> None:
        if node != self._me:
            self._send(node, order)
            return
        self._own.obey(order, lambda answer: self.answered(self._me, answer), is_running=True)

    def _try_end(self, question: _Question) -> None:
        if question not in self._questions or (question.awaited and time.monotonic() < question.by_s):
            return
        self._questions.remove(question)
        question.end(question.answers, sorted(question.awaited))

    def _by(self, action: ac.SaveInTime, seconds: float) -> float:
        return time.monotonic() + min(seconds, action.until_s - self._node.clock.now())
