"""Carries out the engine's actions: orders to the launcher, looks and readings by worker threads, files, words.

One class: a method for each action, over the same few parts of the supervisor.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.launcher.base.processes import TOKEN_VARIABLE, notify_token
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import open_folder, open_to_add, read_own, write_own
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.retention import ResumeProtection, elsewhere
from guardrun.supervisor.daemon.slurm_schedule import Schedule
from guardrun.supervisor.engine.incidents.sentences import say_snapshot
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.voluntary.in_time import in_doubt, why_spoilt
from guardrun.supervisor.engine.recovery.voluntary.rollback import spoiled_until
from guardrun.supervisor.node.node_relations import IsolationContext, NodeRelations
from guardrun.supervisor.node.rank_collection import RankContext, begin_exits, begin_look, look_name
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.run_context import CheckpointContext, EngineContext
from guardrun.supervisor.report.elements.html_page import load_soon
from guardrun.supervisor.report.incident import write_incident
from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.rundir.run_directory import CHECKPOINTS_FILE, RunFile
from guardrun.supervisor.saving.final_save import FinalSave
from guardrun.supervisor.saving.sample_ledgers import SampleLedgers, SaveAccount
from guardrun.supervisor.saving.saved_copies import SavedCopies
from guardrun.supervisor.saving.snapshot_files import WRITE_S, Written
from guardrun.supervisor.saving.snapshots import Snapshots
from guardrun.supervisor.wire import control_messages
from guardrun.supervisor.wire.control_messages import Shares, shares_json

if TYPE_CHECKING:
    from guardrun.supervisor.fleet.coordinator.coordinator import Coordinator
    from guardrun.supervisor.report.timeline.timeline import Timeline
    from guardrun.supervisor.saving.fleet_sample_ledgers import FleetLedgers

KEEP_LOOKS = 12
LAST_S = WRITE_S + 60.0
"""What is in memory is to be on the disk by then, when nobody resumes."""
PRIOR_PATIENCE_S = 2.0
"""How long a supervisor waits at its start for the list of what lies in the checkpoints' folder already."""


class PerformerNode(RankContext, IsolationContext, Protocol):
    """What carrying out actions uses of the node's supervisor."""

    is_over: bool
    """The run is over: the loop ends."""

    @property
    def relations(self) -> NodeRelations:
        """Has this node isolated."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""

    def send(self, order: control_messages.ToLauncher) -> None:
        """Give this node's launcher an order."""


class PerformerContext(EngineContext, CheckpointContext, Protocol):
    """What it uses of the daemon."""

    @property
    def fleet(self) -> Coordinator | None:
        """Has actions carried out on all nodes; None in a job of one."""

    @property
    def timeline(self) -> Timeline:
        """For the pages of incidents; another one once the engine has been made anew."""

    def folders(self) -> list[str]:
        """Those whose file systems matter to the run."""

    def shares(self) -> tuple[Shares, list[str]]:
        """What the last attempt's ranks spent its time on, and the nodes whose ranks are not among them."""


