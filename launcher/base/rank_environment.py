"""What guardrun sets in the environment of the ranks, unless the user has: one table, each with its reason.

docs/environment.md says the same for people; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DEBUG = "TORCH_DISTRIBUTED_DEBUG"

NCCL_MARGIN_S = 300.0
"""NCCL's watchdog speaks this much later than hang.hard_timeout_s: guardrun is to speak first."""

FLIGHT_RECORDER_ENTRIES = 2000
"""torch 2.13's own default; 2.6 and older have the recorder off."""

RENAMED_IN = (2, 7)
"""From here on the flight recorder is on by default, 2000 entries, under any name."""

DUMP_FOLDER = "nccl"
"""Inside the run directory."""


@dataclass(frozen=True)
class Subject:
    """What the values depend on."""

    hard_timeout_s: float
    run_dir: Path
    attempt: int | None
    """None: torchrun's agent numbers the attempts."""
    is_torchrun_agent: bool = False
    torch: tuple[int, int] = (2, 13)
    """The installed torch's version."""

    @property
    def dump_prefix(self) -> str:
        """torch appends the rank."""
        name = "rank-" if self.attempt is None else f"attempt-{self.attempt}-rank-"
        return str(self.run_dir / DUMP_FOLDER / name)


@dataclass(frozen=True)
class Default:
    """One variable, or several names of one."""

    names: tuple[str, ...]
    """Aliases: where the user has set one of them, none is touched."""
    value: Callable[[Subject], str | None]
    """None: not set."""
    shown: str
    """The value as the documentation has it."""
    reason: str
    old_names: tuple[str, ...] = ()
    """Aliases that only a torch older than RENAMED_IN is given: newer ones warn about them in every rank."""


def _nccl_timeout(subject: Subject) -> str | None:
    return f"{subject.hard_timeout_s + NCCL_MARGIN_S:g}" if subject.hard_timeout_s > 0 else None


DEFAULTS: tuple[Default, ...] = (
    Default(
        ("NCCL_TIMEOUT",),
        _nccl_timeout,
        "`hang.hard_timeout_s` + 300 (unset where that is 0)",
        "The timeout, in seconds, of process groups that name none. Neither torch nor NCCL reads it: the hooks make it "
        "true. Later than the hard limit, so that guardrun explains a hang before a watchdog aborts the rank. Over "
        "NCCL and other devices torch's own ten minutes stand until guardrun has read the flight recorders of all "
        "ranks. A value of yours counts everywhere.",
    ),
    Default(
        (DEBUG,),
        lambda subject: "INFO",
        "`INFO`",
        "Process groups, and DDP's unused parameters, are named in errors. Costs nothing visible; DETAIL would make "
        "small collectives two to three times slower: it is set for the one attempt that follows on a mismatch of "
        "collectives, unless calls were seen whose sizes may differ from rank to rank.",
    ),
    Default(
        ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE",),
        lambda subject: "1" if subject.is_torchrun_agent else None,
        "`1`, where torchrun's agent runs",
        "After a restart by torchrun's agent the ranks otherwise meet the last attempt's keys in the agent's store, "
        "and most restarts hang. With it, an agent that rendezvouses by c10d tells them to make one of their own "
        "(`TORCHELASTIC_USE_AGENT_STORE=False`). guardrun's own attempts have a store each.",
    ),
    Default(
        ("TORCH_FR_BUFFER_SIZE",),
        lambda subject: str(FLIGHT_RECORDER_ENTRIES),
        f"`{FLIGHT_RECORDER_ENTRIES}`",
        "Entries of the flight recorder, the collectives that each rank keeps in memory. torch 2.6 keeps none by "
        "default and knows only the older name; later ones keep as many, and warn about that name.",
        old_names=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    ),
    Default(
        ("TORCH_NCCL_DUMP_ON_TIMEOUT",),
        lambda subject: "1",
        "`1`",
        "The flight recorder is written out when NCCL's watchdog sees a timeout; torch 2.6 has this off.",
    ),
    Default(
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        lambda subject: subject.dump_prefix,
        f"`RUN/{DUMP_FOLDER}/attempt-ATTEMPT-rank-`",
        "Where it is written, the rank appended: with the rest of the run's evidence, not in /tmp.",
    ),
)


def rank_defaults(subject: Subject, environ: Mapping[str, str]) -> dict[str, str]:
    """The defaults that apply: those whose names the user has not set."""
    chosen: dict[str, str] = {}
    for default in DEFAULTS:
        value = default.value(subject)
        if value is None or any(name in environ for name in (*default.names, *default.old_names)):
            continue
        names = (*default.names, *default.old_names) if subject.torch < RENAMED_IN else default.names
        chosen.update(dict.fromkeys(names, value))
    return chosen


def render_table() -> str:
    """The table of docs/environment.md."""
    lines = ["| variable | value | why |", "|---|---|---|"]
    for default in DEFAULTS:
        names = ", ".join(
            [f"`{name}`" for name in default.names]
            + [f"`{name}` (torch before {RENAMED_IN[0]}.{RENAMED_IN[1]})" for name in default.old_names]
        )
        lines.append(f"| {names} | {default.shown} | {default.reason} |")
    return "\n".join(lines) + "\n"
