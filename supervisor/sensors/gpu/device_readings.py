"""What NVML says of a device: what it is, how it is this second, its health, its links, who holds its memory."""

from __future__ import annotations

import ctypes
from typing import Any

from guardrun.supervisor.health.base.readings import Sample, write_holders
from guardrun.supervisor.health.gpu.xids import RECOVERY_ACTIONS
from guardrun.supervisor.sensors.gpu.mig_instances import open_instances, read_instances
from guardrun.supervisor.sensors.gpu.nvml_calls import UNKNOWN_32, UNKNOWN_64, Asker, UnreadableError, sane

# Device vitals ------------------------------------------------------------------------------------------------------
# What of a device changes by the second: heat, clocks and why they are held down, power, use, memory.


MAX_TEMPERATURE_C = 200
MAX_CLOCK_MHZ = 20_000
MAX_POWER_MW = 10_000_000
MAX_MEMORY_BYTES = 1 << 48
"""Beyond these, a reading is none."""

MEMORY_TEMPERATURE_FIELD = 82
"""NVML_FI_DEV_MEMORY_TEMP"""
CLOCK_SM = 1
CLOCK_MEM = 2
"""nvmlClockType_t"""
MEMORY_INFO_V2 = 0x02000028
"""nvmlMemory_v2: its version and the struct's size, 40 bytes."""

REASONS = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, "NvmlClocksEventReasons"; nvml.h)."""


def read_vitals(ask: Asker) -> list[Sample]:
    """One device's vital signs. Raises LostError or SessionOverError."""
    return [
        ask.number(
            "temperature_c", "nvmlDeviceGetTemperature|nvmlDeviceGetTemperatureV", 0, low=-60, high=MAX_TEMPERATURE_C
        ),
        _memory_temperature(ask),
        _reasons(ask),
        _clock(ask, "sm_clock_hz", CLOCK_SM),
        _clock(ask, "memory_clock_hz", CLOCK_MEM),
        ask.number("power_w", "nvmlDeviceGetPowerUsage", low=0, high=MAX_POWER_MW, scale=1e-3),
        _utilization(ask),
        *read_memory(ask),
    ]


def name_reasons(bits: int) -> str:
    """`hw_slowdown,hw_thermal`; bits that have no name yet as `bit_12`."""
    names = [REASONS.get(1 << bit, f"bit_{bit}") for bit in range(64) if bits >> bit & 1]
    return ",".join(names)


def _clock(ask: Asker, name: str, kind: int) -> Sample:
    return ask.number(name, "nvmlDeviceGetClockInfo", kind, low=0, high=MAX_CLOCK_MHZ, scale=1e6)


def _memory_temperature(ask: Asker) -> Sample:
    name = "memory_temperature_c"
    try:
        value = sane(ask.fields([MEMORY_TEMPERATURE_FIELD])[MEMORY_TEMPERATURE_FIELD], -60, MAX_TEMPERATURE_C)
    except (UnreadableError, KeyError) as reason:
        return ask.unknown(name, reason)
    # Devices without the sensor answer 0.
    return ask.known(name, value) if value else ask.unknown(name, "read as 0: this device has no sensor for it")


def _reasons(ask: Asker) -> Sample:
    name = "clock_reasons"
    try:
        bits = ask.call("nvmlDeviceGetCurrentClocksEventReasons|nvmlDeviceGetCurrentClocksThrottleReasons")
    except UnreadableError as reason:
        return ask.unknown(name, reason)
    return ask.known(name, name_reasons(int(bits)))


def _utilization(ask: Asker) -> Sample:
    name = "utilization_ratio"
    try:
        rates: Any = ask.call("nvmlDeviceGetUtilizationRates")
        return ask.known(name, sane(rates.gpu, 0, 100) / 100)
    except UnreadableError as reason:
        return ask.unknown(name, reason)


def read_memory(ask: Asker) -> list[Sample]:
    """Bytes in use, and in all."""
    try:
        info = _memory_info(ask)
        total = sane(info.total, 1, MAX_MEMORY_BYTES)
        used = sane(info.used, 0, total)
    except UnreadableError as reason:
        return [ask.unknown("memory_used_bytes", reason), ask.unknown("memory_total_bytes", reason)]
    return [ask.known("memory_used_bytes", used), ask.known("memory_total_bytes", total)]