class Performer:
    """The hands of the daemon. Runs on the loop's thread; what takes time goes to its pool."""

    def __init__(
        self,
        node: PerformerNode,
        context: PerformerContext,
        saving: FinalSave,
        keeping: ResumeProtection,
        schedule: Schedule,
        *,
        snapshots: Snapshots,
        copies: SavedCopies,
        ledgers: SampleLedgers,
    ) -> None:
        """copies: of what ranks save. ledgers: of the data that they are handed."""
        self._node, self._context, self._snapshots, self._copies = node, context, snapshots, copies
        self._saving, self._keeping, self._schedule = saving, keeping, schedule
        self._notified: list[subprocess.Popen[bytes]] = []
        self._is_keeping = self._has_ended = False
        self._late: threading.Timer | None = None
        self._own_ledgers = ledgers
        self._account: SaveAccount | None = None
        """Of the checkpoint that was chosen last."""
        self._orders: dict[type, Callable[..., None]] = {
            ac.StartAttempt: self._start,
            ac.CheckNodes: self._check_nodes,
            ac.StopAttempt: self._stop,
            ac.TakeLook: self._look,
            ac.ReadExits: self._read_exits,
            ac.ChooseCheckpoint: self._choose,
            ac.AskCheckpoint: lambda action: saving.ask(action, self._dated(action.spoiled)),
            ac.AskSave: lambda action: saving.by_interval(),
            ac.SaveInTime: self._save_in_time,
            ac.SeekCheckpoint: lambda action: saving.seek(action, self._dated(action.spoiled)),
            ac.Requeue: self._requeue,
            ac.WriteIncident: self._write_incident,
            ac.Isolate: self._isolate,
            ac.WithdrawIsolation: lambda action: node.drains.withdraw(action.node, action.incident),
            ac.Say: self._print_line,
            ac.FinishRun: self._finish,
        }

    def perform(self, action: ac.Action) -> None:
        """Carry out (or begin to carry out) one action."""
        if not isinstance(action, ac.Say | ac.WriteIncident):
            log.info("action", action_type=type(action).__name__)
        try:
            self._orders[type(action)](action)
        except Exception:
            # Worth a line in the log, not the supervisor: what does not come back is asked for again.
            log.exception("action_failed", action_type=type(action).__name__)

    def poll(self) -> None:
        """Once a second: reap notify commands, and whoever judged checkpoints."""
        self._context.chooser.rest()
        self._notified = [process for process in self._notified if process.poll() is None]

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        """A rank saved: note it, and check it now, so that choosing takes milliseconds when it is needed."""
        chooser = self._context.chooser
        state = self._context.engine.state
        spoiled = self._dated([*spoiled_until(state, self._node.clock.now()), *in_doubt(state)])

        def work() -> None:
            chooser.saw_saved(path, step, wall_s, inode, attempt)
            self._keep_chooser()
            newest = chooser.prevalidate(spoiled)  # one that is spoilt takes the place of none that is kept
            self._saving.seen(newest)
            self._keeping.seen(newest)
            self._copies.seen(newest)

        self._node.in_background(work, lambda error: None, self._context.checkpoint_pool)

    def _keep_chooser(self) -> None:
        """Soon, and once for all that has changed by then: choosing must not wait for the run directory's disk."""
        if not self._is_keeping:
            self._is_keeping = True
            if not self._node.writer.put(self._write_chooser):
                self._is_keeping = False

    def _write_chooser(self) -> None:
        self._is_keeping = False
        keep_chooser(self._node.run_dir, self._context.chooser)

    def loaded(self, message: CheckpointLoaded) -> None:
        """A rank loaded something: where that is a checkpoint, its steps count from there."""
        context = self._context

        def work() -> ev.Event | None:
            found = context.chooser.saw_loaded(message.path)
            if found is None:
                return elsewhere(context.chooser, message.attempt, message.path)
            self._keep_chooser()
            self._node.ingest.set_base(message.attempt, message.global_rank, found.step)
            return ev.CheckpointLoaded(
                attempt=message.attempt, global_rank=message.global_rank, path=found.path, step=found.step
            )

        self._node.in_background(work, lambda error: None, context.checkpoint_pool)

    # One method an action -------------------------------------------------------------------------------------

    def _start(self, action: ac.StartAttempt) -> None:
        self._snapshots.let_go(action.attempt)
        if self._context.fleet is not None:
            self._context.fleet.start(action, self._account)
            return
        if action.checkpoint is not None:
            size = self._context.engine.state.world_size
            self._own_ledgers.hand_on(action.attempt, action.checkpoint, self._account, world_size=size)
        self._node.send(control_messages.start_of(action))

    def _check_nodes(self, action: ac.CheckNodes) -> None:
        assert self._context.fleet is not None
        self._context.fleet.checks.begin(action)

    def _stop(self, action: ac.StopAttempt) -> None:
        if self._context.fleet is not None:
            if not action.is_last:
                self._schedule.stopping()
            self._context.fleet.stop(action)
            return
        self._node.send(control_messages.Stop(attempt=action.attempt, grace_s=action.grace_s, is_last=action.is_last))

    def _isolate(self, action: ac.Isolate) -> None:
        context = self._context
        if context.fleet is not None:
            context.fleet.isolate(action)
        elif action.node == self._node.run_file.node:
            self._node.relations.isolate(action)
        else:  # left over from the run's last start, on another node
            from guardrun.supervisor.fleet.coordinator.node_isolation import isolate_other

            isolate_other(self._node, action, is_told=False)

    def _look(self, action: ac.TakeLook) -> None:
        context = self._context
        load_soon()  # while the look is taken: an incident's page is written before its attempt is stopped
        suspicion = context.engine.state.detectors.hang.suspicion
        told = suspicion.stall.looks if suspicion is not None and suspicion.stall is not None else []
        self._node.writer.put(functools.partial(prune_looks, self._node.run_dir, list(told)))
        if context.fleet is not None:
            context.fleet.look(action)
            return
        folder = self._node.run_dir / look_name(action.attempt, action.look)
        begin_look(self._node, action, folder, context.folders(), self._node.writer.put)

    def _read_exits(self, action: ac.ReadExits) -> None:
        load_soon()
        if self._context.fleet is not None:
            self._context.fleet.read_exits(action)
            return
        begin_exits(self._node, action, self._context.folders(), self._context.chooser.name_of)

    def _choose(self, action: ac.ChooseCheckpoint) -> None:
        context = self._context
        is_first = context.engine.state.attempt is None
        spoiled = self._dated(action.spoiled)
        no_snapshot = why_spoilt(context.engine.state)
        resume_first = self._node.run_file.settings.resume_first and is_first
        ledgers = self._ledgers() if not action.is_look else None
        last = context.engine.state.attempt
        ranks = sorted(last.ranks) if last is not None else []
        if ledgers is not None and last is not None:
            ledgers.refresh(last.number, ranks)

        def note(attempt: int, written: Written) -> None:
            if ledgers is not None:
                ledgers.written_from_memory(attempt, written, ranks)

        def work() -> ev.Event:
            is_urgent = not action.is_look
            choose = functools.partial(
                context.chooser.choose, resume_first, action.avoid, is_urgent=is_urgent, spoiled=spoiled
            )
            written: list[ev.SnapshotWritten] = []
            if is_urgent:
                choice, written = self._write_out(choose, action.avoid, spoiled, no_snapshot, note)
            else:
                choice = choose()
            if resume_first or action.avoid:
                self._keep_chooser()
            warnings = context.chooser.warn_torn_latest() if is_urgent else []
            if choice.checkpoint is not None and choice.doubt:
                reason = f"{choice.doubt}; it is taken, as none is known to be whole"
                warnings.insert(0, ev.Skipped(path=choice.checkpoint.path, reason=reason))
            chosen = ev.CheckpointChosen(
                choice=action.choice,
                checkpoint=choice.checkpoint,
                skipped=choice.skipped,
                warnings=warnings,
                snapshot=written[-1] if written else None,
            )
            if ledgers is not None:
                self._account = ledgers.find(choice.files)
            return self._keeping.prepare(chosen, choice, action.avoid)

        instead = lambda error: ev.CheckpointChosen(choice=action.choice, error=error)  # noqa: E731
        if not action.is_look:
            context.chooser.hurry()
        self._node.in_background(work, instead, context.checkpoint_pool)

    def _write_out(
        self,
        choose: Callable[[], Choice],
        avoid: Sequence[str],
        spoiled: Sequence[ac.Spoiled],
        no_snapshot: str,
        note: Callable[[int, Written], object] = lambda attempt, written: None,
    ) -> tuple[Choice, list[ev.SnapshotWritten]]:
        """What is chosen once what memory holds beyond it is on the disk; and what came of that.

        On the chooser's thread. no_snapshot, note: as Snapshots.write_newer has them.
        """

        def write_snapshot(choice: Choice) -> ev.SnapshotWritten | None:
            return self._snapshots.write_newer(choice, spoiled, no_snapshot, note)

        def write_copy(choice: Choice) -> ev.SnapshotWritten | None:
            try:
                return self._copies.write_lost(choice, avoid, spoiled)
            except Exception:  # what was chosen without it will do
                log.exception("saved_copy_not_written")
                return None

        choice, told = choose(), []
        for write in (write_snapshot, write_copy):
            written = write(choice)
            if written is not None:
                told.append(written)
            if written is not None and written.path:
                self._keep_chooser()
                choice = choose()
        return choice, told

    def _save_in_time(self, action: ac.SaveInTime) -> None:
        from guardrun.supervisor.saving.in_time_save import InTimeSaves  # few runs have a use for it

        fleet = self._context.fleet
        reach = fleet.begin_save(action) if fleet is not None else None
        InTimeSaves(self._node, self._context, self._keep_chooser, self._saved_in_time, reach).begin(action)

    def _saved_in_time(self, attempt: int, rank: int, own_steps: int, checkpoint: ev.Checkpoint) -> None:
        current = self._context.engine.state.attempt
        if current is not None and attempt == current.number:
            self._ledgers().saved_in_time(attempt, rank, own_steps, checkpoint, sorted(current.ranks))

    def _ledgers(self) -> SampleLedgers | FleetLedgers:
        fleet = self._context.fleet
        return fleet.ledgers if fleet is not None else self._own_ledgers

    def _dated(self, spoiled: Sequence[ac.Spoiled]) -> list[ac.Spoiled]:
        """The same in time.time()'s seconds."""
        wall_s = self._node.clock.wall_s
        return [
            msgspec.structs.replace(one, since_s=wall_s(one.since_s), until_s=wall_s(one.until_s)) for one in spoiled
        ]

    def _write_incident(self, action: ac.WriteIncident) -> None:
        context = self._context

        def work() -> None:
            try:
                folder = write_incident(
                    self._node.run_dir,
                    action.incident,
                    self._node.run_file,
                    self._node.run_file.date_s,
                    timeline=context.timeline,
                )
            except (OSError, ValueError) as error:
                log.error("incident_not_written", incident=action.incident.id, error=str(error))
                self._node.terminal.print_line(f"incident {action.incident.id} can't be written: {error}", "warn")
                return
            if action.is_new:
                self._node.terminal.print_line(f"report: {folder / 'report.html'}", "info")
                self._notify(folder / "incident.json")

        self._node.writer.do(work)

    def _notify(self, path: Path) -> None:
        command = self._node.run_file.notify_command
        if not command:
            return
        try:
            with open(open_to_add(self._node.run_dir / "notify.log"), "ab") as output:
                process = subprocess.Popen(
                    [*command, str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, TOKEN_VARIABLE: notify_token(self._node.run_file.token)},
                    cwd=self._node.run_file.cwd,
                )
        except OSError as error:
            self._node.terminal.print_line(f"[notify] command could not be run: {error}", "warn")
            return
        self._node.post(lambda: self._notified.append(process))

    def _print_line(self, action: ac.Say) -> None:
        log.info("said", text=action.text, level=action.level)
        self._node.terminal.print_line(action.text, action.level)

    def _requeue(self, action: ac.Requeue) -> None:
        self._write_summary(action.summary)  # before Slurm ends us
        self._schedule.requeue(action)

    def _finish(self, action: ac.FinishRun) -> None:
        self._write_summary(action.summary)
        if action.summary.outcome == "finished":
            self._node.writer.do(self._keeping.let_go)
        has_any = self._snapshots.has_any or self._copies.has_any
        if action.summary.outcome in ("gave_up", "failed") and has_any:
            with suppress(RuntimeError):  # closing
                self._context.checkpoint_pool.submit(self._write_last, action)
                self._end_late(action)
                return
        self._end(action)

    def _end_late(self, action: ac.FinishRun) -> None:
        """A disk that does not answer keeps no run from ending."""
        self._late = threading.Timer(LAST_S, lambda: self._node.post(lambda: self._end(action)))
        self._late.daemon = True
        self._late.start()

    def _write_last(self, action: ac.FinishRun) -> None:
        """Nobody resumes now: what the ranks have left in memory would be lost. On the chooser's thread."""
        try:
            context, state = self._context, self._context.engine.state
            spoiled, why = self._dated(state.spoiled), why_spoilt(state)
            avoid = list(state.avoid)
            choose = functools.partial(context.chooser.choose, avoid=avoid, spoiled=spoiled, is_urgent=True)
            for written in self._write_out(choose, avoid, spoiled, why)[1]:
                self._node.terminal.print_line(*say_snapshot(written))
            keep_chooser(self._node.run_dir, context.chooser)
        except Exception:
            log.exception("snapshot_not_written")
        finally:
            self._node.post(lambda: self._end(action))

    def _end(self, action: ac.FinishRun) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._late is not None:
            self._late.cancel()
        context = self._context
        is_preempted = action.summary.outcome == "preempted"
        order = control_messages.Finish(exit_code=action.exit_code, is_preempted=is_preempted)
        self._node.send(order)
        if context.fleet is not None:
            context.fleet.finish(order)
        else:
            self._node.is_over = True

    def _write_summary(self, summary: ac.Summary) -> None:
        context, run = self._context, self._node.run_file
        opened_s = context.engine.state.opened_s

        def work() -> None:
            try:
                shares = shares_json(*context.shares())
                write_summary(self._node.run_dir, summary, run, run.date_s, shares=shares, opened_s=opened_s)
            except (OSError, ValueError) as error:
                self._node.terminal.print_line(f"summary.json can't be written: {error}", "warn")

        self._node.writer.do(work)


