"""What of a device changes by the second: heat, clocks and why they are held down, power, use, memory."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.sensors.gpu.nvml_calls import Asker, UnreadableError, sane

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
        *_memory(ask),
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


def _memory(ask: Asker) -> list[Sample]:
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
