"""Events: facts, in the past tense, that the engine is told. All a journal needs for replay.

Seconds named `…_s` are the engine's clock (`now_s`: seconds since the run was created, monotonic, also across a
restarted supervisor), unless a name says wall.

One module, as they are one union: a journal is read by it, and whoever adds an event sees what there is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.model.looks import Frame, GroupLook, RankLook, Reading
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.gpu.memory_release import MemoryHolder


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A whole checkpoint."""

    path: str
    """Absolute."""
    step: int
    """The script's own number where its name or its metadata tells, else guardrun's count when it was saved."""
    format: str = ""
    written_wall_s: float = 0.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the configuration that the engine decides by. Defaults are the contract's."""

    max_restarts: int = 10
    max_no_progress: int = 3
    stop_grace_s: float = 10.0
    gpu_memory_s: float = 20.0
    floor_s: float = 10.0
    hard_timeout_s: float = 1800.0
    rolls_back: bool = False
    """Training that is NaN goes back to a checkpoint from before; else it is only told."""
    max_rollbacks: int = 3
    stops_diverged: bool = False
    """Replicas that differ end the run; else that is only told."""
    saves_before_oom: bool = False
    """Before memory runs out the ranks are asked to save, and begun anew from that; else it is only told."""
    look_gap_s: float = 3.0
    """Between the two looks of a suspicion."""
    look_every_s: float = 8.0
    """Between later ones, growing while somebody is busy."""
    idle_patience_s: float = 30.0
    data_patience_s: float = 60.0
    gil_patience_s: float = 60.0
    spin_patience_s: float = 120.0
    native_patience_s: float = 0.0
    """Where native code computes that was called from the user's own line, if this is longer. 0: it is not asked."""
    save_patience_s: float = 300.0
    """While a rank saves, or is in a phase that its script has named (eval, save, …)."""
    traced_patience_s: float = 20.0
    """A debugger's stop ('t')."""
    stopped_patience_s: float = 3.0
    mismatch_patience_s: float = 5.0
    """Ranks that are seen in collectives which can never meet."""
    awake_patience_s: float = 30.0
    """As idle_patience_s, of a rank that wakes up now and then."""
    proof_patience_s: float = 15.0
    """A standstill that nothing is left to end."""
    tell_s: float = 0.0
    """A stall is told after so long. 0: it is not."""
    is_sure: bool = False
    """What nobody is seen to wait for is acted on at the hard limit alone, and a place at which the run has been
    stopped before gets more patience. False: eager."""
    act: bool = True
    resume_first: bool = False
    exact_data: bool = False
    """What was trained on before a checkpoint is not handed out again ([checkpoint] exact_data)."""
    auto_interval: bool = False
    """The ranks are asked to save as often as that is worth it."""
    jit_s: float = 0.0
    """Ranks that are to be ended are given so long to save by a function of the script's; 0: none."""
    resumes: bool = False
    """The user has said how the script is told to resume ([checkpoint] resume_args, resume_env)."""
    restarts_anyway: bool = False
    """The user has asked for restarts as torchrun makes them (--max-restarts): whether they resume is the script's."""
    is_torchrun_agent: bool = False
    """torchrun's own agent runs the attempts and restarts them by its own rules."""
    gc_policy: str = "off"
    check_every: int = 500
    """Steps between two checks that replicas are equal; 0: none."""
    """[gc] policy: what an incident advises depends on it."""
    window_s: float = 20.0
    """What steps go to is compared over windows of this length (engine/observation/step_times.py)."""
    files_window_s: float = 120.0
    """The shortest windows in which a rank's open files are compared (engine/detectors/descriptor_leak.py)."""
    memory_window_s: float = 60.0
    """The shortest windows in which a rank's host memory is compared (engine/detectors/host_leak.py)."""
    responses: dict[str, str] = {}
    """Causes of a node's own → note, restart or isolate, where the user has said so."""
    grace_s: float = 600.0
    """From a signal that warns of the job's end: how long the ranks may take to save, where the end is not known."""
    term_grace_s: float = 30.0
    """Between SIGTERM and SIGKILL, where the scheduler does not tell: slurm.conf's KillWait is 30 s unless set."""
    save_before_end_s: float = 120.0
    """So long before the job's time limit the ranks are asked to save; 0 = never."""
    requeue: str = "auto"
    """auto, always, never"""
    goes_past_limit: bool = True
    """A job that its time limit ends is requeued like any other."""
    is_named: bool = False
    """The user has named the run: the same command goes on with it."""
    lost_s: float = 25.0
    """A node of which nothing is heard for so long, while nothing advances, is lost."""
    term_s: float = 15.0
    """A node without contact for so long ends its ranks, unless they advance with those of other nodes."""
    last_call_s: float = 30.0
    """Nodes that are still expected are waited for this long where fewer would do."""
    join_timeout_s: float = 600.0
    """Too few nodes for so long: the run ends unfinished."""
    head_gone_s: float = 60.0
    """A node whose lease is over waits so long for a head, then ends: for a new guardrun there, or a requeue."""
    isolate_lost_s: float = 0.0
    """A lost node is isolated once it has not been back for so long. 0: at once."""
    check_nodes: str = "off"
    """Several nodes are tried together before they train: off, quick, full."""


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A job of several nodes."""

    least: int
    most: int
    """Nodes that train: --nnodes=LEAST:MOST."""
    spares: int = 0
    """Nodes beyond them, which wait."""


class Rank(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's process, as the launcher started it."""

    global_rank: int
    local_rank: int
    pid: int
    node: str
    is_forked: bool = False
    """Of a warm process (docs/warm-ranks.md); False: it was executed."""