def _memory_info(ask: Asker) -> Any:
    """Version 2 counts what the driver keeps for itself apart; drivers before R510 only have version 1."""
    try:
        return ask.call("nvmlDeviceGetMemoryInfo", MEMORY_INFO_V2)
    except UnreadableError:
        return ask.call("nvmlDeviceGetMemoryInfo")


# Device health ------------------------------------------------------------------------------------------------------
# What a device tells of its own health: ECC errors, remapped rows, retired pages, what the driver wants done.


CORRECTED, UNCORRECTED = 0, 1
"""nvmlMemoryErrorType_t"""
VOLATILE, AGGREGATE = 0, 1
"""nvmlEccCounterType_t: since the driver was loaded, over the device's life."""

RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"""

MULTIPLE_SINGLE_BIT, DOUBLE_BIT = 0, 1
"""nvmlPageRetirementCause_t"""
MAX_COUNT = UNKNOWN_64 - 1


def read_health(ask: Asker) -> list[Sample]:
    """One device's counters and flags. Raises LostError or SessionOverError."""
    samples = [
        _ecc(ask, "ecc_volatile_corrected", CORRECTED, VOLATILE),
        _ecc(ask, "ecc_volatile_uncorrected", UNCORRECTED, VOLATILE),
        _ecc(ask, "ecc_aggregate_corrected", CORRECTED, AGGREGATE),
        _ecc(ask, "ecc_aggregate_uncorrected", UNCORRECTED, AGGREGATE),
        _sram_threshold(ask),
        *_remapped_rows(ask),
        _flag(ask, "retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    ]
    return [*samples, _recovery_action(ask)]


def read_retired_pages(ask: Asker) -> list[Sample]:
    """Pages taken out of use for good, by cause: only devices before Ampere have them (later ones remap rows)."""
    return [
        _pages(ask, "retired_pages_corrected", MULTIPLE_SINGLE_BIT),
        _pages(ask, "retired_pages_uncorrected", DOUBLE_BIT),
    ]


def _ecc(ask: Asker, name: str, error: int, counter: int) -> Sample:
    return ask.number(name, "nvmlDeviceGetTotalEccErrors", error, counter, low=0, high=MAX_COUNT)


def _sram_threshold(ask: Asker) -> Sample:
    """NVIDIA's own line for a device whose on-chip memory is worn: replacement ("GPU Memory Error Management", RMA)."""
    name = "ecc_sram_threshold_exceeded"
    make = ask.struct("c_nvmlEccSramErrorStatus_v1_t")
    if make is None:
        return ask.unknown(name, "the installed nvidia-ml-py has no nvmlDeviceGetSramEccErrorStatus")
    status = make()
    try:
        ask.call("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    except UnreadableError as reason:
        return ask.unknown(name, reason)
    return ask.known(name, bool(status.bThresholdExceeded))


def _remapped_rows(ask: Asker) -> list[Sample]:
    names = ("remapped_rows_corrected", "remapped_rows_uncorrected", "remap_pending", "remap_failed")
    try:
        corrected, uncorrected, is_pending, has_failed = ask.call("nvmlDeviceGetRemappedRows")
        counts = [sane(corrected, 0, MAX_COUNT), sane(uncorrected, 0, MAX_COUNT)]
        values = [*counts, bool(is_pending), bool(has_failed)]
    except UnreadableError as reason:
        return [ask.unknown(name, reason) for name in names]
    return [ask.known(name, value) for name, value in zip(names, values, strict=True)]


def _flag(ask: Asker, name: str, function: str) -> Sample:
    try:
        return ask.known(name, bool(ask.call(function)))
    except UnreadableError as reason:
        return ask.unknown(name, reason)


def _pages(ask: Asker, name: str, cause: int) -> Sample:
    try:
        return ask.known(name, len(ask.call("nvmlDeviceGetRetiredPages", cause)))
    except UnreadableError as reason:
        return ask.unknown(name, reason)


def _recovery_action(ask: Asker) -> Sample:
    """What the driver wants done before the device is used on: R565 and later (Xid catalogue, Xid 154)."""
    name = "recovery_action"
    try:
        value = sane(ask.fields([RECOVERY_ACTION_FIELD])[RECOVERY_ACTION_FIELD], 0, 255)
    except (UnreadableError, KeyError) as reason:
        return ask.known(name, "gpu_reset") if ask.needs_reset else ask.unknown(name, reason)
    return ask.known(name, RECOVERY_ACTIONS.get(int(value), f"action_{int(value)}"))


# Device identity ----------------------------------------------------------------------------------------------------
# What a device is, and the limits it is held to: what hardly ever changes.


SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = 0, 1, 2, 3
"""nvmlTemperatureThresholds_t"""


def read_identity(ask: Asker, index: int, name: str, bus: str) -> list[Sample]:
    """One device's name and limits. Raises LostError or SessionOverError."""
    return [
        ask.known("index", index),
        ask.known("model", name),
        ask.known("bus", bus),
        _mode(ask, "mig_enabled", "nvmlDeviceGetMigMode"),
        read_instances(ask),
        _mode(ask, "ecc_enabled", "nvmlDeviceGetEccMode"),
        _threshold(ask, "temperature_shutdown_c", SHUTDOWN),
        _threshold(ask, "temperature_slowdown_c", SLOWDOWN),
        _threshold(ask, "temperature_max_c", GPU_MAX),
        _threshold(ask, "memory_temperature_max_c", MEMORY_MAX),
        _max_clock(ask, "sm_clock_max_hz", CLOCK_SM),
        _max_clock(ask, "memory_clock_max_hz", CLOCK_MEM),
        ask.number("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", low=1, high=MAX_POWER_MW, scale=1e-3),
        *read_retired_pages(ask),
    ]


def _mode(ask: Asker, name: str, function: str) -> Sample:
    """The first of the two that NVML answers: current, then pending."""
    try:
        return ask.known(name, bool(ask.call(function)[0]))
    except UnreadableError as reason:
        return ask.unknown(name, reason)


def _threshold(ask: Asker, name: str, kind: int) -> Sample:
    return ask.number(name, "nvmlDeviceGetTemperatureThreshold", kind, low=1, high=MAX_TEMPERATURE_C)


def _max_clock(ask: Asker, name: str, kind: int) -> Sample:
    return ask.number(name, "nvmlDeviceGetMaxClockInfo", kind, low=1, high=MAX_CLOCK_MHZ, scale=1e6)


# Device links -------------------------------------------------------------------------------------------------------
# A device's links: PCIe as it is against what it could be, its replays; NVLink's state and error counters.


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


# Device processes ---------------------------------------------------------------------------------------------------
# Which processes hold a device's memory.


COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3|nvmlDeviceGetComputeRunningProcesses_v2"
OTHERS = (
    "nvmlDeviceGetMPSComputeRunningProcesses_v3|nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3|nvmlDeviceGetGraphicsRunningProcesses_v2",
)


def read_processes(ask: Asker) -> list[Sample]:
    """`holders`: pids with the bytes each holds. In a PID namespace of its own, NVML may see none of them."""
    try:
        held = _holders(ask)
    except UnreadableError as reason:
        return [ask.unknown("holders", reason)]
    for functions in OTHERS:
        try:
            held |= _ask_processes(ask, functions)
        except UnreadableError:
            continue
    return [ask.known("holders", write_holders(held))]


def _holders(ask: Asker) -> dict[int, int | None]:
    """Of a divided GPU whose processes this user may not know, those of its instances. Raises UnreadableError."""
    try:
        return _ask_processes(ask, COMPUTE)
    except UnreadableError:
        if not (parts := open_instances(ask)):
            raise
    held: dict[int, int | None] = {}
    for part in parts:
        for pid, used in _ask_processes(part, COMPUTE).items():
            known = held.get(pid, 0)
            held[pid] = None if used is None or known is None else known + used
    return held


def _ask_processes(ask: Asker, functions: str) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for process in ask.call(functions):
        used = process.usedGpuMemory
        found[int(process.pid)] = None if used is None or used == UNKNOWN_64 else int(used)
    return found
