"""Has ranks of this node examine themselves, because a person wants to know: requests, and what becomes of them.

hooks/wire/examinations.py has the way to a rank. One that does not take a request within TAKE_S stands, with the GIL
held, or is stopped: the request is withdrawn, and nothing happens there. One that has taken it ends by itself. Samples
of what a rank does are taken from outside (rank_recordings.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.examinations import (
    EVAL,
    PROFILE,
    RATE,
    SAVE,
    SNAPSHOT,
    STOP,
    answer_name,
    max_bytes,
    read_whole,
    request_name,
    snapshot_name,
    stop_name,
    write_whole,
)
from guardrun.supervisor.base.redaction import redact_values
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.memory_use import read_room
from guardrun.supervisor.collect.ranks.source_functions import name_functions
from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_profiles import RankProfiles
from guardrun.supervisor.node.rank_recordings import RankRecordings
from guardrun.supervisor.rundir.snapshots import keep_snapshot

FLAME = "flame"
"""What is not asked of the rank itself."""
TAKE_S = 10.0
"""Hooks beat once a second; a busy machine gets them some more."""
ROOM_BYTES = 192 << 20
"""What must be left to a rank: tables of allocations, and snapshots of them, take up to that (hooks/examine/)."""
ROOMS = {EVAL: 0, RATE: 0, SAVE: 0, PROFILE: 512 << 20}
"""Likewise, of what takes next to no memory by itself; and for what is profiled: 180,000 events (MAX_GROWN_BYTES of
hooks/examine/profiling.py), and a step more."""
ANSWER_S = 30.0
"""Beyond the time that was asked for: a snapshot is taken, and added up."""

Done = Callable[[dict[int, dict[str, Any]], dict[int, str]], object]
"""What ranks have told, and why others have not."""


@dataclass
class _Request:
    """What one person has asked."""

    done: Done
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)


@dataclass
class _Asked:
    """One rank that has been asked."""

    request: _Request
    rank: Rank
    what: str
    attempt: int
    number: int
    at_s: float
    """time.monotonic()."""
    seconds: float
    is_written: bool = False
    is_taken: bool = False
    is_being_read: bool = False
    profile: int = 0
    """The number that its profile is kept by, where it is one."""


class _NoRoom(Exception):
    """A rank has too little memory left to be examined."""


class RankExaminations:
    """Runs on the loop's thread; files are written and read by its pool."""

    def __init__(self, node: RankContext) -> None:
        self._node = node
        self._asked: dict[int, _Asked] = {}
        """Per global rank: one at a time."""
        self._recordings = RankRecordings(node)
        self._profiles = RankProfiles(node)

    def ask(self, ranks: Sequence[int], what: str, arguments: dict[str, Any], seconds: float, done: Done) -> None:
        """Have these ranks do what is asked; done is called once all have answered, or can't.

        what, arguments: as hooks/examine/examiner.py has them, or STOP, or FLAME. seconds: how long it takes there.
        """
        request = _Request(done)
        busy = [number for number in ranks if number in self._asked] if what == RATE else []
        for number in ranks:
            if what == SAVE:
                why = "a script's save_with() is called before ranks are ended, and by nobody else"
            elif what == EVAL:
                why = "code is run only for who asks on the rank's own node: guardctl eval there"
            elif busy and number not in busy:  # all ranks or none: it would wait for these in vain, and training for it
                why = f"not asked, for rank {rank_list(busy)} is busy"
            elif what == STOP:
                why = self._stop(request, number, str(arguments.get("what", "")))
            elif what == FLAME:
                why = self._record(request, number, arguments, seconds)
            else:
                why = self._begin(request, number, what, arguments, seconds)
            if why:
                request.missing[number] = why
        self._try_end(request)

    def ask_here(self, number: int, what: str, arguments: dict[str, Any], seconds: float, done: Done) -> None:
        """The same of one rank, for who is known to be this user on this node: EVAL, too (live_code.py)."""
        request = _Request(done)
        if why := self._begin(request, number, what, arguments, seconds):
            request.missing[number] = why
        self._try_end(request)

    def close(self) -> None:
        """End what other programs are at; nobody is told."""
        self._recordings.close()
        self._profiles.close()

    def _record(self, request: _Request, number: int, arguments: dict[str, Any], seconds: float) -> str:
        """Have one sampled; empty, or why that can't be."""
        why = self._recordings.begin(number, arguments, seconds, partial(self._answered, request, number))
        if not why:
            request.pending.add(number)
        return why

    def _begin(self, request: _Request, number: int, what: str, arguments: dict[str, Any], seconds: float) -> str:
        """Ask one; empty, or why that can't be."""
        node = self._node
        rank, board = node.ingest.ranks.get(number), node.sampler.boards.get(number)
        words = board.read() if board is not None else None
        if rank is None or board is None or words is None:
            return "there is no such rank"
        if (earlier := self._asked.get(number)) is not None:
            left_s = max(0.0, earlier.at_s + earlier.seconds - time.monotonic())
            return f"it is busy with an earlier request ({earlier.what}), for {left_s:.0f} s more"
        if not words[Field.HEART_NS] or words[Field.MILESTONES] & Milestone.ENDED:
            has_ended = bool(words[Field.MILESTONES] & Milestone.ENDED)
            return "its script has ended" if has_ended else "its hooks are not there to be asked"
        last = max(words[Field.EXAMINE_ASKED], words[Field.EXAMINE_TAKEN], words[Field.EXAMINE_GIVEN])
        attempt = node.ingest.attempt
        asked = _Asked(request, rank, what, attempt, last + 1, time.monotonic(), seconds)
        if what == PROFILE:
            asked.profile = int(arguments.get("number") or 0)
        self._asked[number] = asked
        request.pending.add(number)
        path = self._path(request_name(attempt, number))
        content = {"number": asked.number, "what": what, "arguments": arguments}

        def written() -> None:
            asked.is_written = True
            board.write(Field.EXAMINE_ASKED, asked.number)

        def write() -> None:
            needed = ROOMS.get(what, ROOM_BYTES)
            room = read_room(rank.pid) if needed else None
            if room is not None and room < needed:
                raise _NoRoom(f"only {size(max(0, room))} of memory are left to it, and it takes up to {size(needed)}")
            write_whole(str(path), content)

        self._in_pool(asked, write, lambda _: written(), lambda error: self._end(asked, why=f"it isn't asked: {error}"))
        return ""

    def _stop(self, request: _Request, number: int, what: str) -> str:
        """Have one end what goes on there, which answers whoever has asked for it; empty, or why there is nothing."""
        node, asked = self._node, self._asked.get(number)
        board = node.sampler.boards.get(number)
        words = board.read() if board is not None else None
        if board is None or words is None:
            return "there is no such rank"
        if asked is not None and asked.what != what:
            return f"it is busy with something else ({asked.what})"
        taken = words[Field.EXAMINE_TAKEN]
        if asked is not None and taken < asked.number:
            if words[Field.EXAMINE_ASKED] == asked.number:
                board.write(Field.EXAMINE_ASKED, taken)
            self._end(asked, why="it was called off before it began")
        elif taken > words[Field.EXAMINE_GIVEN]:
            # Whoever asked may have been the supervisor before this one. The hooks look whether it is of this kind.
            path = self._path(stop_name(node.ingest.attempt, number))
            with suppress(RuntimeError):  # closing
                node.pool.submit(write_whole, str(path), {"number": taken, "what": what})
        else:
            return "nothing of the kind goes on there"
        request.answers[number] = {"stopped": what}
        return ""

    def sample(self) -> None:
        """Once a second: who has taken what was asked, who has answered, who won't."""
        self._recordings.sample()
        self._profiles.sample()
        for asked in list(self._asked.values()):
            if asked.is_written and not asked.is_being_read:
                self._look(asked, time.monotonic() - asked.at_s)

    def _look(self, asked: _Asked, age_s: float) -> None:
        node, number = self._node, asked.rank.global_rank
        board = node.sampler.boards.get(number) if node.ingest.attempt == asked.attempt else None
        words = board.read() if board is not None else None
        stat = read_stat(asked.rank.pid)
        if board is None or words is None:
            self._end(asked, why="its attempt has ended")
        elif words[Field.EXAMINE_GIVEN] >= asked.number:
            self._read(asked)
        elif stat is None or words[Field.MILESTONES] & Milestone.ENDED:
            self._end(asked, why="it has ended meanwhile")
        elif not asked.is_taken and words[Field.EXAMINE_TAKEN] >= asked.number:
            asked.is_taken = True
        elif not asked.is_taken and age_s > TAKE_S:
            board.write(Field.EXAMINE_ASKED, words[Field.EXAMINE_TAKEN])
            path = self._path(request_name(asked.attempt, number))
            self._in_pool(asked, lambda: path.unlink(missing_ok=True), lambda _: None, lambda _: None)
            self._end(asked, why=_why_silent(words, stat.state))
        elif age_s > asked.seconds + TAKE_S + ANSWER_S:
            self._end(asked, why=_why_silent(words, stat.state))

    def _read(self, asked: _Asked) -> None:
        """The answer is there."""
        asked.is_being_read = True
        path, cwd = self._path(answer_name(asked.attempt, asked.rank.global_rank)), self._node.run_file.cwd

        def work() -> dict[str, Any]:
            answer = read_whole(str(path), asked.number, max_bytes(asked.what))
            if asked.what == SNAPSHOT and isinstance(told := answer.get("told"), dict):
                snapshot = self._path(snapshot_name(asked.attempt, asked.rank.global_rank))
                told |= keep_snapshot(self._node.run_dir, snapshot, asked.rank.global_rank)
            if isinstance(told := answer.get("told"), dict):
                name_functions(told, cwd)
                if isinstance(variables := told.get("environment"), dict):
                    told["environment"] = redact_values(variables)
            return answer

        def received(answer: Any) -> None:
            told = answer.get("told")
            if isinstance(told, dict) and asked.what == PROFILE:
                self._read_profile(asked, told)
            elif isinstance(told, dict):
                self._end(asked, told=told)
            else:
                self._end(asked, why=str(answer.get("error", "its answer is none"))[:500])

        self._in_pool(asked, work, received, lambda error: self._end(asked, why=f"its answer can't be read: {error}"))

    def _read_profile(self, asked: _Asked, told: dict[str, Any]) -> None:
        """Its trace is there."""

        def read(whole: dict[str, Any] | None, why: str) -> None:
            self._end(asked, told=whole, why=why)

        if why := self._profiles.begin(asked.rank.global_rank, asked.attempt, asked.profile, told, read):
            self._end(asked, why=why)

    def _end(self, asked: _Asked, *, told: dict[str, Any] | None = None, why: str = "") -> None:
        number = asked.rank.global_rank
        if self._asked.get(number) is not asked:
            return
        del self._asked[number]
        self._answered(asked.request, number, told, why)

    def _answered(self, request: _Request, number: int, told: dict[str, Any] | None, why: str) -> None:
        request.pending.discard(number)
        if told is not None:
            request.answers[number] = told
        else:
            request.missing[number] = why
        self._try_end(request)

    def _try_end(self, request: _Request) -> None:
        if not request.pending:
            request.done(request.answers, request.missing)

    def _path(self, name: str) -> Path:
        return self._node.sockets / name

    def _in_pool(
        self,
        asked: _Asked,
        work: Callable[[], object],
        then: Callable[[Any], object],
        instead: Callable[[Exception], object],
    ) -> None:
        """Have a worker do it, and the loop what follows."""

        def job() -> None:
            try:
                result = work()
            except Exception as error:
                failed = error
                self._node.post(lambda: instead(failed))
                return
            self._node.post(lambda: then(result))

        with suppress(RuntimeError):  # closing
            self._node.pool.submit(job)


def _why_silent(words: list[int], state: str) -> str:
    """Why a rank does not answer, as far as can be seen from here."""
    if state in "Tt":
        return "it is stopped (by a signal, or a debugger)"
    silent_s = (time.monotonic_ns() - words[Field.HEART_NS]) / 1e9
    if words[Field.HEART_NS] and silent_s > TAKE_S / 2:
        return f"its hooks have not run for {silent_s:.0f} s: the GIL is held, or it gets no CPU"
    return "its hooks did not answer in time"
