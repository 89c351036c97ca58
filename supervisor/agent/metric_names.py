"""What of the sensors' samples is shown to Prometheus, under which name, with which labels.

Names keep Prometheus's conventions (prometheus.io/docs/practices/naming): a prefix, the subject's kind, base units,
`_total` for what only grows. What is text, or says nothing over time, is not shown.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "guardrun_node_"


class Shown(NamedTuple):
    """How one kind of sample is shown."""

    metric: str
    """Without PREFIX; a counter's without `_total`."""
    help: str
    is_counter: bool = False
    scale: float = 1.0


LABELS: dict[str, tuple[str, ...]] = {
    "gpu": ("gpu", "uuid"),
    "disk": ("device",),
    "mount": ("mountpoint",),
    "net": ("interface",),
    "ib": ("port",),
    "cgroup": ("cgroup",),
    "core": ("core",),
    "pressure": ("resource",),
}
"""Of a kind of subject; kinds that there is one of have none. `gpu` is the driver's number."""


def _gauge(metric: str, help: str, scale: float = 1.0) -> Shown:
    return Shown(metric, help, scale=scale)


def _count(metric: str, help: str, scale: float = 1.0) -> Shown:
    return Shown(metric, help, is_counter=True, scale=scale)


_GPU = {
    "temperature_c": _gauge("gpu_temperature_celsius", "Temperature of the device."),
    "memory_temperature_c": _gauge("gpu_memory_temperature_celsius", "Temperature of the device's memory."),
    "temperature_slowdown_c": _gauge("gpu_slowdown_temperature_celsius", "Where the device slows itself down."),
    "temperature_shutdown_c": _gauge("gpu_shutdown_temperature_celsius", "Where the device turns itself off."),
    "sm_clock_hz": _gauge("gpu_sm_clock_hertz", "Clock of the multiprocessors."),
    "sm_clock_max_hz": _gauge("gpu_sm_clock_max_hertz", "Their highest clock."),
    "memory_clock_hz": _gauge("gpu_memory_clock_hertz", "Clock of the memory."),
    "power_w": _gauge("gpu_power_watts", "Power drawn."),
    "power_limit_w": _gauge("gpu_power_limit_watts", "Power that may be drawn."),
    "utilization_ratio": _gauge("gpu_utilization_ratio", "Share of time in which a kernel ran."),
    "memory_used_bytes": _gauge("gpu_memory_used_bytes", "Memory in use."),
    "memory_total_bytes": _gauge("gpu_memory_bytes", "Memory that there is."),
    "is_lost": _gauge("gpu_lost", "1: the device does not answer any more."),
    "ecc_volatile_corrected": _count("gpu_ecc_corrected_errors", "Memory errors corrected since the driver's start."),
    "ecc_volatile_uncorrected": _count("gpu_ecc_uncorrected_errors", "Memory errors not corrected, likewise."),
    "ecc_aggregate_corrected": _count("gpu_ecc_lifetime_corrected_errors", "Memory errors corrected in its life."),
    "ecc_aggregate_uncorrected": _count("gpu_ecc_lifetime_uncorrected_errors", "Not corrected, in its life."),
    "ecc_sram_threshold_exceeded": _gauge("gpu_ecc_sram_threshold_exceeded", "1: on-chip memory is worn."),
    "remapped_rows_corrected": _count("gpu_remapped_rows_corrected", "Rows remapped for corrected errors."),
    "remapped_rows_uncorrected": _count("gpu_remapped_rows_uncorrected", "Rows remapped for uncorrected errors."),
    "remap_pending": _gauge("gpu_remap_pending", "1: rows wait for a reset to be remapped."),
    "remap_failed": _gauge("gpu_remap_failed", "1: rows could not be remapped."),
    "retired_pages_pending": _gauge("gpu_retired_pages_pending", "1: pages wait for a reset to be retired."),
    "retired_pages_corrected": _count("gpu_retired_pages_corrected", "Pages retired for corrected errors."),
    "retired_pages_uncorrected": _count("gpu_retired_pages_uncorrected", "Pages retired for uncorrected errors."),
    "pcie_generation": _gauge("gpu_pcie_generation", "Generation of the PCIe link now."),
    "pcie_width": _gauge("gpu_pcie_width", "Lanes of the PCIe link now."),
    "pcie_generation_max": _gauge("gpu_pcie_generation_max", "Generation that the link could have."),
    "pcie_width_max": _gauge("gpu_pcie_width_max", "Lanes that the link could have."),
    "pcie_replays": _count("gpu_pcie_replays", "Packets sent again on the PCIe link."),
    "nvlink_links": _gauge("gpu_nvlink_links", "NVLinks that there are."),
    "nvlink_active": _gauge("gpu_nvlink_active_links", "NVLinks that are up."),
    "nvlink_crc_flit_errors": _count("gpu_nvlink_crc_flit_errors", "CRC errors in NVLink's flits."),
    "nvlink_crc_data_errors": _count("gpu_nvlink_crc_data_errors", "CRC errors in NVLink's data."),
    "nvlink_replay_errors": _count("gpu_nvlink_replay_errors", "NVLink packets sent again."),
    "nvlink_recovery_errors": _count("gpu_nvlink_recovery_errors", "NVLinks brought back after errors."),
}
_IB = {
    "symbol_error": "Symbols with errors.",
    "link_error_recovery": "Recoveries of the link.",
    "link_downed": "Times that the link went down.",
    "port_rcv_errors": "Packets received with errors.",
    "port_rcv_remote_physical_errors": "Packets that were marked as bad on their way.",
    "port_rcv_switch_relay_errors": "Packets that a switch could not pass on.",
    "port_xmit_discards": "Packets not sent.",
    "port_xmit_wait": "Ticks in which data waited and could not be sent.",
    "local_link_integrity_errors": "Times that local errors went beyond their bound.",
    "excessive_buffer_overrun_errors": "Times that buffers overran.",
    "out_of_sequence": "Packets out of sequence.",
    "packet_seq_err": "Negative acknowledgements for missing packets.",
    "local_ack_timeout_err": "Acknowledgements that did not come.",
    "rnr_nak_retry_err": "Receivers that were not ready.",
    "roce_slow_restart": "Slow restarts of RoCE.",
}

