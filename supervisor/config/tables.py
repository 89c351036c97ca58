"""What the configuration holds: a frozen struct for each table, with the defaults that work without any file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.hang_patience import Sensitivity, patience

Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]

FormatName = Literal[
    "auto",
    "huggingface",
    "megatron",
    "deepspeed",
    "kempnerforge",
    "fairseq2",
    "torchtune",
    "litgpt",
    "torchtitan",
    "composer",
    "nanochat",
    "lightning",
    "open_clip",
    "dcp",
    "sharded",
    "folder",
    "nanogpt",
    "file",
]
"""As in supervisor/checkpoints/format_table.py; a test holds the two together."""

_ENGINE = Settings()
"""The engine's own defaults: written once, there."""
MOST_JIT_S = 3600.0
"""Longer than any save: what is larger is a mistake."""
LEAST_GAP_S = 0.5
"""Between two looks, however low the floor is."""


class ConfigError(Exception):
    """The user's configuration can't be used; each problem names where it is, and what would be valid."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CheckpointTable(_Table, frozen=True, kw_only=True):
    """[checkpoint]: where checkpoints are, how they are read, and how the script is made to resume."""

    dir: str = ""
    """Empty: wherever the ranks are seen to save. Relative to the folder that guardrun was started in."""
    format: FormatName = "auto"
    """Or one adapter's."""
    resume_args: list[str] = []
    resume_env: dict[str, str] = {}
    resume_first: bool = _ENGINE.resume_first
    exact_data: bool = _ENGINE.exact_data
    """Samples that were trained on before the checkpoint are not handed out again."""
    jit_s: Annotated[float, Meta(ge=0, le=MOST_JIT_S)] = 30.0
    """How long a rank that is well may save, by save_with()'s function, before the ranks are ended; 0: not at all."""
    auto_interval: bool = _ENGINE.auto_interval
    """should_checkpoint() says yes as often as saves are worth it, by what they cost and how often training breaks."""
    snapshot_steps: Count = 100
    """What a script gives to snapshot() is copied when so many steps are done; 0: never."""
    snapshot_gb: Annotated[float, Meta(ge=0)] = 16.0
    """Memory of a node for these copies."""
    mirror: bool = False
    """What was saved is copied into memory; sharded copies are kept by the next node as well."""
    mirror_gb: Annotated[float, Meta(ge=0)] = 16.0
    """Memory of a node for what was saved; as much for another one's copies."""
    mirror_mb_s: Annotated[float, Meta(ge=0)] = 200.0
    """How fast they are copied, or sent, at most."""


class RestartTable(_Table, frozen=True, kw_only=True):
    """[restart]: how often the run is restarted, and how ranks are stopped before it."""

    max_restarts: Count = _ENGINE.max_restarts
    max_no_progress: Count = _ENGINE.max_no_progress
    stop_grace_s: Seconds = _ENGINE.stop_grace_s
    """Between SIGTERM and SIGKILL."""
    gpu_memory_s: Seconds = _ENGINE.gpu_memory_s
    """Until the ended ranks' memory of GPUs is free, where NVML tells of it; 0: the next attempt waits for none."""


class LauncherTable(_Table, frozen=True, kw_only=True):
    """[launcher]: what starts the ranks, and what becomes of their output and leftovers."""

    agent: Literal["guardrun", "torchrun"] = "guardrun"
    linger_s: Seconds = 60.0
    """What training left running when it ended well (an upload) is given so long; 0: it is told to end at once."""
    keep_stderr: bool = True
    """Keep the end of what ranks write to a stderr that is no file, which a process between passes on."""
    warm: Literal["auto"] | bool = False
    """Ranks of the next attempt are forked from a process that has imported what the script imports."""
    warm_free_mb: Count = 4096
    """With less memory left there is none."""


class HangTable(_Table, frozen=True, kw_only=True):
    """[hang]: how long silence must last until it is reported, and until something is done about it."""

    floor_s: Seconds = _ENGINE.floor_s
    hard_timeout_s: Seconds = _ENGINE.hard_timeout_s
    """0 = never."""
    sensitivity: Sensitivity = "normal"
    """A column of engine/model/hang_patience.py."""
    tell_s: PositiveSeconds = 15.0
    scale: PositiveSeconds = 1.0
    """Of every time in that column but those with proof: drills need not wait for minutes."""

    def settings(self) -> dict[str, Any]:
        """What of it the engine decides by. Whoever has lowered the floor is looked for sooner as well."""
        return {
            "floor_s": self.floor_s,
            "hard_timeout_s": self.hard_timeout_s,
            "tell_s": self.tell_s,
            "look_gap_s": min(_ENGINE.look_gap_s, max(self.floor_s / 2, LEAST_GAP_S)),
            "look_every_s": min(_ENGINE.look_every_s, max(self.floor_s, LEAST_GAP_S)),
            "is_sure": self.sensitivity != "eager",
            **patience(self.sensitivity, self.scale),
        }


