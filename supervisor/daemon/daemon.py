"""One run's supervisor, where it decides: events go to the engine, and actions to the performer.

All that decides is in `Engine`; what moves facts in is the loop that each node has
(supervisor/node/node_supervisor.py). A loop that did not run for a while says so to the engine (TimeSkipped).
"""

from __future__ import annotations

import math
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.retention import ResumeProtection
from guardrun.supervisor.daemon import earlier_runs
from guardrun.supervisor.daemon.action_performer import Performer, open_chooser
from guardrun.supervisor.daemon.event_redaction import without_secrets
from guardrun.supervisor.daemon.operator_requests import Answers
from guardrun.supervisor.daemon.slurm_schedule import Schedule
from guardrun.supervisor.daemon.tick_pace import Pace
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import OPENS
from guardrun.supervisor.node.node_supervisor import NodeSupervisor
from guardrun.supervisor.report.timeline.timeline import Timeline
from guardrun.supervisor.rundir.journal import Journal, describe_versions, recover
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.saving.final_save import FinalSave
from guardrun.supervisor.saving.sample_ledgers import SampleLedgers
from guardrun.supervisor.saving.saved_copies import SavedCopies
from guardrun.supervisor.saving.snapshots import Snapshots
from guardrun.supervisor.wire import control_messages
from guardrun.supervisor.wire.control_messages import Shares

if TYPE_CHECKING:
    from guardrun.supervisor.base.metrics_endpoint import MetricsServer
    from guardrun.supervisor.fleet.coordinator.coordinator import Coordinator
    from guardrun.supervisor.saving.fleet_save_agreement import FleetSaveAgreement

MAX_EARLY = 1000
"""Events kept until the launcher is there. It is within milliseconds; a stopped one must not fill the memory."""
GREET_S = 10.0
"""A supervisor that is started again waits so long for its launcher, which may be the one that does not answer."""


