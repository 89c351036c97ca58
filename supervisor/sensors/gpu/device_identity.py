"""What a device is, and the limits it is held to: what hardly ever changes."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.sensors.gpu.device_health import read_retired_pages
from guardrun.supervisor.sensors.gpu.device_vitals import (
    CLOCK_MEM,
    CLOCK_SM,
    MAX_CLOCK_MHZ,
    MAX_POWER_MW,
    MAX_TEMPERATURE_C,
)
from guardrun.supervisor.sensors.gpu.nvml_calls import Asker, UnreadableError

SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = 0, 1, 2, 3
"""nvmlTemperatureThresholds_t"""


def read_identity(ask: Asker, index: int, name: str, bus: str) -> list[Sample]:
    """One device's name and limits. Raises LostError or SessionOverError."""
    return [
        ask.known("index", index),
        ask.known("model", name),
        ask.known("bus", bus),
        _mode(ask, "mig_enabled", "nvmlDeviceGetMigMode"),
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
