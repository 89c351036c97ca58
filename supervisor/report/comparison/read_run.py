"""What a run's folder tells of it, for a comparison: run.json, the journal, incidents, what was recorded beside them.

Nothing of it has to be there but run.json: of a run that goes on, was killed, or is an older guardrun's, what is not
there is not known. Curves are those of the lowest rank that tells any, for each rank has its own loss.
"""

from __future__ import annotations

import math
from pathlib import Path

from guardrun.supervisor.base.own_files import NotOwnError
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.report.comparison.run_facts import Attempt, Curve, RunFacts, Trouble, add_point
from guardrun.supervisor.report.run_record import read_incidents, read_json
from guardrun.supervisor.report.timeline.step_plot import step_times
from guardrun.supervisor.report.timeline.timeline import Timeline
from guardrun.supervisor.rundir.environment import read_environments
from guardrun.supervisor.rundir.journal import read_lines
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.rundir.step_values import read_steps

MAX_ORDERS = 100_000
MAX_TROUBLES = 1000


def read_facts(run_dir: Path, run: RunFile, is_alive: bool | None) -> RunFacts:
    """is_alive: whether its launcher lives; None where that can't be told from here."""
    story = JournalStory()
    missing = story.read(run_dir)
    summary = read_json(run_dir / "summary.json")
    environments, why = read_environments(run_dir)
    missing += [why] if why else []
    curves = dict(story.curves)
    try:
        curves |= read_single_steps(run_dir)
    except FileNotFoundError:
        pass
    except NotOwnError as error:
        missing.append(str(error))
    except OSError as error:
        missing.append(f"values of single steps can't be read: {error.strerror or error}")
    outcome = (summary or {}).get("outcome")
    return RunFacts(
        run_id=run.run_id,
        run_dir=str(run_dir),
        node=run.node,
        user=run.user,
        cwd=run.cwd,
        command=run.command,
        script=run.script,
        config={name: value for name, value in run.config.items() if name != "origins"},
        state=_state(summary is not None, is_alive),
        outcome=outcome if isinstance(outcome, str) else "",
        last_step=story.last_step,
        sessions=run.session + 1,
        attempts=story.attempts,
        steps_redone=story.redone,
        incidents=[_trouble(record) for record in read_incidents(run_dir)[:MAX_TROUBLES]],
        left_out=sum(story.left_out.values()),
        skipped=sum(story.skipped.values()),
        orders=story.orders,
        curves={name: curve for name, curve in curves.items() if curve.points},
        step_times=[point.step_s for point in step_times(story.timeline.view().front)],
        environments=environments,
        missing=missing,
    )


def _state(has_summary: bool, is_alive: bool | None) -> str:
    if has_summary:
        return "ended"
    return {True: "running", False: "unfinished", None: "elsewhere"}[is_alive]


def _trouble(record: dict[str, object]) -> Trouble:
    step = record.get("step")
    return Trouble(
        cause=str(record.get("cause") or "unknown"),
        step=step if isinstance(step, int) else None,
        action=str(record.get("action") or ""),
    )


def read_single_steps(run_dir: Path) -> dict[str, Curve]:
    """Loss and norm of single steps, as far as they were recorded. Raises OSError."""
    losses: list[tuple[int, float]] = []
    norms: list[tuple[int, float]] = []
    for _, values in read_steps(run_dir):
        if values.loss is not None:
            add_point(losses, values.step, values.loss)
        if values.grad_norm is not None:
            add_point(norms, values.step, values.grad_norm)
    found = {"loss": Curve(losses), "grad_norm": Curve(norms)}
    return {name: curve for name, curve in found.items() if curve.points}


class JournalStory:
    """What a journal's events tell. Feed it all of them, in order."""

    def __init__(self) -> None:
        self.timeline = Timeline(is_whole_run=True)
        self.attempts: list[Attempt] = []
        self.orders: dict[tuple[int, int, int], ev.SampleOrder] = {}
        self.left_out: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        """By attempt."""
        self.last_step: int | None = None
        self.redone = 0
        self._rank = math.inf
        """Whose curves these are."""
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._has_begun = False
        """A step of this attempt was seen."""

    def read(self, run_dir: Path) -> list[str]:
        """Read the journal, as far as it is kept; answers what could not be read."""
        missing: list[str] = []
        torn = 0
        try:
            for line in read_lines(run_dir, with_rotated=True):
                if line is None or (line.event is None and line.snapshot is None):
                    torn += 1
                elif line.event is not None:
                    self.feed(line.event, line.t)
        except OSError as error:
            missing.append(f"the journal can't be read: {error.strerror or error}")
        if torn:
            missing.append(f"{torn} lines of the journal are torn, or of another version")
        if self.attempts and self.attempts[0].number:
            missing.append(
                f"the attempts before attempt {self.attempts[0].number}: their part of the journal is not kept"
            )
        if self.timeline.trouble:
            missing.append(f"the timeline is not whole: {self.timeline.trouble}")
        return missing

    @property
    def curves(self) -> dict[str, Curve]:
        """Medians over a few seconds each; a learning rate is of the very step."""
        return {name: Curve(points, is_single=name == "learning_rate") for name, points in self._points.items()}

    def feed(self, event: ev.Event, at_s: float) -> None:
        """Learn from one event."""
        self.timeline.feed(event, at_s)
        if isinstance(event, ev.AttemptStarted):
            nodes = list(dict.fromkeys(rank.node for rank in event.ranks))
            world_size = len({rank.global_rank for rank in event.ranks})
            if self.attempts and self.attempts[-1].number == event.attempt:
                self.attempts.pop()  # told once more, when more of it is known
            else:
                self._has_begun = False
            self.attempts.append(
                Attempt(number=event.attempt, world_size=world_size, nodes=nodes, resumed_from=event.resumed_from)
            )
        elif isinstance(event, ev.NodeReport):
            for report in event.ranks:
                self._note_report(event.attempt, report)

    def _note_report(self, attempt: int, report: ev.RankReport) -> None:
        if report.step:
            if not self._has_begun:
                self._has_begun = True
                base = self.attempts[-1].resumed_from if self.attempts else None
                begins = base.step if base else 0
                self.redone += max((self.last_step or 0) - begins, 0)
            self.last_step = max(self.last_step or 0, report.step)
        for order in report.samples:
            if len(self.orders) < MAX_ORDERS:
                self.orders.setdefault((report.global_rank, order.loader, order.turn), order)
        metrics = report.metrics
        if metrics is None:
            return
        self.left_out[attempt] = max(self.left_out.get(attempt, 0), metrics.left_out)
        self.skipped[attempt] = max(self.skipped.get(attempt, 0), metrics.skipped)
        if report.global_rank > self._rank:
            return
        if report.global_rank < self._rank:
            self._rank, self._points = report.global_rank, {}
        for name in ("loss", "grad_norm", "learning_rate"):
            value = getattr(metrics, name)
            if value is not None:
                add_point(self._points.setdefault(name, []), metrics.last, value)
