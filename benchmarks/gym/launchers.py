"""How each launcher is started, and what of what it says counts as a finding."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gym.case import Case, Chain, Doubt, Fault
from benchmarks.gym.decoys import LONGEST_S

ROOT = Path(__file__).resolve().parent.parent.parent
GYM = ROOT / ".gym"

HEARTBEAT_S = 45
"""ft_launcher's documentation: at least the longest time between steps, evaluations and saves among them. It is
LONGEST_S here, and somewhat more."""
assert HEARTBEAT_S > LONGEST_S
FIRST_HEARTBEAT_S = 60
"""Likewise: long enough for the workload to start."""
RESTARTS = 3

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
        if self.name != "guardrun":
            return 60.0 if case.kind == "crash" and case.recovers else self.hang_cap_s
        if case.every_attempt and case.kind != "crash":
            return 4 * case.doubt.limit_s + 60.0
        return {Doubt.CRASH: 60.0, Doubt.PROOF: 75.0, Doubt.IDLE: 90.0, Doubt.SILENT: 120.0, Doubt.SPINNING: 170.0}[
            case.doubt
        ]


def beside_python(name: str) -> Path:
    return Path(sys.executable).with_name(name)


OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For torchrun's restarts: without it, and with a static rendezvous even so, ranks meet the addresses of the attempt
before in its store, and most restarts over gloo fail. This way they work."""
LAUNCHERS = (
    Launcher("guardrun", beside_python("guardrun"), ("--guard-hang-sensitivity=eager",), "--master-port={}"),
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
