"""Network interfaces: links that go down and come up, waited on; errors and drops, counted."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Happening, Readout, Sample, Value
from guardrun.supervisor.sensors.base.sensor import below, happened, known, list_folder, read_count, read_text, unknown
from guardrun.supervisor.sensors.network.rtnetlink import Link, LinkEvents, read_links

MAX_LINKS = 128
MAX_EVENTS = 400
"""A turn; more are taken at the next, which comes at once."""
COUNT_S = 10.0
_STATS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
)


class NetworkSensor:
    """`net:NAME`; loopback is left out."""

    name = "network"
    period_s = COUNT_S
    timeout_s = 5.0

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._events: LinkEvents | None = None
        self._links: dict[int, Link] = {}
        self._counted_s = float("-inf")
        self._physical: dict[str, bool] = {}

    def fileno(self) -> int:
        """Readable when a link changes; -1 before the first read."""
        return self._events.fileno() if self._events is not None else -1

    def read(self, now_s: float) -> Readout:
        """Changes of links at each call, counters every COUNT_S; partial where those were not due."""
        trouble = ""
        happenings: list[Happening] = []
        try:
            if self._events is None:
                self._events = LinkEvents()
            changed, were_lost = self._events.read_changes(MAX_EVENTS)
            happenings = self._follow(changed, now_s)
            if were_lost:
                trouble = "more links changed than could be told; some changes are lost"
        except OSError as error:
            trouble = f"links are not told: {error.strerror}"
        samples: list[Sample] = []
        is_due = bool(happenings) or self._is_due(now_s)
        if is_due:
            self._counted_s = now_s
            try:
                links = [link for link in read_links() if not link.is_loopback][:MAX_LINKS]
            except OSError as error:
                return Readout(
                    sensor=self.name, at_s=now_s, happenings=happenings, trouble=f"links are not told: {error}"
                )
            happenings += self._follow(links, now_s)
            samples = self._samples(links)
        return Readout(
            sensor=self.name,
            at_s=now_s,
            samples=samples,
            happenings=happenings,
            trouble=trouble,
            is_partial=not is_due,
        )

    def _is_due(self, now_s: float) -> bool:
        """Whether counters are due again: a turn that a link asked for may come at any time."""
        return now_s - self._counted_s >= COUNT_S * 0.9

    def _follow(self, links: list[Link], now_s: float) -> list[Happening]:
        """What changed; each interface's first word is how it is, and no change."""
        happenings = []
        for link in links:
            before = self._links.get(link.number)
            if link.is_gone:
                self._links.pop(link.number, None)
                self._physical.pop(link.name, None)
                continue
            self._links[link.number] = link
            if before is None or before.is_up == link.is_up or link.is_loopback:
                continue
            name = "link_up" if link.is_up else "link_down"
            data: dict[str, Value] = {"carrier_changes": link.carrier_changes, "is_enabled": link.is_enabled}
            happenings.append(happened(f"net:{link.name}", name, now_s, "", **data))
        return happenings

    def _samples(self, links: list[Link]) -> list[Sample]:
        samples: list[Sample] = []
        routes, no_routes = read_text(below(self._root, "/proc/net/route"))
        routes6, _ = read_text(below(self._root, "/proc/net/ipv6_route"))
        routed = parse_default_routes(routes) | parse_default_routes6(routes6)
        for link in links:
            subject = f"net:{link.name}"
            samples += known(
                subject,
                is_up=link.is_up,
                is_enabled=link.is_enabled,
                is_physical=self._is_physical(link.name),
                is_default_route=link.name in routed,
            )
            if link.carrier_changes >= 0:
                samples += known(subject, carrier_changes=link.carrier_changes)
            samples += known(subject, **dict(zip(_STATS, link.stats, strict=False)))
            speed = read_count(below(self._root, f"/sys/class/net/{link.name}/speed"))
            if speed is not None and speed > 0:
                samples += known(subject, speed_bps=speed * 1_000_000)
        if no_routes:
            samples += unknown("net", ("default_route",), no_routes)
        return samples

    def _is_physical(self, name: str) -> bool:
        """Whether a device stands behind it: a pod's or container's end of a cable that is none comes and goes."""
        if name not in self._physical:
            folder = below(self._root, f"/sys/class/net/{name}")
            self._physical[name] = "device" in list_folder(folder) or "bonding" in list_folder(folder)
        return self._physical[name]

    def close(self) -> None:
        """Close the netlink socket; the next read would open it again."""
        if self._events is not None:
            self._events.close()
            self._events = None


def parse_default_routes(text: str) -> set[str]:
    """Interfaces that /proc/net/route (proc(5)) leads everything else over; destination and mask are hexadecimal."""
    found = set()
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            found.add(words[0])
    return found


def parse_default_routes6(text: str) -> set[str]:
    """The same of /proc/net/ipv6_route: destination, its length, …, flags, interface (net/ipv6/route.c)."""
    found = set()
    for line in text.splitlines():
        words = line.split()
        # The kernel keeps a default route over loopback that refuses everything.
        if len(words) == 10 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            found.add(words[9])
    return found