class PolicyTable(_Table, frozen=True, kw_only=True):
    """[policy]: what may be done about an incident."""

    act: bool = _ENGINE.act
    responses: dict[str, str] = {}
    """What follows from a finding of a node, by cause or finer key (health/base/findings.py): note, restart,
    isolate."""


class GcTable(_Table, frozen=True, kw_only=True):
    """[gc]: when Python's garbage collector runs in the ranks."""

    policy: Literal["off", "freeze"] = "off"
    """freeze: collect and freeze after the warm-up, then collect at the same step on all ranks
    (hooks/patches/garbage_collector.py)."""
    every_steps: Annotated[int, Meta(ge=1)] = 100
    """What is frozen costs nothing more, so that a collection is cheap; and cycles may hold a device's memory."""


class SlowdownTable(_Table, frozen=True, kw_only=True):
    """[slowdown]: how ranks are compared to find a straggler."""

    window_s: Annotated[float, Meta(ge=3)] = _ENGINE.window_s
    """What ranks' steps go to is compared over windows of this length: longer ones are surer, and later."""
    device_timing: bool = False
    """Waits for other ranks are timed on the device, too (hooks/patches/device_timing.py): for stragglers over NCCL."""


class GuardsTable(_Table, frozen=True, kw_only=True):
    """[guards]: what is done about training that is alive and wrong."""

    numeric: Literal["watch", "skip", "rollback"] = "watch"
    """skip: a step whose gradients are not finite is left out on all ranks (hooks/guards/step_guard.py)."""
    detect: Literal["metrics", "deep"] = "metrics"
    """deep: which module's output or gradient was the first that is not finite (hooks/guards/nonfinite_origin.py), and
    which modules have died (zero_counts.py), or have gradients that grow (gradient_groups.py)."""
    skip_sigmas: Annotated[float, Meta(ge=0)] = 0.0
    """skip: so is one whose gradient norm is so many deviations above the last ones (norm_window.py); 0: none is."""
    max_rollbacks: Count = _ENGINE.max_rollbacks
    """Of a run. rollback: where the loss is NaN, back to a checkpoint from before
    (engine/recovery/voluntary/rollback.py)."""
    divergence: Literal["watch", "stop"] = "watch"
    """stop: replicas that are not equal end the run."""
    memory: Literal["watch", "save"] = "watch"
    """save: before memory runs out the ranks are asked to save, and begun anew from that
    (engine/recovery/memory_save.py)."""
    check_every: Count = _ENGINE.check_every
    """Steps between two checks that replicas are equal (hooks/checksums); 0: none."""


class LeaksTable(_Table, frozen=True, kw_only=True):
    """[leaks]: how what a rank holds is watched for growth without end."""

    files_window_s: Annotated[float, Meta(ge=1)] = _ENGINE.files_window_s
    """The shortest windows in which open files are compared: five in a row must show growth. Drills need not wait."""
    memory_window_s: Annotated[float, Meta(ge=1)] = _ENGINE.memory_window_s
    """The shortest windows in which memory is compared, likewise, of hosts and of devices."""


class NodeTable(_Table, frozen=True, kw_only=True):
    """[node]: where a node's records are kept, and whose jobs may quarantine it."""

    state_dir: str = ""
    """What guardrun keeps of this node: quarantine, bandwidths. Empty: /var/lib/guardrun where it may be written, else
    the user's state folder."""
    shared_dir: str = ""
    """A folder that all nodes of the cluster see: quarantine is kept there, too."""
    trust_jobs: bool | list[str] = False
    """Whose jobs may have the agent isolate the node for everybody: nobody's, everybody's, or those of these users and
    groups (primary or supplementary)."""


class PreflightTable(_Table, frozen=True, kw_only=True):
    """[preflight]: how thoroughly the node is checked before a run."""

    level: Literal["off", "quick", "full"] = "quick"
    """What is looked at before the first attempt."""


class MetricsTable(_Table, frozen=True, kw_only=True):
    """[metrics]: where Prometheus can scrape a run's supervisor and the node agent."""

    listen: str = ""
    """Where a run's supervisor serves /metrics: PORT (on loopback) or HOST:PORT; port 0: a free one; empty: nowhere."""
    node_listen: str = "127.0.0.1:19470"
    """Likewise, the node agent."""


