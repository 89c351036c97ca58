"""InfiniBand and RoCE ports: their links and the counters of what went wrong on them."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import below, known, list_folder, read_count, read_text, read_word, unknown

_FOLDER = "/sys/class/infiniband"
MAX_PORTS = 64

COUNTERS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)
"""Of the port (Documentation/ABI/stable/sysfs-class-infiniband). Some are narrow and stay at their highest number."""
HW_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart")
"""Of the device, where its driver has them."""


class InfinibandSensor:
    """`ib:DEVICE/PORT`."""

    name = "infiniband"
    period_s = 20.0
    timeout_s = 10.0

    def __init__(self, root: str = "/") -> None:
        self._folder = below(root, _FOLDER)

    def read(self, now_s: float) -> Readout:
        """From the ports' files in /sys/class/infiniband; no samples where there are no ports."""
        samples: list[Sample] = []
        ports = [
            (device, port)
            for device in list_folder(self._folder)
            for port in list_folder(f"{self._folder}/{device}/ports")
        ]
        for device, port in ports[:MAX_PORTS]:
            samples += read_port(f"{self._folder}/{device}/ports/{port}", f"ib:{device}/{port}")
        return Readout(sensor=self.name, at_s=now_s, samples=samples)

    def close(self) -> None:
        """Nothing is held."""


def read_port(folder: str, subject: str) -> list[Sample]:
    """One port; a counter that its driver does not have is left out."""
    state, trouble = read_text(f"{folder}/state")
    if trouble:
        samples = unknown(subject, ("state",), trouble)
    else:
        samples = known(subject, state=parse_state(state), phys_state=parse_state(read_word(f"{folder}/phys_state")))
    rate = parse_rate(read_word(f"{folder}/rate"))
    if rate:
        samples += known(subject, rate_bps=rate)
    layer = read_word(f"{folder}/link_layer")
    if layer:
        samples += known(subject, link_layer=layer)
    for kind, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        for name in names:
            count = read_count(f"{folder}/{kind}/{name}")
            if count is not None:
                samples += known(subject, **{name: count})
    return samples


def parse_state(text: str) -> str:
    """`4: ACTIVE` → `ACTIVE`."""
    return text.partition(":")[2].strip() or text.strip()


def parse_rate(text: str) -> int:
    """`400 Gb/sec (4X NDR)` → bits a second; 0 where it says nothing."""
    words = text.split()
    try:
        return int(float(words[0]) * 1e9) if len(words) > 1 and words[1].startswith("Gb") else 0
    except ValueError:
        return 0