class RunOpened(_Event, frozen=True, kw_only=True, tag="run_opened"):
    """First event of a run."""

    run_id: str
    settings: Settings
    node: str
    command: list[str]
    world_size: int
    """On this node."""
    wall_s: float
    fleet: FleetPlan | None = None
    session: int = 0
    """Above 0: an earlier guardrun had the run, and nothing is recorded of what it did."""
    attempt: int = 0
    """The launcher's newest: above 0 where the journal of a living run was lost."""


class RunContinued(_Event, frozen=True, kw_only=True, tag="run_continued"):
    """A new guardrun took an unfinished run up again (a requeue). Whatever ran before is gone."""

    settings: Settings
    node: str
    world_size: int
    wall_s: float
    session: int = 1
    fleet: FleetPlan | None = None


class SupervisorRestarted(_Event, frozen=True, kw_only=True, tag="supervisor_restarted"):
    """The supervisor is a new process that has replayed the journal; what was under way must be asked for again."""


class TimeSkipped(_Event, frozen=True, kw_only=True, tag="time_skipped"):
    """The supervisor did not run for gap_s (frozen job, paused machine, stopped supervisor): nobody's hang."""

    gap_s: float


class MemoryWait(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks of a node were started into: how long the memory of those before was waited for, and what is held."""

    node: str
    waited_s: float
    """For which the start was delayed."""
    why: str
    """`free`, `limit` (they did not become free in time), `unknown`."""
    asked_s: float = 0.0
    """From the end of those before to the last look at it."""
    holders: list[MemoryHolder] = []


class AttemptStarted(_Event, frozen=True, kw_only=True, tag="attempt_started"):
    """An attempt's ranks run. resumed_from: None where it begins anew."""

    attempt: int
    ranks: list[Rank]
    resumed_from: Checkpoint | None = None
    memory: list[MemoryWait] = []
    """Per node, where there is something to tell."""


class AttemptNotStarted(_Event, frozen=True, kw_only=True, tag="attempt_not_started"):
    """The launcher could not start the ranks."""

    attempt: int
    error: str


class StepBreakdown(msgspec.Struct, frozen=True, array_like=True):
    """What a rank's ordinary steps have gone to so far (hooks/patches/steps.py); no evaluations, no saves."""

    steps: int
    took_s: float
    waited_s: float
    """For other ranks, in collectives: as far as that can be seen, so never too much."""
    data_s: float
    """For data."""
    gc_s: float


MANY_FILES = 0.5
"""Share of its limit from which on a rank's open files are looked at more closely, and worth a word."""


class OpenFiles(msgspec.Struct, frozen=True, array_like=True):
    """The file descriptors of a rank's own process, without those of its children."""

    count: int
    limit: int = 0
    """Its soft RLIMIT_NOFILE; 0: none, or not to be read."""
    newest: list[tuple[str, int]] = []
    """What most of those opened last are (`sockets`, `files in /data`, a path that is open more than once), and how
    many of each; told where MANY_FILES of the limit are open."""

    @property
    def are_many(self) -> bool:
        """Whether they are MANY_FILES of the limit or more."""
        return 0 < self.limit * MANY_FILES <= self.count


class MemoryUse(msgspec.Struct, frozen=True, array_like=True):
    """Host memory of a rank and of the processes below it, in bytes, page cache and mapped files left out.

    Read by collect/ranks/memory_use.py, which says why it is counted like this.
    """

    own: int
    """Anonymous and swapped-out memory of the rank's own process."""
    below: int = 0
    """What processes below it have come to hold of that beyond the least that each was seen with, all together: a
    forked one begins with its parent's pages."""
    largest: tuple[int, int] = (0, 0)
    """The one of those with most of it: its pid, and how much."""
    processes: int = 0
    """How many live below it."""
    shared: int = 0
    """Pages of shared memory (files of /dev/shm, anonymous shared mappings) that the one of them has mapped that has
    most of them: others may have the same ones."""
    limit: int = 0
    """Of what the rank may use: of all limits that hold for it, the one with least room. 0: none is known."""
    used: int = 0
    """Of that limit, by everybody for whom it holds; page cache that can be given back is left out."""


class DeviceMemory(msgspec.Struct, frozen=True, array_like=True):
    """What the caching allocator of a rank's device said after a step, in bytes (hooks/patches/device_memory.py)."""

    allocated: int
    """In tensors, where activations of the step are gone."""
    peak: int = 0
    """The most that it has been since the start, or since the script last reset that."""
    reserved: int = 0
    """What the allocator has got of the device, in use or kept for tensors to come."""
    inactive: int = 0
    """Of that what can't be given back: free parts of segments of which others are in use."""
    segments: int = 0
    retries: int = 0
    """How often so far the device had no memory left, until what was unused was given back."""
    ooms: int = 0
    """How often it had none even then."""
    limit: int = 0
    """What the allocator could reserve at most, now: what it has and what nobody has, or less where the script has set
    a limit of its own. 0: not known."""
    total: int = 0
    """The device's. 0: not known."""
    device: int = 0
    """The same number for ranks of a node that share a device; 0: not known."""


class OddStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of a rank whose loss or gradient norm is not finite, or far above those before it."""

    step: int
    """With the base of a resumed checkpoint."""
    loss: float | None
    """None: not seen, or not finite."""
    grad_norm: float | None
    """Likewise."""
    flags: int = 0
    """Bits of hooks/wire/metrics_page.py's Flag."""
    loss_sigmas: float = 0.0
    """How far its logarithm lies above the median of those before it, in deviations; 0: not odd, or not finite."""
    norm_sigmas: float = 0.0
    batch: int = 0
    """How many batches the rank's training thread had been given in this attempt, this one included; 0: none seen."""


class SpikeCounts(msgspec.Struct, frozen=True, array_like=True):
    """Of the attempt so far: values of a rank that were compared with those before (observation/spike_score.py)."""

    losses: int = 0
    loss_spikes: int = 0
    """Of these, those that were far away."""
    norms: int = 0
    norm_spikes: int = 0


class TrainingMetrics(msgspec.Struct, frozen=True, array_like=True):
    """What a rank's training computes (hooks/patches/metrics.py), over the steps since this was last reported."""

    first: int
    last: int
    """Steps, both included; with the base of a resumed checkpoint."""
    loss: float | None = None
    """Median of those that are finite, in these steps; None: there was none."""
    grad_norm: float | None = None
    """Likewise; a rank's own part of it where parameters are sharded."""
    learning_rate: float | None = None
    """Of the first parameter group, at the last of these steps."""
    usual_loss: float | None = None
    """Median of the window of steps before (engine/observation/metric_window.py); None: there are too few."""
    usual_norm: float | None = None
    skipped: int = 0
    """Steps of this attempt so far that a GradScaler left out because gradients had overflowed."""
    nonfinite: int = 0
    """Steps of this attempt so far with a loss or a gradient norm that is not finite, without those left out by
    either."""
    odd: list[OddStep] = []
    """At most MAX_ODD of these steps, the first ones."""
    left_out: int = 0
    """Steps of this attempt so far that guardrun left out ([guards] numeric = "skip")."""
    spikes: SpikeCounts | None = None
    """None: too few values came before."""


MAX_ODD = 8


class ReplicaCheck(msgspec.Struct, frozen=True, array_like=True):
    """What a rank holds of tensors that other ranks hold as well (hooks/checksums), after one and the same step."""

    of: str
    """Which tensors: the same on all ranks that hold them."""
    kind: int
    """hooks/wire/checksums_page.py's Kind: 0 parameters, 1 the optimizer's moments, 2 the parameters' names."""
    replicas: int
    """Ranks that hold them."""
    count: int
    """Steps of these tensors, by which ranks are compared."""
    step: int
    """The training's; with the base of a resumed checkpoint."""
    is_echo: bool = False
    """It repeats a check that was a few steps before."""
    layout: int = 0
    """Only where it is the same on two ranks are these the same tensors."""
    writes: int = 0
    """In-place operations on the parameters since the first check, by torch's count."""
    tensors: int = 0
    digests: str = ""
    """A number for each group of tensors (engine/observation/tensor_groups.py); hexadecimal."""
    names: list[str] = []
    """Of kind 2: what the tensors belong to, then the parameters in order; told by one rank, once."""


class SampleOrder(msgspec.Struct, frozen=True, array_like=True):
    """Which samples a pass over a loader began with on a rank that trains on them (hooks/patches/sample_orders.py)."""

    loader: int
    """From 0, in the order in which passes over them were first told."""
    turn: int
    """Which pass over this loader: from 0."""
    batches: int
    """How many of its first batches `order` is about."""
    distinct: int
    """Different samples among the first ones of each of them."""
    order: str
    """A checksum of their indices, in order."""
    length: int = -1
    """Batches that the samplers have for a whole pass; -1: not known."""
    epoch: int = -1
    """As a DistributedSampler was told it; -1: there is none."""
    shuffles: bool = False
    """A DistributedSampler of torch's is to shuffle."""
    is_joined: bool = False
    """Ranks may run out of batches before others do: torch's join()."""
    step: int = 0
    """By then; with the base of a resumed checkpoint."""
    group: str = ""
    """The same on all ranks whose gradients are averaged with this one's; empty: not known, or there are none."""
    members: int = 0
    """How many ranks these are."""


class StepLoss(msgspec.Struct, frozen=True, array_like=True):
    """One step's loss on one rank, as its backward() was called on it."""

    step: int
    loss: float


class RankReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changed in a rank since the last report."""

    global_rank: int
    state: str = "S"
    progress_s: float = 0.0
    """When anything last advanced; 0 = nothing yet."""
    progress: int = 0
    """Everything that advances, summed."""
    step: int = 0
    """With the base of a resumed checkpoint."""
    milestones: int = 0
    phase: str = ""
    gc_since_s: float = 0.0
    heart_s: float = 0.0
    in_save_since_s: float = 0.0
    waits_since_s: float = 0.0
    """In one and the same collective, or waiting for one batch, since; told from the third second on."""
    gc_total_s: float = 0.0
    """Time in collections so far; by itself no reason for a report."""
    spent: StepBreakdown | None = None
    """Every four seconds or so; by itself no reason for a report."""
    open_files: OpenFiles | None = None
    """Every half minute or so, where they can be counted; by itself no reason for a report."""
    metrics: TrainingMetrics | None = None
    """Every four seconds or so, and at once where a step is odd; by itself no reason for a report."""
    memory: MemoryUse | None = None
    """Every half minute or so; by itself no reason for a report."""
    device_memory: DeviceMemory | None = None
    """Likewise, of ranks whose allocator tells it."""
    replicas: list[ReplicaCheck] = []
    """Checks since the last report; by themselves no reason for one."""
    samples: list[SampleOrder] = []
    """Likewise: passes over loaders."""
    losses: list[StepLoss] = []
    """A few single ones, once samples were told; by themselves no reason for a report."""
    joint: int = 0
    """Collectives that ranks of other nodes have part in, by torch's count."""
    is_save_held: bool = False
    """It wants to write over a checkpoint that nobody is known to have opened (hooks/saves/overwrite_guard.py)."""


class NodeReport(_Event, frozen=True, kw_only=True, tag="node_report"):
    """What changed on a node: at most one a second, urgent ones at once. Ranks without change are left out."""

    node: str
    attempt: int
    ranks: list[RankReport]


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception that ended a rank, from its hooks or from torchrun's error file."""

    error: str
    """Qualified type where known: `torch.OutOfMemoryError`."""
    message: str = ""
    traceback: str = ""
    frames: list[tuple[str, str, int]] = []
    """(file, function, line), outermost first."""
    at_s: float = 0.0
    """0 = unknown."""
    data: dict[str, Any] = {}
    """The batch that the rank had last: batch, epoch, indices, size, indices_before; each where it is known."""


class UncaughtExceptionReported(_Event, frozen=True, kw_only=True, tag="rank_raised"):
    """A rank is about to end because of an exception."""

    attempt: int
    global_rank: int
    error: ErrorRecord


class RankEnded(_Event, frozen=True, kw_only=True, tag="rank_ended"):
    """A rank's script came to its end; its interpreter is finalising."""

    attempt: int
    global_rank: int


class RankExited(_Event, frozen=True, kw_only=True, tag="rank_exited"):
    """A rank's process has ended, by itself or because it was stopped. at_s: when that was seen."""

    attempt: int
    global_rank: int
    pid: int
    exitcode: int
    """As subprocess has it: negative = killed by that signal."""
    at_s: float
    refusal: str = ""
    """Why it, or a child of it, could not go on as a process that was forked; empty: that is not why it ended."""


class ExitTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a fallen rank left behind."""

    global_rank: int
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    """Last 4 KiB where its stderr went to a file; of one that ranks share, of the lines that name it."""
    stack: list[Frame] = []
    """Where a fatal signal met it, innermost first; empty where none did, or nothing tells."""
    groups: list[GroupLook] = []
    """Its process groups, with the calls it made last; one that raised counts as under way."""
    failed_load: str = ""
    """The checkpoint that its last load to raise was reading; the file, where nobody knows it as one."""


class ExitsRead(_Event, frozen=True, kw_only=True, tag="exits_read"):
    """Answer to ReadExits."""

    attempt: int
    traces: list[ExitTrace]
    oom_kills: int = -1
    """OOM kills counted in the job's cgroup (else the machine) since the attempt began; -1 unknown."""
    oom_pids: list[int] = []
    """Those that the kernel log names."""
    disk_free_bytes: dict[str, int] = {}
    """Per folder of interest (checkpoints, run directory, cwd, /dev/shm, /tmp)."""
    readings: list[Reading] = []
    """As in LookTaken."""
    last_words: dict[str, str] = {}
    """Per node: what native code said last on the stderr that its ranks share, nobody can say which of them."""


class AttemptStopped(_Event, frozen=True, kw_only=True, tag="attempt_stopped"):
    """Nothing of the attempt is alive any more (but `survivors`, which not even SIGKILL ended)."""

    attempt: int
    exitcodes: dict[int, int]
    """Per global rank."""
    stopped_by_us: list[int]
    """Ranks that were alive when the stop began."""
    survivors: list[int] = []
    """pids."""
    took_s: float = 0.0


class CheckpointSaved(_Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A rank has finished writing a checkpoint; whether it is whole is not known yet."""

    attempt: int
    global_rank: int
    path: str
    step: int
    duration_s: float
    inode: int = 0
    """0: not known."""
    family: str = ""
    """Its path without the numbers in its name, where the name says a step; else empty."""
    named_step: int = 0
    """That step."""


class CheckpointLoaded(_Event, frozen=True, kw_only=True, tag="checkpoint_loaded"):
    """A rank loaded what guardrun knows as a checkpoint."""

    attempt: int
    global_rank: int
    path: str
    step: int


class CheckpointOpened(_Event, frozen=True, kw_only=True, tag="checkpoint_opened"):
    """Somebody on a node has read from a checkpoint of this run, for the first time in this attempt.

    Or a rank has loaded another's, before its first step.
    """

    attempt: int
    path: str = ""
    trouble: str = ""
    """Not empty: nobody there could see it."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was not taken, and why."""

    path: str
    reason: str


class SnapshotWritten(msgspec.Struct, frozen=True, kw_only=True):
    """Copies that were kept in memory, written out as a checkpoint: of ranks' state (hooks.snapshot), or of a save."""

    original: str = ""
    """The checkpoint that it is a copy of, which is torn or gone; empty: of the ranks' state."""
    step: int = 0
    path: str = ""
    """Of the first of its files; empty: nothing was written."""
    files: int = 0
    size_bytes: int = 0
    took_s: float = 0.0
    why: str = ""
    """Why nothing was, or not the newest."""


class CheckpointChosen(_Event, frozen=True, kw_only=True, tag="checkpoint_chosen"):
    """Answer to ChooseCheckpoint."""

    choice: int
    checkpoint: Checkpoint | None = None
    skipped: list[Skipped] = []
    warnings: list[Skipped] = []
    """What a script that resumes by itself would take, where that is torn."""
    family: str = ""
    """The checkpoint's, as CheckpointSaved has it."""
    siblings: list[str] = []
    """This run's checkpoints, the chosen one among them: to open any of them is to resume."""
    resumes_itself: bool = False
    """Scripts that write this format look for their newest checkpoint by themselves."""
    resume_way: str = ""
    """How a script that writes it is told, in a few words."""
    kept: str = ""
    """Where it is kept from the next attempt; empty: nowhere."""
    keep_trouble: str = ""
    """Why not, or not wholly."""
    snapshot: SnapshotWritten | None = None
    """What came of the copies in memory; None: there are none, or none that is newer."""
    error: str = ""


class LookTaken(_Event, frozen=True, kw_only=True, tag="look_taken"):
    """Answer to TakeLook; ranks that could not be looked at are missing, with the reason."""

    look: int
    attempt: int
    ranks: list[RankLook]
    missing: dict[int, str] = {}
    took_s: float = 0.0
    folder: str = ""
    """Where the raw stacks lie, relative to the run directory."""
    readings: list[Reading] = []
    """Of the node: load, memory, disks, mounts; bounded."""


class GcHeld(_Event, frozen=True, kw_only=True, tag="gc_held"):
    """Collections took a second or more of one step of a rank so far; again whenever that has grown by a quarter."""

    attempt: int
    global_rank: int
    duration_s: float
    """Without the time for which they waited for a core."""
    generation: int
    collected: int
    step: int
    tracked: int = -1
    """Objects that the collector tracks after it; -1 unknown."""
    lasted_s: float = 0.0
    """With the time for which they waited for a core; 0 not told."""


class NamedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One that a rank took from a data loader."""

    step: int
    """Under way when it was taken."""
    run: int
    """Which pass over the sampler."""
    epoch: int
    """-1 unknown."""
    position: int
    """In the pass, from 1."""
    indices: list[int]


class BatchesNamed(_Event, frozen=True, kw_only=True, tag="batches_named"):
    """A step of a rank was not finite, the first after one that was: the batches around it."""

    attempt: int
    global_rank: int
    step: int
    loader: str
    """The data loader that training takes its steps from, as each attempt knows it."""
    why: str
    """Why they cannot be left out by their indices; empty: they can."""
    ahead: int
    """1: batches are taken one before they are trained on; 0: they are not; else that is unknown."""
    batches: list[NamedBatch]
    origin: str = ""
    """Which module's output or gradient was the first that is not finite, in words; empty unknown."""


class ModulesDied(_Event, frozen=True, kw_only=True, tag="modules_died"):
    """What modules of a rank give out, or its gradients, has been all zeros for long, and was not before.

    Or (`input`) what its model is given has been one number all over since the first step.
    """

    attempt: int
    global_rank: int
    step: int
    since: int
    """The first step at which it was seen so."""
    what: str
    """`output`, `gradient`, or `input`."""
    modules: list[str]
    """The first ones, in the order in which they are called."""
    count: int
    """How many there are in all."""
    looks: int
    """At how many steps in a row, one in `every`."""
    every: int
    alive: int
    """At how many before that it was well."""


class GroupNorm(msgspec.Struct, frozen=True, array_like=True):
    """The gradient norm of a group of modules."""

    name: str
    usual: float
    """Median of its last looks."""
    now: float


class GradientsGrew(_Event, frozen=True, kw_only=True, tag="gradients_grew"):
    """Gradients of a group of modules of a rank are far larger than usual."""

    attempt: int
    global_rank: int
    step: int
    groups: list[GroupNorm]
    """What has grown most comes first."""
    count: int
    """How many groups there are in all."""


class BatchesLeftOut(_Event, frozen=True, kw_only=True, tag="batches_left_out"):
    """A rank has left batches out, as it was told."""

    attempt: int
    global_rank: int
    order: str
    step: int
    batches: list[list[int]]


class DataReplayed(_Event, frozen=True, kw_only=True, tag="data_replayed"):
    """After a resume a rank has seen whether samples are trained on again, or left out; the later one counts."""

    attempt: int
    global_rank: int
    status: str
    """`skipped`, `continued`, `repeated`, `left_out`, `reordered`, `unknown`."""
    loader: str
    epoch: int
    """-1: not known."""
    batches: int
    samples: int
    """Trained on in this pass before the checkpoint, by this rank."""
    repeated: int
    left_out: int
    passed_over: int
    """Batches that the script has passed over by itself."""
    why: str = ""


class HooksMissing(_Event, frozen=True, kw_only=True, tag="hooks_missing"):
    """A rank runs without hooks: it is watched from outside."""

    attempt: int
    global_ranks: list[int]
    reason: str


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device that a rank trains on."""

    subject: str
    """As findings name it: `gpu:UUID`."""
    index: int


class Gauge(msgspec.Struct, frozen=True, array_like=True):
    """One reading of a part of a node, for the page that shows it beside the steps."""

    at_s: float
    subject: str
    name: str
    """`temperature_c`, `sm_clock_hz`, …"""
    value: float


class NodeFindingsReported(_Event, frozen=True, kw_only=True, tag="node_told"):
    """What the judges of a node say anew (supervisor/health/); all times are the engine's."""

    node: str
    findings: list[Finding]
    devices: dict[int, Device | None] = {}
    """Per global rank, where that has changed; None: it is not known any more."""
    unsensed: dict[str, list[int]] = {}
    """Types of devices (`xpu`, `hip`, …) of which nothing is sensed → ranks that train on one; told once."""
    gauges: list[Gauge] = []
    """Of parts of which something is told, from a while before that on."""


class NodeJoined(_Event, frozen=True, kw_only=True, tag="node_joined"):
    """A node is there, for the first time or again, and waits for orders (or has ranks already: `attempt`)."""

    node: str
    slot: int = -1
    """Its place in the scheduler's order (SLURM_NODEID), or --node-rank; -1: as they come."""
    ranks: int = 1
    """That it would run."""
    attempt: int = -1
    """Of which it has ranks; -1: none."""
    switches: list[str] = []
    """Above it, from the top of the network down, where its scheduler says so."""
    role: str = ""
    """torchrun's --role there."""
    addresses: list[str] = []
    """Of its network interfaces: NCCL names a peer by one of them."""


class NodeSuspected(_Event, frozen=True, kw_only=True, tag="node_silent"):
    """Nothing has been heard of a node for some seconds."""

    node: str
    since_s: float
    """When it was last heard."""
    is_dropped: bool = False
    """Its end of the connection was closed: nobody is there any more, or not yet again."""


class NodeContactRestored(_Event, frozen=True, kw_only=True, tag="node_heard"):
    """A node that was silent is heard again."""

    node: str


class NodeLeft(_Event, frozen=True, kw_only=True, tag="node_left"):
    """A node's guardrun has ended, and said so: nothing of the run is alive there."""

    node: str
    why: str = ""
    is_unfit: bool = False
    """It is there, but could not start its ranks."""


class NodeAbsent(_Event, frozen=True, kw_only=True, tag="node_absent"):
    """A node's guardrun was refused before it joined."""

    node: str
    slot: int = -1
    """As NodeJoined has it."""
    why: str
    exit_code: int
    """Of its guardrun."""
    is_final: bool
    """Nobody is there to start another."""


class NodesChecked(_Event, frozen=True, kw_only=True, tag="nodes_checked"):
    """Answer to CheckNodes."""

    check: int
    faulty: dict[str, str] = {}
    """Node → what is wrong with it: a clause for `NODE …`."""
    evidence: dict[str, dict[str, Any]] = {}
    """Of those: what was measured of them."""
    said: list[str] = []
    """What is odd, and stops nobody; sentences without their full stop."""
    took_s: float = 0.0


class NotIsolated(_Event, frozen=True, kw_only=True, tag="not_isolated"):
    """A node could not be put under quarantine, or may not be: a person has released it."""

    node: str
    incident: str
    why: str


class NodeReleased(_Event, frozen=True, kw_only=True, tag="node_released"):
    """A person has released a node, and nothing keeps runs from it any more."""

    node: str
    at_s: float
    who: str
    reason: str = ""


class IsolationSettled(_Event, frozen=True, kw_only=True, tag="isolation_settled"):
    """All that isolating a node takes has been done, or refused for good: nothing of it is to be tried again."""

    node: str
    incident: str
    how: str = ""
    """What keeps the node out of other runs from now on, until a person releases it: drained, under quarantine, or
    both; empty: nothing does."""


class PastPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where earlier runs in the same run folder had incidents."""

    place: str
    """As engine/state/incidents.py has it."""
    runs: int
    """In how many runs."""
    last: str = ""
    """The day of the last, UTC: `2026-11-20`."""


class HistoryLoaded(_Event, frozen=True, kw_only=True, tag="past_read"):
    """What earlier runs have left about incidents; once a supervisor, soon after its start."""

    places: list[PastPlace]
    stalls: dict[str, float] = {}
    """Stalls that ended by themselves: place (engine/detectors/hang/patience.py, short) → longest seconds."""
    resumes: str = ""
    """What the last run that learned it has learned of this very script and its arguments: opens, ignores."""


class HoldSet(_Event, frozen=True, kw_only=True, tag="hold_set"):
    """A person asked for hands off (or back on)."""

    is_held: bool
    who: str


class RestartAsked(_Event, frozen=True, kw_only=True, tag="restart_asked"):
    """A person wants the attempt ended, and the next begun, now."""

    who: str


class ExaminationAsked(_Event, frozen=True, kw_only=True, tag="examination_asked"):
    """A person has ranks examine themselves, which slows them down."""

    attempt: int
    global_ranks: list[int]
    what: str
    """As hooks/examine/examiner.py names it."""
    seconds: float
    who: str


class HandChangeAsked(_Event, frozen=True, kw_only=True, tag="hand_change_asked"):
    """A person is about to change something in ranks that train, or runs code there."""

    attempt: int
    id: str
    """By which HandChangeEnded means it."""
    global_ranks: list[int]
    verb: str
    """eval, set, scale."""
    text: str
    """The code, without secrets, or the rest of the command; its beginning."""
    seconds: float
    """How long it may hold ranks up."""
    who: str


class HandChangeEnded(_Event, frozen=True, kw_only=True, tag="hand_change_ended"):
    """What became of it."""

    attempt: int
    id: str
    outcome: str
    """done, raised, interrupted, held (code that can't be interrupted), not run, unknown."""
    step: int | None = None
    """After which it was; None: it was not, or that is not known."""
    changes: list[str] = []
    """In words: `learning rate × 0.1 (0.01 → 0.001) in AdamW`."""
    why: str = ""
    """It was not run."""


class StopRequested(_Event, frozen=True, kw_only=True, tag="stop_requested"):
    """The user or the scheduler told guardrun to end (signal number)."""

    signum: int
    node: str = ""
    """Whose guardrun; empty: not known, as in journals of before."""


class PreemptionNoticed(_Event, frozen=True, kw_only=True, tag="preemption_noticed"):
    """The scheduler has sent a signal that says: the job is about to end. The ranks go on."""

    signum: int
    is_forwarded: bool = False
    """The launcher has given it to the ranks that have a handler for it."""
    catchers: list[int] = []
    """Ranks that have one, and were not given it."""
    at_s: float = 0.0
    """When guardrun got the signal, before it gave it to any rank; 0: as this is told."""
    is_why_asked: bool = False
    """The scheduler is asked why: a SchedulerStatusChanged with its word follows."""


class SchedulerStatusChanged(_Event, frozen=True, kw_only=True, tag="scheduler_told"):
    """What the scheduler says of the job; when it changes, and after each signal."""

    end_s: float = 0.0
    """When it will end the job; 0 = unknown, or never."""
    may_requeue: bool = False
    why: str = ""
    """Why it is ending the job: preempted, time_limit, requeued, node_failed, cancelled (by a person); running: it is
    not; empty: unknown."""
    drained: dict[str, str] | None = None
    """Nodes that somebody else than guardrun has drained → why, and who; None: unknown."""


class CheckpointAsked(_Event, frozen=True, kw_only=True, tag="checkpoint_asked"):
    """Answer to AskCheckpoint, once every rank has been seen to ask should_checkpoint(), or some not to."""

    request: int
    at_call: int
    """0: a rank that trains has never asked."""


class CheckpointAnswered(_Event, frozen=True, kw_only=True, tag="checkpoint_answered"):
    """A rank has been told yes by should_checkpoint()."""

    request: int


class CheckpointCompleted(_Event, frozen=True, kw_only=True, tag="checkpoint_secured"):
    """A whole checkpoint newer than the request is there. Answers SeekCheckpoint also where there is none."""

    request: int
    checkpoint: Checkpoint | None = None


class SavedInTime(_Event, frozen=True, kw_only=True, tag="saved_in_time"):
    """What came of SaveInTime."""

    request: int
    attempt: int
    global_rank: int = -1
    """Who has saved, or was asked last; -1: nobody was asked."""
    global_ranks: list[int] = []
    """Where what they train is sharded: who have saved a part each, the lowest first."""
    checkpoint: Checkpoint | None = None
    """Whole, and of the step that all have finished."""
    took_s: float = 0.0
    """The script's own function."""
    why: str = ""
    """There is none."""
    has_begun: bool = False
    """The function was called, or nobody knows: what was written since may be anything."""
    is_unchecked: bool = False
    """Nothing shows whether the step that the checkpoint says is counted as guardrun counts."""


class Requeued(_Event, frozen=True, kw_only=True, tag="requeued"):
    """Answer to Requeue."""

    is_done: bool
    why: str = ""
    is_silent: bool = False
    """The scheduler did not answer, to the end: somebody else may ask it later."""


class Ticked(_Event, frozen=True, kw_only=True, tag="ticked"):
    """A deadline came. Journalled in place of the call of `tick`."""


Event = (
    RunOpened
    | RunContinued
    | SupervisorRestarted
    | TimeSkipped
    | AttemptStarted
    | AttemptNotStarted
    | NodeReport
    | UncaughtExceptionReported
    | RankEnded
    | RankExited
    | ExitsRead
    | AttemptStopped
    | CheckpointSaved
    | CheckpointLoaded
    | CheckpointOpened
    | CheckpointChosen
    | LookTaken
    | GcHeld
    | BatchesNamed
    | ModulesDied
    | GradientsGrew
    | BatchesLeftOut
    | DataReplayed
    | NodeFindingsReported
    | NodeJoined
    | NodeSuspected
    | NodeContactRestored
    | NodeLeft
    | NodeAbsent
    | NodesChecked
    | NotIsolated
    | IsolationSettled
    | NodeReleased
    | HooksMissing
    | HistoryLoaded
    | HoldSet
    | RestartAsked
    | ExaminationAsked
    | HandChangeAsked
    | HandChangeEnded
    | PreemptionNoticed
    | SchedulerStatusChanged
    | CheckpointAsked
    | CheckpointAnswered
    | CheckpointCompleted
    | SavedInTime
    | Requeued
    | StopRequested
    | Ticked
)
