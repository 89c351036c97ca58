"""What the gym plays: faults that must be found, decoys that must be left alone. Records only; nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Workload(str, Enum):
    """What is trained; scripts/train.py has each."""

    DDP = "ddp"
    FSDP = "fsdp"
    GROUPS = "groups"
    """Four ranks in two tensor-parallel and two data-parallel groups."""
    LOADER = "loader"
    """DDP, fed by DataLoader workers."""

    # On the emulated device (tests/emu), from here on; scripts/emu/train.py has each.
    EMU_DDP = "emu ddp"
    EMU_FSDP = "emu fsdp"
    EMU_PIPELINE = "emu pipeline"
    """Three stages; activations and gradients in batches of sends and receives."""
    EMU_CONTEXT = "emu context"
    """Context parallel: three ranks hand keys and values round a ring of sends and receives."""
    EMU_UNEVEN = "emu uneven"
    """all_gather of parts of unequal sizes, and reductions in one batch."""
    EMU_MIXED = "emu mixed"
    """DDP in a group of two backends, `cpu:gloo,cuda:nccl`: metrics and asynchronous checkpoints go over gloo."""
    EMU_GRAPH = "emu graph"
    """A step is captured once and replayed, as a CUDA graph: no call of torch.distributed, and no record."""

    @property
    def is_emu(self) -> bool:
        """Whether it trains on the emulated device."""
        return self.value.startswith("emu ")

    @property
    def ranks(self) -> int:
        """How many, where a case does not say otherwise."""
        if self in (Workload.EMU_PIPELINE, Workload.EMU_CONTEXT, Workload.EMU_GRAPH):
            return 3
        return 4 if self is Workload.GROUPS else 2


class Doubt(Enum):
    """How sure a fault lets one be: what guardrun's policy knows it by, and so when it acts (patience.py)."""

    CRASH = ("a rank that ends", "", 2.0)
    """From its end to its cause; the others are stopped with it."""
    PASSING = ("a pause that is an event of its own, and ends by itself", "", 10.0)
    """From the last progress on, as for all below. Nothing is to be done about it."""
    STOPPED = ("a process stopped by a signal", "stopped_patience_s", 20.0)
    MISMATCH = ("calls that can never meet, or a ring of waits", "mismatch_patience_s", 20.0)
    STANDSTILL = ("a standstill that nothing is left to end", "proof_patience_s", 20.0)
    ASLEEP = ("a rank asleep in one call", "idle_patience_s", 0.0)
    """While others wait for it, as in all below but the last."""
    DATA = ("a silent source of data", "data_patience_s", 0.0)
    GIL = ("a held GIL", "gil_patience_s", 0.0)
    SPINNING = ("a rank that runs in the same few lines", "spin_patience_s", 0.0)
    COMPUTING = ("native code that computes", "native_patience_s", 0.0)
    UNMET = ("calls that seem not to meet", "data_patience_s", 0.0)
    DEVICE = ("issued by all, completed by none", "spin_patience_s", 0.0)
    """A device or a link. As patient as torch's own timeout at least."""
    ALONE = ("nobody waits for it", "", 0.0)
    """All ranks are idle in their own code: that is a pause, for all that can be seen."""

    def __init__(self, label: str, setting: str, limit_s: float) -> None:
        self.label = label
        self.setting = setting
        """The field of the engine's Settings that takes its patience; empty: none does."""
        self.limit_s = limit_s
        """Where there is no doubt: within how many seconds it must be told and acted on; with proof that is to be
        noticed, looked at twice, and the proof's own seconds. 0: patience decides."""

    @property
    def needs_patience(self) -> bool:
        """Time alone tells it from a job that is at work elsewhere."""
        return not self.limit_s


@dataclass(frozen=True)
class Case:
    """What faults and decoys have in common."""

    name: str
    """scripts/planted.py knows it by this; so does the comment that marks its line."""
    workload: Workload
    what: str
    """For the table."""
    ranks: int = 0
    """World size; 0: the workload's own."""
    planted_in: tuple[int, ...] = (1,)
    """The ranks in which the script plants it."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of its own."""
    steps_after: int = 0
    """How long the script trains on after the step of the planting; 0: as long as others."""

    @property
    def world_size(self) -> int:
        return self.ranks or self.workload.ranks


@dataclass(frozen=True)
class Fault(Case):
    """Something that stops training, and what a perfect verdict says of it."""

    kind: str = "hang"
    causes: tuple[str, ...] = ()
    """Any of these is right."""
    culprits: tuple[int, ...] | None = None
    """Those to name; None: the ranks in which it was planted."""
    may_name_nobody: bool = False
    """It cannot be told who of them is wrong: an empty list is right as well."""
    doubt: Doubt = Doubt.ASLEEP
    has_line: bool = True
    """The evidence must name the line that the script marks. Not so where a signal from outside ends a rank."""
    recovers: bool = True
    """A restart helps. False: it would only happen again, and giving up is right."""
    ends_by_itself: bool = False
    """Training goes on in the same attempt: nothing must be restarted."""
    every_attempt: bool = False
    is_only_told: bool = False
    """By its policy guardrun reports it, and never ends it."""

    @property
    def to_name(self) -> tuple[int, ...]:
        return self.planted_in if self.culprits is None else self.culprits


@dataclass(frozen=True)
class Decoy(Case):
    """Something that looks like a hang and is none."""

    seconds: float = 20.0
    """How long it keeps all ranks from training; within each step where it comes in many."""
    planted_in: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Chain(Decoy):
    """Decoys one after another in one run, round after round."""

    links: tuple[Decoy, ...] = ()
    rounds: int = 1
    steps_apart: int = 60

    @property
    def lasts_s(self) -> float:
        """What the decoys alone take."""
        return self.rounds * sum(link.seconds for link in self.links)
