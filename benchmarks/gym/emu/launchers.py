"""How guardrun and torchrun are started on the emulated device, and what of torch's watchdog's words is a finding.

All of torch's own times are scaled as guardrun's patience is: of the real ones its watchdog waits longer than a whole
case lasts.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gym.launchers import BY_NAME, FAILED, Launcher, guardrun_at
from benchmarks.gym.patience import played_on_devices
from guardrun.supervisor.engine.model.hang_patience import Sensitivity

NCCL_TIMEOUT_S, HEARTBEAT_S, DUMP_MS, CHECK_MS = 600, 480, 15_000, 1000
"""torch's defaults (ProcessGroupNCCL.hpp): of a collective, of the watchdog itself, for dumps, of the store's key."""
CAP_S = 1.5
"""Times the timeout: for how long a case may last under torchrun after the planting."""
RANK = r"\[(?:PG ID [^\]]*?)?Rank (?P<rank>\d+)\] "
TIMED_OUT = rf"{RANK}Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(?P<op>\w+)"
LOST_PEER = rf"{RANK}Collective WorkNCCL\(SeqNum=\d+, OpType=(?P<op>\w+)[^\n]*raised the following async exception"
STUCK = rf"{RANK}ProcessGroupNCCL's watchdog got stuck for \d+ seconds"
WORDS = {
    TIMED_OUT: "timeout in {op}",
    LOST_PEER: "lost its peer in {op}",
    STUCK: "its own watchdog got stuck",
    FAILED: "ended, exit code {code}",
}
"""Its words → what a table says of them."""


def device_environment(scale: float) -> dict[str, str]:
    """torch's times on the emulated device, scaled; hosts that wait leave the cores to others."""
    return {
        "EMU_SPIN": "0",
        "EMU_TIMEOUT_SCALE": f"{scale:g}",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": f"{max(1, round(HEARTBEAT_S * scale))}",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": f"{max(1, round(DUMP_MS * scale))}",
        "TORCH_NCCL_COORD_CHECK_MILSEC": f"{max(1, round(CHECK_MS * scale))}",
    }


def launchers_on_devices(sensitivity: Sensitivity, scale: float) -> tuple[Launcher, ...]:
    """guardrun, and torchrun without restarts: what comes after its watchdog's words is not compared."""
    environment = device_environment(scale)
    torchrun = replace(
        BY_NAME["torchrun"],
        flags=("--max-restarts=0", "--rdzv-backend=c10d"),
        environment={**BY_NAME["torchrun"].environment, **environment},
        findings=tuple(WORDS),
        hang_cap_s=CAP_S * NCCL_TIMEOUT_S * scale,
    )
    return guardrun_at(played_on_devices(sensitivity, scale), environment), torchrun