SHOWN: dict[tuple[str, str], Shown] = {
    **{("gpu", name): shown for name, shown in _GPU.items()},
    **{("ib", name): _count(f"infiniband_{name}", text) for name, text in _IB.items()},
    ("ib", "rate_bps"): _gauge("infiniband_rate_bytes_per_second", "Rate of the link.", 1 / 8),
    ("node", "gpu_count"): _gauge("gpus", "Devices that the driver knows."),
    ("cpu", "cpus"): _gauge("cpus", "CPUs that are online."),
    ("cpu", "busy_s"): _count("cpu_busy_seconds", "Time that CPUs worked."),
    ("cpu", "idle_s"): _count("cpu_idle_seconds", "Time that CPUs had nothing to do."),
    ("cpu", "steal_s"): _count("cpu_steal_seconds", "Time that the hypervisor gave to others."),
    ("core", "throttle_count"): _count("cpu_package_throttles", "Times that the package slowed for its heat."),
    ("core", "core_throttle_count"): _count("cpu_core_throttles", "Times that cores slowed for their heat."),
    ("core", "throttled_s"): _count("cpu_throttled_seconds", "Time throttled for heat."),
    ("core", "frequency_hz"): _gauge("cpu_frequency_hertz", "Frequency now, on average."),
    ("core", "frequency_max_hz"): _gauge("cpu_frequency_max_hertz", "The highest frequency."),
    ("pressure", "stalled_some_s"): _count("pressure_some_seconds", "Time in which something waited for it."),
    ("pressure", "stalled_full_s"): _count("pressure_full_seconds", "Time in which everything waited for it."),
    ("cgroup", "periods"): _count("cgroup_cpu_periods", "Periods of the CPU quota."),
    ("cgroup", "throttled_periods"): _count("cgroup_cpu_throttled_periods", "Periods in which it was used up."),
    ("cgroup", "throttled_s"): _count("cgroup_cpu_throttled_seconds", "Time without CPU for that."),
    ("cgroup", "threads"): _gauge("cgroup_threads", "Threads in a group that has a limit of them."),
    ("cgroup", "threads_limit"): _gauge("cgroup_threads_limit", "Their limit."),
    ("cgroup", "memory_bytes"): _gauge("cgroup_memory_bytes", "Memory of a group that has a limit of it."),
    ("cgroup", "memory_bytes_limit"): _gauge("cgroup_memory_limit_bytes", "Its limit."),
    ("cgroup", "oom_kills"): _count("cgroup_oom_kills", "Processes killed for the group's limit."),
    ("memory", "available_bytes"): _gauge("memory_available_bytes", "Memory that may still be had."),
    ("memory", "total_bytes"): _gauge("memory_bytes", "Memory that there is."),
    ("memory", "swap_used_bytes"): _gauge("swap_used_bytes", "Swap in use."),
    ("memory", "swap_total_bytes"): _gauge("swap_bytes", "Swap that there is."),
    ("memory", "oom_kills"): _count("oom_kills", "Processes killed for want of memory."),
    ("processes", "waiting"): _gauge("uninterruptible_threads", "Processes in uninterruptible wait (D)."),
    ("processes", "longest_wait_s"): _gauge("uninterruptible_longest_seconds", "The longest of those waits."),
    ("processes", "open_files"): _gauge("open_files", "Open file descriptions."),
    ("processes", "open_files_limit"): _gauge("open_files_limit", "Their limit."),
    ("processes", "threads"): _gauge("threads", "Threads."),
    ("processes", "threads_limit"): _gauge("threads_limit", "Their limit."),
    ("disk", "completed"): _count("disk_operations", "Operations that a disk has completed."),
    ("disk", "in_flight"): _gauge("disk_in_flight_operations", "Operations that it has not completed yet."),
    ("disk", "busy_s"): _count("disk_busy_seconds", "Time with operations in flight."),
    ("disk", "io_errors"): _count("disk_io_errors", "Operations that failed."),
    ("disk", "is_read_only"): _gauge("disk_read_only", "1: it takes no writes."),
    ("mount", "is_read_only"): _gauge("filesystem_read_only", "1: it takes no writes."),
    ("mount", "is_answering"): _gauge("filesystem_answering", "0: a remote file system does not answer."),
    ("mount", "free_bytes"): _gauge("filesystem_free_bytes", "Room for users."),
    ("mount", "total_bytes"): _gauge("filesystem_bytes", "Room in all."),
    ("mount", "free_inodes"): _gauge("filesystem_free_inodes", "Files that may still be made."),
    ("mount", "total_inodes"): _gauge("filesystem_inodes", "Files in all."),
    ("net", "is_up"): _gauge("network_up", "1: the link is up."),
    ("net", "carrier_changes"): _count("network_carrier_changes", "Times that the link came or went."),
    ("net", "speed_bps"): _gauge("network_speed_bytes_per_second", "Speed of the link.", 1 / 8),
    **{
        ("net", f"{way}_{what}"): _count(f"network_{words}_{what}", f"{what.capitalize()}, {words}.")
        for way, words in (("rx", "receive"), ("tx", "transmit"))
        for what in ("bytes", "packets", "errors", "dropped")
    },
    ("clock", "offset_s"): _gauge("clock_offset_seconds", "How far the clock is known to be off."),
    ("clock", "max_error_s"): _gauge("clock_max_error_seconds", "How far it may be off at most."),
    ("clock", "is_synchronized"): _gauge("clock_synchronized", "1: somebody keeps the clock right."),
    ("log", "lost_lines"): _count("kernel_log_lost_lines", "Lines of the kernel's log that were overwritten unread."),
    ("log", "is_readable"): _gauge("kernel_log_readable", "1: the kernel's log may be read."),
}

NOT_SHOWN = frozenset(
    {
        ("net", "is_default_route"),
        ("net", "is_enabled"),
        ("net", "is_physical"),
        ("processes", "longest_wait_pid"),
        ("gpu", "index"),
        ("gpu", "temperature_max_c"),
        ("gpu", "memory_temperature_max_c"),
        ("gpu", "memory_clock_max_hz"),
        ("mount", "asked_s"),
        ("node", "gpus_hidden"),
    }
)
"""Numbers that are left out: they describe rather than measure."""


def kind_of(subject: str, name: str) -> tuple[str, str]:
    """A subject's kind, as SHOWN has it, and what of its kind it is: `gpu:UUID` → `gpu`, `UUID`."""
    kind, _, which = subject.partition(":")
    if name.startswith("stalled_"):
        return "pressure", kind
    if kind == "cpu" and which:
        return "core", which
    return kind, which
