"""A device's links: PCIe as it is against what it could be, its replays; NVLink's state and error counters."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.sensors.gpu.nvml_calls import UNKNOWN_32, Asker, UnreadableError, sane

MAX_GENERATION = 16
MAX_WIDTH = 64
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS"""

LINK_COUNT_FIELD = 91
"""NVML_FI_DEV_NVLINK_LINK_COUNT"""
ERROR_FIELDS = {
    "nvlink_crc_flit_errors": 38,
    "nvlink_crc_data_errors": 45,
    "nvlink_replay_errors": 52,
    "nvlink_recovery_errors": 59,
}
"""NVML_FI_DEV_NVLINK_{CRC_FLIT,CRC_DATA,REPLAY,RECOVERY}_ERROR_COUNT_TOTAL: of all links together."""


def read_pcie(ask: Asker) -> list[Sample]:
    """One device's PCIe link. Idle devices may lower their generation to save power."""
    return [
        ask.number("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", low=1, high=MAX_GENERATION),
        ask.number("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", low=1, high=MAX_WIDTH),
        ask.number("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", low=1, high=MAX_GENERATION),
        ask.number("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", low=1, high=MAX_WIDTH),
        ask.number("pcie_replays", "nvmlDeviceGetPcieReplayCounter", low=0, high=UNKNOWN_32 - 1),
    ]


def read_nvlink(ask: Asker) -> list[Sample]:
    """One device's NVLinks: how many there are, how many are up, which are not, their errors."""
    values = ask.fields([LINK_COUNT_FIELD, *ERROR_FIELDS.values()])
    names = ("nvlink_links", "nvlink_active", "nvlink_inactive")
    try:
        count = int(sane(values[LINK_COUNT_FIELD], 0, MAX_LINKS))
        states = _states(ask, count)
    except (UnreadableError, KeyError) as reason:
        return [ask.unknown(name, reason) for name in (*names, *ERROR_FIELDS)]
    down = [link for link, is_active in states.items() if not is_active]
    samples = [
        ask.known("nvlink_links", len(states)),
        ask.known("nvlink_active", len(states) - len(down)),
        ask.known("nvlink_inactive", ",".join(map(str, down))),
    ]
    if states:
        samples += [_counter(ask, name, values.get(field)) for name, field in ERROR_FIELDS.items()]
    return samples


def _states(ask: Asker, count: int) -> dict[int, bool]:
    """Whether each link is up; links that this board does not have are left out."""
    states: dict[int, bool] = {}
    for link in range(count):
        try:
            states[link] = bool(ask.call("nvmlDeviceGetNvLinkState", link))
        except UnreadableError:
            continue
    return states


def _counter(ask: Asker, name: str, value: float | UnreadableError | None) -> Sample:
    try:
        return ask.known(name, sane(value if value is not None else UnreadableError("not answered"), 0, 2**63))
    except UnreadableError as reason:
        return ask.unknown(name, reason)
