"""Tables of what has happened in a run, one row a fact: events, attempts, checkpoints, findings, batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.query.journal_reader import Entry
from guardrun.supervisor.query.table import INTEGER, JSON, REAL, TEXT, Row, Table, columns, date, encode
from guardrun.supervisor.rundir.run_directory import RunFile

_AT = ("at_s", REAL, "seconds since the run was created")
_TIME = ("time", TEXT, "the same, UTC")
_ATTEMPT = ("attempt", INTEGER, "of the run, from 0")

EVENTS = Table(
    "events",
    "The journal: every event that guardrun acted on, as far back as it is kept.",
    columns(
        ("n", INTEGER, "its number"),
        _AT,
        ("time", TEXT, "when it was written, UTC"),
        ("type", TEXT, "what happened: `attempt_started`, `rank_exited`, `look_taken`, …"),
        _ATTEMPT,
        ("rank", INTEGER, "the global rank that it is about, where it is one"),
        ("node", TEXT, "likewise the node"),
        ("step", INTEGER, "likewise the step"),
        ("actions", TEXT, "what guardrun did about it: `take_look, say`; empty: nothing"),
        ("error", TEXT, "why it could make nothing of it; empty: it could"),
        ("data", JSON, "the event itself"),
    ),
    "the run has no journal that can be read",
)
ATTEMPTS = Table(
    "attempts",
    "The run's attempts.",
    columns(
        _ATTEMPT,
        ("started_s", REAL, "seconds since the run was created"),
        ("started", TEXT, "the same, UTC"),
        ("ended_s", REAL, "when nothing of it was alive any more; NULL: it goes on, or nobody saw its end"),
        ("ended", TEXT, "the same, UTC"),
        ("ranks", INTEGER, "how many"),
        ("nodes", INTEGER, "on how many"),
        ("resumed_path", TEXT, "the checkpoint that it resumed from; NULL: it began anew"),
        ("resumed_step", INTEGER, "that checkpoint's step"),
        ("last_step", INTEGER, "the furthest that a rank reported"),
        ("exitcodes", JSON, "by global rank; negative: killed by that signal"),
        ("stopped_by_guardrun", JSON, "global ranks that lived when guardrun stopped it"),
        ("outcome", TEXT, "as summary.json has it; NULL before"),
        ("incident", TEXT, "the incident that it ended with; likewise"),
        ("error", TEXT, "why it could not be started"),
    ),
    "no attempt has begun, or the journal is gone",
)
CHECKPOINTS = Table(
    "checkpoints",
    "What happened to checkpoints.",
    columns(
        _AT,
        _TIME,
        ("what", TEXT, "`saved`, `loaded`, `opened`, `chosen` (to resume from), `skipped` (not taken), `completed`"),
        _ATTEMPT,
        ("rank", INTEGER, "the global rank that did it"),
        ("path", TEXT, "absolute"),
        ("step", INTEGER, "its step"),
        ("duration_s", REAL, "how long saving it took"),
        ("format", TEXT, "where it is known"),
        ("why", TEXT, "of one that was not taken"),
    ),
    "no checkpoint was seen to be saved or loaded",
)
NODE_FINDINGS = Table(
    "node_findings",
    "What is wrong with nodes: a row when it begins, when it changes, and when it is over.",
    columns(
        _AT,
        _TIME,
        ("node", TEXT, "its name"),
        ("id", TEXT, "the same as long as it lasts"),
        ("cause", TEXT, "`gpu_ecc`, `thermal`, `network`, …"),
        ("key", TEXT, "finer than that, where there is such"),
        ("subject", TEXT, "the part: `gpu:UUID`, `disk:sda`, …"),
        ("since_s", REAL, "since when it is so, seconds since the run was created"),
        ("summary", TEXT, "one sentence"),
        ("response", TEXT, "`note`, `restart`, `isolate`"),
        ("is_over", INTEGER, "1: it is so no more"),
        ("advice", TEXT, "what to do"),
        ("evidence", JSON, "the figures"),
    ),
    "nothing was found of any node",
)
BATCHES = Table(
    "batches",
    "Batches that became known because something happened at them, and those that ranks stood at when they were looked "
    "at, now included.",
    columns(
        _AT,
        _ATTEMPT,
        ("rank", INTEGER, "global rank"),
        (
            "source",
            TEXT,
            "`look` (it stood there), `error` (the last before an exception), `odd` (around a step that was not "
            "finite), `left_out`, `pass` (how a pass over a loader began)",
        ),
        ("step", INTEGER, "the rank's step, where it is known"),
        ("batch", INTEGER, "its number since the attempt began, from 1, all loaders together"),
        ("epoch", INTEGER, "as a sampler has it"),
        ("position", INTEGER, "in its pass, from 1"),
        ("is_awaited", INTEGER, "1: the rank still waits for it; NULL: not known, as of a rank that moves on"),
        ("size", INTEGER, "how many samples; of a pass: how many batches"),
        ("indices", TEXT, "of its samples, as far as they are known; of a pass: a checksum of their order"),
        ("loader", TEXT, "which data loader, where it is known"),
    ),
    "no batch is known: batches are told of ranks that are looked at, that raise, or whose steps are not finite",
    is_live=True,
)


class _Nothing:
    """Leaves nothing to the end."""

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        return iter(())


class Events(_Nothing):
    """All of them; the event itself only where it is asked for."""

    kinds: frozenset[str] = frozenset()

    def __init__(self, read: frozenset[str]) -> None:
        self._is_detailed = bool(read & {"attempt", "rank", "node", "step"})
        self._has_data, self._has_actions = "data" in read, "actions" in read

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        about: tuple[Any, ...] = (None,) * 4
        if self._is_detailed:
            about = tuple(getattr(entry.event, name, None) for name in ("attempt", "global_rank", "node", "step"))
        actions = ", ".join(entry.actions) if self._has_actions else None
        data = entry.raw.decode() if self._has_data else None
        yield (entry.number, entry.at_s, entry.wall, entry.kind, *about, actions, entry.error, data)


class Attempts:
    """Collected, and told at the end."""

    def __init__(self, run: RunFile, read: frozenset[str], summary: dict[str, Any] | None) -> None:
        kinds = {"attempt_started", "attempt_not_started", "attempt_stopped", "rank_exited"}
        self.kinds = frozenset({*kinds, *(["node_report"] if "last_step" in read else [])})
        self._run = run
        self._found: dict[int, dict[str, Any]] = {}
        known = (summary or {}).get("attempts")
        ends = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
        self._ends: dict[Any, dict[str, Any]] = {str(one.get("attempt")): one for one in ends}

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        one = self._found.setdefault(event.attempt, {"exitcodes": {}})
        if isinstance(event, ev.NodeReport):
            one["last_step"] = max(one.get("last_step") or 0, *(report.step for report in event.ranks), 0) or None
        elif isinstance(event, ev.AttemptStarted):
            resumed = event.resumed_from
            one |= {"started_s": entry.at_s, "ranks": len(event.ranks)}
            one |= {"nodes": len({rank.node for rank in event.ranks})}
            one |= {"resumed_path": resumed.path, "resumed_step": resumed.step} if resumed is not None else {}
        elif isinstance(event, ev.AttemptNotStarted):
            one["error"] = event.error
        elif isinstance(event, ev.RankExited):
            one["exitcodes"][event.global_rank] = event.exitcode
        else:
            one["exitcodes"].update(event.exitcodes)
            one |= {"ended_s": entry.at_s, "stopped": json.dumps(event.stopped_by_us)}
        yield from ()

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        for number, one in sorted(self._found.items()):
            end = self._ends.get(str(number), {})
            started_s, ended_s = one.get("started_s"), one.get("ended_s")
            times = (started_s, date(self._run, started_s), ended_s, date(self._run, ended_s))
            about = [one.get(name) for name in ("ranks", "nodes", "resumed_path", "resumed_step", "last_step")]
            codes = json.dumps(dict(sorted(one["exitcodes"].items()))) if one["exitcodes"] else None
            told = (end.get("outcome") or None, end.get("incident") or None, one.get("error"))
            yield (number, *times, *about, codes, one.get("stopped"), *told)


class Checkpoints(_Nothing):
    """As they come."""

    kinds = frozenset(f"checkpoint_{what}" for what in ("saved", "loaded", "opened", "chosen", "secured"))

    def __init__(self, run: RunFile) -> None:
        self._run = run

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        when = (entry.at_s, date(self._run, entry.at_s))
        if isinstance(event, ev.CheckpointSaved):
            who = (event.attempt, event.global_rank, event.path, event.step)
            yield (*when, "saved", *who, event.duration_s, None, None)
        elif isinstance(event, ev.CheckpointLoaded):
            yield (*when, "loaded", event.attempt, event.global_rank, event.path, event.step, None, None, None)
        elif isinstance(event, ev.CheckpointOpened):
            yield (*when, "opened", event.attempt, None, event.path or None, None, None, None, event.trouble or None)
        else:
            what = "chosen" if isinstance(event, ev.CheckpointChosen) else "completed"
            if (one := event.checkpoint) is not None:
                yield (*when, what, None, None, one.path, one.step, None, one.format or None, None)
            for skipped in getattr(event, "skipped", ()):
                yield (*when, "skipped", None, None, skipped.path, None, None, None, skipped.reason)


class NodeFindings(_Nothing):
    """As they come."""

    kinds = frozenset({"node_told"})

    def __init__(self, run: RunFile) -> None:
        self._run = run

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event: ev.NodeFindingsReported = entry.event
        for one in event.findings:
            who = (event.node, one.id, one.cause, one.key or None, one.subject, one.since_s)
            what = (one.summary, one.response.value, one.is_over, one.advice, encode(one.evidence))
            yield (entry.at_s, date(self._run, entry.at_s), *who, *what)


class Batches(_Nothing):
    """From all that names one."""

    kinds = frozenset({"look_taken", "batches_named", "batches_left_out", "rank_raised", "exits_read", "node_report"})

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        who = (entry.at_s, event.attempt)
        if isinstance(event, ev.LookTaken):
            for look in event.ranks:
                yield from batch_of_look(look, event.attempt)
        elif isinstance(event, ev.NodeReport):
            for report in event.ranks:
                for one in report.samples:
                    epoch = one.epoch if one.epoch >= 0 else None
                    where: Row = (report.global_rank, "pass", one.step or None, None, epoch, None, 0)
                    yield (*who, *where, one.batches, one.order, f"{one.loader}, pass {one.turn}")
        elif isinstance(event, ev.BatchesNamed):
            for named in event.batches:
                epoch = named.epoch if named.epoch >= 0 else None
                where = (event.global_rank, "odd", named.step, None, epoch, named.position, 0)
                yield (*who, *where, len(named.indices), encode(named.indices), event.loader or None)
        elif isinstance(event, ev.BatchesLeftOut):
            for batch in event.batches:
                where = (event.global_rank, "left_out", event.step, None, None, None, 0)
                yield (*who, *where, len(batch), encode(batch), None)
        elif isinstance(event, ev.UncaughtExceptionReported):
            yield from _described(event.error.data, "error", (*who, event.global_rank))
        else:
            for trace in event.traces:
                if trace.error is not None:
                    yield from _described(trace.error.data, "error", (*who, trace.global_rank))


def batch_of_look(look: RankLook, attempt: int | None) -> Iterator[Row]:
    """The batch that a rank stood at."""
    who = (look.at_s, attempt, look.global_rank)
    if look.batch:
        yield from _described(look.batch, "look", who)
    elif look.batches:  # The last that it got: whether it waits for the next one is not told of a rank that moves on.
        yield (*who, "look", None, look.batches, None, None, None, None, None, None)


def _described(data: dict[str, Any], source: str, who: Row) -> Iterator[Row]:
    """As hooks/patches/dataloaders.py describes it."""
    if not data:
        return
    indices = data.get("indices")
    shown = indices if isinstance(indices, str) or indices is None else encode(indices)
    where = (source, None, data.get("batch"), data.get("epoch"), None, bool(data.get("is_awaited")))
    yield (*who, *where, data.get("size"), shown, None)