def prune_looks(run_dir: Path, told: Sequence[str]) -> None:
    """Looks that led to nothing; those of an incident lie in its own folder. told: of a stall, which may become one."""
    try:
        for folder in (run_dir, run_dir / "looks"):  # what is removed is to be ours, whatever these names mean by now
            os.close(open_folder(folder, may_be_written=True))
        looks = sorted((run_dir / "looks").iterdir(), key=lambda path: path.stat().st_mtime)
    except OSError:
        return
    for old in looks[:-KEEP_LOOKS]:
        if f"looks/{old.name}" not in told:
            shutil.rmtree(old, ignore_errors=True)


def open_chooser(run_dir: Path, run: RunFile, pool: ThreadPoolExecutor) -> Chooser:
    """The chooser as an earlier supervisor of the run left it, or a new one.

    Of a run that is continued, what was written since the run began counts as its own where the memory of it is lost.

    What lies in its folder is listed on the pool's thread, before anything else there: no supervisor stands still with
    a dead file system.
    """
    folder = run.checkpoint_dir if not run.checkpoint_dir or os.path.isabs(run.checkpoint_dir) else ""
    try:
        state = msgspec.json.decode(read_own(run_dir / CHECKPOINTS_FILE))
        return Chooser.from_state(state, run.cwd)
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        chooser = Chooser(run.created_wall_s, folder, run.checkpoint_format, 1, run.cwd)

        def list_prior() -> None:
            try:
                chooser.prior(is_lost=run.session > 0)
            except Exception:
                log.exception("prior_not_listed")
            # At once: a supervisor after this one would take what the run has written by then for older than the run.
            keep_chooser(run_dir, chooser)

        wait([pool.submit(list_prior)], PRIOR_PATIENCE_S)
        return chooser


def keep_chooser(run_dir: Path, chooser: Chooser) -> None:
    """Keep what the chooser knows for a supervisor after this one."""
    try:
        write_own(run_dir / CHECKPOINTS_FILE, encode_json(chooser.state()))
    except OSError as error:
        log.warning("checkpoints_not_remembered", error=str(error))