class Daemon:
    """Runs until the run is over, or its launcher is gone."""

    def __init__(self, run_dir: Path, run: RunFile, writer: BackgroundWriter) -> None:
        self.node = NodeSupervisor(run_dir, run, writer, self)
        # One thread, so that a choice comes after every save that was told before it.
        self.checkpoint_pool = ThreadPoolExecutor(1, thread_name_prefix="guardrun-checkpoints")
        self.chooser = open_chooser(run_dir, run, self.checkpoint_pool)
        self.engine, self.journal = self._recover()
        self.keeping = ResumeProtection(run_dir, self._resumes)
        self.saving = FinalSave(self.node, self)
        self.schedule = Schedule(self.node, self)
        self.snapshots = Snapshots(self.node, self)
        self.ledgers = SampleLedgers(self.node, self.node.sockets)
        self.node.ingest.on_save = self.ledgers.saved
        self.copies = SavedCopies(run.config, self.chooser, self._warn_soon)
        self.performer = Performer(
            self.node,
            self,
            self.saving,
            self.keeping,
            self.schedule,
            snapshots=self.snapshots,
            copies=self.copies,
            ledgers=self.ledgers,
        )
        self.answers = Answers(self.node, self, self.saving)
        self._pace = Pace()
        self._said_trouble = False
        self._early: deque[ev.Event] | None = deque(maxlen=MAX_EARLY)
        """What has come before the run was opened or taken up; None once it is."""
        state = self.engine.state
        is_again = state.phase is not Phase.NEW and state.session == run.session
        self._take_up_s = time.monotonic() + GREET_S if is_again else math.inf
        self._has_greeted = False
        self._poller: zmq.Poller | None = None
        self._metrics = self._serve_metrics()
        self.fleet = self._open_fleet()

    def run(self) -> None:
        """Serve until the run is over."""
        self.node.run()

    def close(self) -> None:
        """Let go of everything; waits a moment for what is still to be said or sent."""
        self.schedule.close()
        if self._metrics is not None:
            self._metrics.close()
        if self.fleet is not None:
            self.fleet.close()
        self.copies.close()
        self.chooser.close()
        self.checkpoint_pool.shutdown(wait=False, cancel_futures=True)
        self.node.writer.do(lambda: None)  # where an incident's page lies is said once it is written
        self.node.close()
        self.journal.close()

    # What the node's loop calls --------------------------------------------------------------------------------

    @property
    def is_watching(self) -> bool:
        """By the engine's phase: RUNNING or STOPPING."""
        return self.engine.state.phase in (Phase.RUNNING, Phase.STOPPING)

    @property
    def is_running(self) -> bool:
        """By the engine's phase: RUNNING."""
        return self.engine.state.phase is Phase.RUNNING

    @property
    def may_be_left_out(self) -> bool:
        """This node has been left out of the job; never so in a job of one node."""
        members = self.engine.state.fleet.members if self.engine.state.fleet is not None else {}
        return (me := members.get(self.node.run_file.node)) is not None and me.standing is Standing.OUT

    @property
    def fleet_agreement(self) -> FleetSaveAgreement | None:
        """By which all nodes' ranks save at the same call; None in a job of one node."""
        return self.fleet.asking if self.fleet is not None else None

    def due_s(self) -> float | None:
        """The engine's next deadline; None until the run has been taken up."""
        # What the journal waited for may be long past: of a run that is to be continued nothing is alive.
        return self._pace.due_s(self.engine.next_deadline_s()) if self._early is None else None

    def turn(self, ready: dict[object, int]) -> None:
        """Hears other nodes, and ticks the engine where a deadline has passed."""
        if self.fleet is not None and self._early is None:
            self.fleet.turn(ready)
        now_s = self.node.judging_s()
        due_s = self.due_s()
        if due_s is not None and now_s >= due_s:
            has_failed = not self.feed(ev.Ticked())
            self._pace.ticked(self.node.clock.now(), has_failed, self.engine.next_deadline_s())

    def sampled(self) -> None:
        """What is due once a second: other nodes, the journal's size, running actions, saves, the scheduler."""
        if self._early is not None and time.monotonic() >= self._take_up_s:
            self._take_up()
        if self.fleet is not None and self._early is None:
            self.fleet.sampled()
        self.journal.rotate_if_large(self.engine)
        self.performer.poll()
        self.saving.poll()
        self._sample_snapshots()
        self.copies.sample()
        self.schedule.poll()
        self._tell_trouble()

    def answer(self, peer: bytes, ask: control_messages.Ask) -> None:
        """Answered at once, or by a worker where a look is taken first."""
        self.answers.answer(peer, ask)

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        """The checkpoint is checked by a worker, so that choosing one later takes milliseconds."""
        self.performer.saved(path, step, wall_s, inode, attempt)

    def loaded(self, message: CheckpointLoaded) -> None:
        """Where it is a checkpoint, the rank's steps count from its step."""
        self.performer.loaded(message)

    def told_of_snapshots(self, text: str) -> None:
        """A person hears of it, or memory is granted at once: what trains fast has lost many steps within a second."""
        if text:
            self.node.terminal.print_line(text, "warn")
        else:
            self._sample_snapshots()

    def _warn_soon(self, text: str) -> None:
        self.node.post(lambda: self.node.terminal.print_line(text, "warn"))

    def _sample_snapshots(self) -> None:
        if self.is_running:  # what is left of ranks that have ended is not taken back
            self.snapshots.sample()

    def shares(self) -> tuple[Shares, list[str]]:
        """What the last attempt's ranks spent its time on, and the nodes whose ranks are not among them."""
        return (self.node.ingest.shares(), []) if self.fleet is None else self.fleet.shares()

    def folders(self) -> list[str]:
        """With those in which checkpoints have been seen."""
        return [str(self.node.run_dir), self.node.run_file.cwd, "/tmp", "/dev/shm", *self.chooser.folders()]

    def register(self, poller: zmq.Poller) -> None:
        """Only keeps the poller: other nodes are listened to once the run has been taken up."""
        self._poller = poller  # other nodes are listened to once it is known here what they are part of

    def serving(self, message: control_messages.Serving) -> None:
        """Nothing in a job of one node: no other node needs the store."""
        if self.fleet is not None:
            self.fleet.serving(message)

    def isolation_settled(self, action: ac.Isolate, how: str = "") -> None:
        """Becomes an event, on the loop's thread."""
        settled = ev.IsolationSettled(node=action.node, incident=action.incident, how=how)
        self.node.post(lambda: self.feed(settled))

    def orphaned(self) -> None:
        """Nothing more to do: the loop ends, and the run can be continued from the journal."""
        pass

    def give_up_launcher(self) -> None:
        """The node's ranks take part no more; as head the supervisor goes on."""
        if self.fleet is not None:
            self.fleet.leave()

    def skipped(self, gap_s: float) -> None:
        """The engine and the other nodes' leases must not take the gap for silence."""
        log.warning("time_skipped", gap_s=round(gap_s, 1))
        if self.fleet is not None:
            self.fleet.skipped(gap_s)
        if self._early is None:
            self.feed(ev.TimeSkipped(gap_s=gap_s))

    # Events in, actions out ----------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> bool:
        """To the engine; kept until the run has been taken up. False where the engine raised."""
        if self._early is not None:
            self._early.append(event)
            return True
        if self.fleet is None:
            return self.handle(event)
        failed = [one for one in self.fleet.on_local_event(event) if not self.handle(one)]
        self.fleet.send_orders()
        return not failed

    def handle(self, event: ev.Event) -> bool:
        """Tell the engine, note it in the journal, carry out what it says. False where the engine raised."""
        if isinstance(event, ev.RankExited):
            self.saving.note_answers()
        event = without_secrets(event)
        now_s = self.node.judging_s()
        self.timeline.feed(event, now_s)
        if isinstance(event, ev.PreemptionNoticed):
            event = msgspec.structs.replace(event, is_why_asked=self.schedule.is_asked)
        try:
            actions = self.engine.handle(event, now_s)
        except Exception as error:
            # A bug of ours must not end the supervision: the event is set aside, the state is made anew without it.
            log.exception("engine_raised", event_type=type(event).__name__)
            self.journal.append_error(event, repr(error), now_s)
            self.journal.close()
            self.engine, self.journal = self._recover()
            return False
        self.journal.append(event, actions, self.engine.last_s)
        for action in actions:
            self.performer.perform(action)
        if isinstance(event, ev.PreemptionNoticed):
            self.schedule.signalled()
        self._tell_trouble()
        return True

    def greeted(self, hello: control_messages.LauncherHello) -> None:
        """The launcher is there: open the run, go on with it, or take up where the last supervisor was."""
        is_first, self._has_greeted = not self._has_greeted, True
        run = self.node.run_file
        wall_s = time.time()
        if self.engine.state.phase is Phase.NEW:
            self._begin(
                ev.RunOpened(
                    run_id=run.run_id,
                    settings=run.settings,
                    node=run.node,
                    command=run.command,
                    world_size=hello.world_size,
                    wall_s=wall_s,
                    fleet=run.fleet.plan if run.fleet else None,
                    session=run.session,
                    attempt=max(hello.attempt, 0),
                )
            )
        elif self.engine.state.session < run.session:
            self._begin(
                ev.RunContinued(
                    settings=run.settings,
                    node=run.node,
                    world_size=hello.world_size,
                    wall_s=wall_s,
                    session=run.session,
                    fleet=run.fleet.plan if run.fleet else None,
                )
            )
        elif is_first:
            self._greeted_again(hello)
        if self.fleet is not None and (is_first or (self.fleet.has_left and not hello.alive)):
            self.fleet.join(hello.world_size, hello.attempt if hello.alive else -1)
        if is_first:
            earlier_runs.start_reading(self.node.run_dir, self._history_read)
        if self.fleet is None:
            self.chooser.set_world_size(hello.world_size)

    def _resumes(self) -> bool:
        """The script opens the checkpoint that it is given: so it was configured, or it has done so."""
        return self.node.run_file.settings.resumes or self.engine.state.resumes == OPENS

    def _history_read(self, past: ev.HistoryLoaded) -> None:
        """By the thread that has read it."""
        if not self.node.is_over:
            self.node.post(lambda: self.feed(past))

    def _greeted_again(self, hello: control_messages.LauncherHello) -> None:
        # First: what was being read when the last supervisor went is asked for again.
        self.node.note_files(hello)
        if self._early is not None:
            self._take_up()
        attempt = self.engine.state.attempt
        if hello.alive and attempt is not None and hello.attempt == attempt.number:
            self.node.watch(hello.attempt, hello.alive, attempt.resumed_from)

    def _take_up(self) -> None:
        """Go on where the last supervisor was."""
        if self.fleet is not None:
            self.fleet.resume()
        self._begin(ev.SupervisorRestarted())

    def _begin(self, event: ev.Event) -> None:
        """What the engine hears first; then what has come meanwhile, and from now on the other nodes.

        A node that joined before would be told that its ranks are nobody's: to stop them.
        """
        early, self._early = self._early or (), None
        if self.fleet is None and self.copies.is_untold and not isinstance(event, ev.SupervisorRestarted):
            self.node.terminal.print_line(
                "[checkpoint] mirror = true keeps nothing here: neither resume_args nor resume_env has {path}", "warn"
            )
        self.feed(event)
        for one in early:
            self.feed(one)
        if self.fleet is not None and self._poller is not None:
            self.fleet.register(self._poller)

    def _serve_metrics(self) -> MetricsServer | None:
        listen = self.node.run_file.config.get("metrics", {}).get("listen", "")
        if not listen:
            return None
        from guardrun.supervisor.daemon.job_metrics import start_job_metrics  # megabytes that most runs have no use for

        return start_job_metrics(listen, self.node.post, self.answers.metrics)

    def _open_fleet(self) -> Coordinator | None:
        """None: one node. Raises what keeps the head from being found, once said."""
        if self.node.run_file.fleet is None:
            return None
        from guardrun.supervisor.fleet.coordinator.coordinator import Coordinator

        try:
            return Coordinator(self.node, self, self.node.run_file.fleet)
        except Exception as error:
            self.node.terminal.print_line(f"the other nodes can't be coordinated: {error}", "bad")
            raise

    # Troubles ---------------------------------------------------------------------------------------------------

    def _recover(self) -> tuple[Engine, Journal]:
        self.timeline = Timeline()
        try:
            engine, result = recover(self.node.run_dir, self.timeline.feed)
        except OSError:
            return Engine(), Journal(self.node.run_dir, writer=self.node.writer)
        if result.is_other:
            anew = "it is not replayed, and attempts, incidents and restarts are counted anew"
            self.node.terminal.print_line(f"{describe_versions(result.other_version)}: {anew}", "warn")
        log.info(
            "recovered",
            events=result.events,
            left_out=result.left_out,
            phase=engine.state.phase.value,
            trouble=result.mismatches[:5],
        )
        return engine, Journal(self.node.run_dir, result.last_number + 1, writer=self.node.writer)

    def _tell_trouble(self) -> None:
        if self.journal.trouble and not self._said_trouble:
            self._said_trouble = True
            self.node.terminal.print_line(
                f"the run directory can't be written ({self.journal.trouble}): training goes on without a record",
                "warn",
            )
            log.error("journal_trouble", error=self.journal.trouble)
