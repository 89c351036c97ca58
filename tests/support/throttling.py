"""The story of a GPU that throttles while a run trains on it, as far as it is the same whoever tells of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.sensors.nvml_stub import NvmlStub
from tests.support.waiting import wait_until

CAUSE = "thermal_throttle"
CONFIG = f'[policy.responses]\n{CAUSE} = "isolate"\n'
TRAINED_S = 45.0
"""So long it must have trained for its usual pace to be known: ten seconds of warm-up, three windows of ten."""
FELT_S = 75.0
"""Within this long the incident is told: three windows of ten seconds on this side, too."""
REFUSED = 69


def throttle(
    stub: NvmlStub, slow: AbstractContextManager[object], find: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Have GPU 1 throttle, and training with it, until that is an incident, and then no more.

    slow: rank 1 is slow meanwhile; find: the incident, empty until there is one. Answers it as it is when it is over.
    """
    time.sleep(TRAINED_S)  # the time that it takes to know a run
    stub.set(gpu=1, reasons="hw_slowdown,hw_thermal", temperature=91, sm_clock=990)
    with slow:
        wait_until(find, FELT_S, "the incident", every_s=0.2)
        stub.set(gpu=1, reasons="", temperature=60, sm_clock=1980)

    def over() -> dict[str, Any]:
        return found if (found := find()).get("recovered") else {}

    return wait_until(over, 60, "its end", every_s=0.2)


def give_gpus(stub: NvmlStub, pids: Sequence[int]) -> None:
    """Each rank holds memory of the GPU of its number. pids: as the driver would name them."""
    for gpu, pid in enumerate(pids):
        stub.set(gpu=gpu, processes=f"{pid}=512000000")


def check_incident(found: dict[str, Any], run_dir: Path) -> None:
    """Who throttled, what was decided, and the page."""
    assert (found["kind"], found["action"]) == ("slowdown", "isolate_node")
    assert [(culprit["rank"], culprit["gpu"]) for culprit in found["culprits"]] == [(1, 1)]
    page = (run_dir / "incidents" / f"{found['id']}-{CAUSE}" / "report.html").read_text()
    for words in ("Temperature of gpu:", "SM clock of gpu:", "990 MHz to 1,980 MHz"):
        assert words in page
