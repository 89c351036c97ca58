"""How each launcher is started, and what of what it says counts as a finding."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gym.case import Case, Chain, Fault
from benchmarks.gym.decoys import LONGEST_S
from benchmarks.gym.observation import Told, told_by_stall
from benchmarks.gym.patience import Patience, played_at
from guardrun.supervisor.engine.detectors.hang.patience import SECOND_STOP

ROOT = Path(__file__).resolve().parent.parent.parent
GYM = ROOT / ".gym"

HEARTBEAT_S = 45
"""ft_launcher's documentation: at least the longest time between steps, evaluations and saves among them. It is
LONGEST_S here, and somewhat more."""
assert HEARTBEAT_S > LONGEST_S
FIRST_HEARTBEAT_S = 60
"""Likewise: long enough for the workload to start."""
RESTARTS = 3
SPARE_S = 45.0
"""After the time at which guardrun must have acted, before the gym ends a run that it has not."""
RESTART_S = 15.0
"""For an attempt to get to where the one before it stopped, on a busy machine."""
STOPS = 4
"""At one and the same step before it is given up: the first, and restart.max_no_progress more."""

FAILED = r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)"
"""torchrun's and ft_launcher's line on the first rank that ended badly."""
NO_HEARTBEAT = r"RankMonServer\d+@\S+?:(?P<rank>\d+)\] Did not get (?:initial|subsequent) heartbeat"


@dataclass(frozen=True)
class Launcher:
    """One of those compared."""

    name: str
    program: Path
    flags: tuple[str, ...]
    """Beside --nproc-per-node, and the port."""
    port_flag: str
    environment: dict[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    """Regular expressions for its output; the first to match says when it noticed, `rank` whom it blames."""
    hang_cap_s: float = 60.0
    """How long after the planting a case may last where no rank ends by itself; then it is "not found within"."""
    gives_heartbeats: bool = False
    """The script's copy gets the lines that it wants."""
    patience: Patience | None = None
    """guardrun's."""

    @property
    def is_there(self) -> bool:
        return self.program.exists()

    def command(self, case: Case, port: int, script: Path) -> list[str]:
        ranks = f"--nproc-per-node={case.world_size}"
        return [str(self.program), ranks, self.port_flag.format(port), *self.flags, str(script)]

    def cap_s(self, case: Case) -> float:
        """Seconds after the planting after which the gym ends a run."""
        if isinstance(case, Chain):
            return 2 * case.lasts_s
        if not isinstance(case, Fault):
            return 150.0
        if self.patience is None:
            return 60.0 if case.kind == "crash" and case.recovers else self.hang_cap_s
        return limit_s(case, self.patience) + SPARE_S


def limit_s(fault: Fault, patience: Patience) -> float:
    """After how long guardrun must have acted for the last time."""
    own_s = patience.acts_within_s(fault.doubt)
    if not fault.every_attempt or fault.kind == "crash":
        return own_s
    if patience.sensitivity == "eager":
        return STOPS * (own_s + RESTART_S)
    # The same place again: SECOND_STOP times the patience, then the hard limit
    # (supervisor/engine/detectors/hang/patience.py).
    hard_s = patience.hard_timeout_s
    return own_s + min(SECOND_STOP * own_s, hard_s) + (STOPS - 2) * hard_s + STOPS * RESTART_S


def beside_python(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def guardrun_at(patience: Patience, environment: dict[str, str] | None = None) -> Launcher:
    program = beside_python("guardrun")
    return Launcher(
        "guardrun", program, patience.flags(), "--master-port={}", environment=environment or {}, patience=patience
    )


def ask_stall(runs: Path) -> list[Told]:
    """What guardrun has reported of a run, and not acted on; empty where that is nothing, or it does not answer."""
    command = [str(beside_python("guardctl")), "status", "--json", "--guard-dir", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    stall = json.loads(done.stdout).get("stall") if done.returncode == 0 else None
    return [told_by_stall(stall, time.time())] if stall else []


OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For torchrun's restarts: without it, and with a static rendezvous even so, ranks meet the addresses of the attempt
before in its store, and most restarts over gloo fail. This way they work."""
LAUNCHERS = (
    guardrun_at(played_at("normal", 0.1)),
    Launcher(
        "torchrun",
        beside_python("torchrun"),
        (f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d"),
        "--rdzv-endpoint=127.0.0.1:{}",
        environment=OWN_STORE,
        findings=(FAILED,),
    ),
    Launcher(
        "ft_launcher",
        GYM / "venv" / "bin" / "ft_launcher",
        (
            f"--max-restarts={RESTARTS}",
            "--rdzv-backend=c10d",
            f"--ft-initial-rank-heartbeat-timeout={FIRST_HEARTBEAT_S}",
            f"--ft-rank-heartbeat-timeout={HEARTBEAT_S}",
            "--ft-enable-nic-monitor=False",
        ),
        "--rdzv-endpoint=127.0.0.1:{}",
        environment=OWN_STORE,
        findings=(NO_HEARTBEAT, FAILED),
        hang_cap_s=80.0,
        gives_heartbeats=True,
    ),
)
BY_NAME = {launcher.name: launcher for launcher in LAUNCHERS}

_HEARTBEATS = re.compile(r"^( *)# \[heartbeats\] (.*)$", re.MULTILINE)


def with_heartbeats(script: str) -> str:
    """The script with ft_launcher's lines in it; each line keeps its number. Raises ValueError where it has none."""
    text, count = _HEARTBEATS.subn(r"\1\2", script)
    if not count:
        raise ValueError("the script has no [heartbeats] lines")
    return text
