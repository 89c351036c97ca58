"""What a device tells of its own health: ECC errors, remapped rows, retired pages, what the driver wants done."""

from __future__ import annotations

import ctypes

from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.health.gpu.xids import RECOVERY_ACTIONS
from guardrun.supervisor.sensors.gpu.nvml_calls import UNKNOWN_64, Asker, UnreadableError, sane

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