class FleetTable(_Table, frozen=True, kw_only=True):
    """[fleet]: how the nodes of a job find each other, and when a silent one is lost."""

    spares: Count = 0
    """Nodes beyond those that train: they wait, and take the place of one that is left out."""
    join: str = ""
    """The file by which the other nodes find the head; empty: one in the folder of runs; munge: none, nodes that share
    no folder are introduced by munge."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """On which the head listens for the other nodes (with munge: introduces itself); 0: any (one worked out from the
    job's id)."""
    munge_socket: str = ""
    """munged's, where it is not the usual one."""
    lost_s: PositiveSeconds = _ENGINE.lost_s
    term_s: PositiveSeconds = _ENGINE.term_s
    isolate_lost_s: Seconds = 90.0
    last_call_s: Seconds = _ENGINE.last_call_s
    join_timeout_s: PositiveSeconds = _ENGINE.join_timeout_s
    head_gone_s: PositiveSeconds = _ENGINE.head_gone_s


class PreemptionTable(_Table, frozen=True, kw_only=True):
    """[preemption]: which signals announce the job's end, what the ranks then do, and whether it is requeued."""

    signals: list[str] = msgspec.field(default_factory=lambda: ["USR1", "USR2"])
    """That say that the job is about to end: #SBATCH --signal sends one."""
    sigterm: Literal["slurm", "always", "never"] = "slurm"
    """Where SIGTERM says so, too."""
    forward: bool = False
    """Ranks that have a handler for such a signal are given it, instead of being asked to save."""
    grace_s: PositiveSeconds = _ENGINE.grace_s
    term_grace_s: PositiveSeconds = _ENGINE.term_grace_s
    save_before_end_s: Seconds = _ENGINE.save_before_end_s
    """0 = a time limit is not looked at."""
    requeue: Literal["auto", "time_limit", "always", "never"] = "auto"
    """auto: a batch job that may be requeued, of a run that has a name, but not beyond its time limit; time_limit:
    that, too; always: whatever ends it."""


class LiveTable(_Table, frozen=True, kw_only=True):
    """[live]: what people may do to ranks that train."""

    eval: bool = True
    """`guardctl eval` runs code in them, for the run's own user on the rank's own node; false: nobody can, from the
    run's start to its end."""


class NotifyTable(_Table, frozen=True, kw_only=True):
    """[notify]: the program that is run for each incident; an empty command runs none."""

    command: list[str] = []


TABLES: dict[str, type[_Table]] = {
    "checkpoint": CheckpointTable,
    "restart": RestartTable,
    "launcher": LauncherTable,
    "hang": HangTable,
    "policy": PolicyTable,
    "gc": GcTable,
    "slowdown": SlowdownTable,
    "guards": GuardsTable,
    "leaks": LeaksTable,
    "node": NodeTable,
    "preflight": PreflightTable,
    "metrics": MetricsTable,
    "fleet": FleetTable,
    "preemption": PreemptionTable,
    "live": LiveTable,
    "notify": NotifyTable,
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The effective configuration: all layers, the later one winning."""

    checkpoint: CheckpointTable = CheckpointTable()
    restart: RestartTable = RestartTable()
    launcher: LauncherTable = LauncherTable()
    hang: HangTable = HangTable()
    policy: PolicyTable = PolicyTable()
    gc: GcTable = GcTable()
    slowdown: SlowdownTable = SlowdownTable()
    guards: GuardsTable = GuardsTable()
    leaks: LeaksTable = LeaksTable()
    node: NodeTable = NodeTable()
    preflight: PreflightTable = PreflightTable()
    metrics: MetricsTable = MetricsTable()
    fleet: FleetTable = FleetTable()
    preemption: PreemptionTable = PreemptionTable()
    live: LiveTable = LiveTable()
    notify: NotifyTable = NotifyTable()
    origins: dict[str, str] = {}
    """`table.key` → `default`, a file's path, an environment variable's name or a flag."""
    warnings: list[str] = []
    """What the user should be told once; nothing in here stops a run."""

    def settings(self) -> Settings:
        """The part that the engine decides by."""
        return Settings(
            **msgspec.structs.asdict(self.restart),
            **self.hang.settings(),
            lost_s=self.fleet.lost_s,
            term_s=self.fleet.term_s,
            isolate_lost_s=self.fleet.isolate_lost_s,
            last_call_s=self.fleet.last_call_s,
            join_timeout_s=self.fleet.join_timeout_s,
            head_gone_s=self.fleet.head_gone_s,
            act=self.policy.act,
            responses=self.policy.responses,
            resume_first=self.checkpoint.resume_first,
            exact_data=self.checkpoint.exact_data,
            jit_s=self.checkpoint.jit_s,
            auto_interval=self.checkpoint.auto_interval,
            resumes=bool(self.checkpoint.resume_args or self.checkpoint.resume_env),
            restarts_anyway=self.origins.get("restart.max_restarts") == "--max-restarts",
            grace_s=self.preemption.grace_s,
            term_grace_s=self.preemption.term_grace_s,
            save_before_end_s=self.preemption.save_before_end_s,
            requeue="auto" if self.preemption.requeue == "time_limit" else self.preemption.requeue,
            goes_past_limit=self.preemption.requeue in ("time_limit", "always"),
            gc_policy=self.gc.policy,
            check_every=self.guards.check_every,
            check_nodes=self.preflight.level,
            window_s=self.slowdown.window_s,
            rolls_back=self.guards.numeric == "rollback",
            max_rollbacks=self.guards.max_rollbacks,
            stops_diverged=self.guards.divergence == "stop",
            saves_before_oom=self.guards.memory == "save",
            **msgspec.structs.asdict(self.leaks),
            is_torchrun_agent=self.launcher.agent == "torchrun",
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The values alone, table by table."""
        return {name: msgspec.to_builtins(getattr(self, name)) for name in TABLES}
