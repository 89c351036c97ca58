"""The kernel's log, waited on: machine checks, lockups, resets, Xids, OOM kills; its lines by a table (pure)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Happening, Readout, Value
from guardrun.supervisor.health.gpu.xids import xid_from_line
from guardrun.supervisor.sensors.base.sensor import happened, known, unknown, why

# Kernel lines -------------------------------------------------------------------------------------------------------
# What lines of the kernel's log tell, by a table. Pure.
#
# Each rule names where in the kernel the line is printed. Patterns are anchored, and hold over the kernels from 4.18 on
# that differ in their prefixes. Lines about GPUs are health/gpu/xids.py's.


_DISK = r"(?P<disk>(?!fd\d|sr\d)[\w!-]+)"
_UNCORRECTED = 1 << 61
"""MCi_STATUS.UC (Intel's manual, volume 3, "Machine-Check Architecture"; AMD's has it at the same place)."""


class Record(NamedTuple):
    """One record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""

    priority: int
    """Facility * 8 + level."""
    sequence: int
    message: str


class Rule(NamedTuple):
    """A line that means something; its named groups are the happening's data."""

    name: str
    pattern: re.Pattern[str]
    subject: str
    """With groups in braces."""
    source: str
    """Where in the kernel."""


def _rule(name: str, pattern: str, subject: str, source: str) -> Rule:
    return Rule(name, re.compile(pattern), subject, source)


RULES = (
    _rule(
        "io_error",
        rf"(?:\w+: )?(?P<what>I/O|[\w ]+) error, dev {_DISK}, sector (?P<sector>\d+)",
        "disk:{disk}",
        "block/blk-mq.c, blk_print_req_error",
    ),
    _rule("io_error", rf"Buffer I/O error on dev(?:ice)? {_DISK}, logical block", "disk:{disk}", "fs/buffer.c"),
    _rule(
        "disk_reset",
        r"nvme (?P<disk>nvme\d+): (?:controller is down; will reset|I/O (?:tag )?\d+.* timeout, (?:reset|abort))",
        "disk:{disk}",
        "drivers/nvme/host/pci.c, nvme_timeout",
    ),
    _rule(
        "disk_lost",
        r"nvme (?P<disk>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure)",
        "disk:{disk}",
        "drivers/nvme/host/pci.c, nvme_reset_work",
    ),
    _rule(
        "disk_lost",
        rf"sd [\d:]+: \[{_DISK}\] .*rejecting I/O to (?:offline|dead)",
        "disk:{disk}",
        "drivers/scsi",
    ),
    _rule("disk_reset", r"(?P<disk>ata\d+)(?:\.\d+)?: hard resetting link", "disk:{disk}", "drivers/ata/libata-eh.c"),
    _rule("fs_error", rf"EXT4-fs error \(device {_DISK}\)", "disk:{disk}", "fs/ext4/super.c"),
    _rule("fs_read_only", rf"EXT4-fs \({_DISK}\): Remounting filesystem read-only", "disk:{disk}", "fs/ext4/super.c"),
    _rule("fs_read_only", rf"XFS \({_DISK}\): .*[Ff]ilesystem has been shut down", "disk:{disk}", "fs/xfs/xfs_fsops.c"),
    _rule(
        "fs_error",
        rf"XFS \({_DISK}\): (?:metadata I/O error|Metadata (?:CRC error|corruption) detected|Corruption)",
        "disk:{disk}",
        "fs/xfs/xfs_buf.c",
    ),
    _rule("fs_read_only", rf"BTRFS.*\(device {_DISK}.*\).*forced readonly", "disk:{disk}", "fs/btrfs/messages.c"),
    _rule("fs_error", rf"BTRFS (?:error|critical) \(device {_DISK}", "disk:{disk}", "fs/btrfs/messages.c"),
    _rule(
        "server_silent",
        r"(?:nfs|ceph): (?:server|mds\d+) (?P<server>\S+) (?:not responding|hung)",
        "server:{server}",
        "fs/nfs/client.c, net/sunrpc",
    ),
    _rule("server_back", r"nfs: server (?P<server>\S+) OK", "server:{server}", "net/sunrpc/clnt.c"),
    _rule(
        "lockup",
        r"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s! \[(?P<task>.*)\]",
        "cpu",
        "kernel/watchdog.c",
    ),
    _rule(
        "lockup",
        r"(?:NMI )?(?:watchdog: )?(?:CPU\d+: )?Watchdog detected hard LOCKUP on cpu (?P<cpu>\d+)",
        "cpu",
        "kernel/watchdog.c, watchdog_hardlockup_check",
    ),
    _rule("rcu_stall", r"(?:rcu: )?INFO: rcu\w* (?:self-)?detected (?:expedited )?stall", "cpu", "kernel/rcu"),
    _rule(
        "hung_task",
        r"INFO: task (?P<task>.*):(?P<pid>\d+) (?:<.*> )?blocked (?:in I/O wait )?for more than (?P<seconds>\d+) sec",
        "processes",
        "kernel/hung_task.c",
    ),
    _rule(
        "oops",
        r"(?:BUG: (?:unable to handle|kernel NULL pointer|Bad page)|Oops:|general protection fault|kernel BUG at)",
        "node",
        "arch/x86/mm/fault.c, lib/bug.c",
    ),
    _rule(
        "mce",
        r"mce: \[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?: Exception)?: \w+ "
        r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{16})",
        "cpu",
        "arch/x86/kernel/cpu/mce/core.c, __print_mce",
    ),
    _rule("mce", r"\[Hardware Error\]: (?P<kind>Corrected|Deferred|Uncorrected)(?:,| error)", "cpu", "drivers/edac"),
    _rule(
        "mce",
        r"(?:\{\d+\})?\[Hardware Error\]: event severity: (?P<kind>\w+)",
        "node",
        "drivers/acpi/apei/ghes.c, cper_estatus_print",
    ),
    _rule("mce", r"EDAC \w+: (?P<count>\d+) (?P<kind>CE|UE) ", "memory", "drivers/edac/edac_mc.c"),
    _rule(
        "memory_failure",
        r"Memory failure: (?P<page>0x[0-9a-f]+): recovery action for (?P<what>.*): (?P<outcome>\w+)",
        "memory",
        "mm/memory-failure.c, action_result",
    ),
    _rule(
        "pcie_error",
        r"\S+ (?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:AER: )?PCIe Bus Error: severity=(?P<kind>[^,]+)",
        "pci:{device}",
        "drivers/pci/pcie/aer.c, aer_print_error",
    ),
    _rule(
        "nic_fault",
        r"mlx5_core (?P<device>\S+): .*(?:health compromised|Fatal error \d+ detected)",
        "pci:{device}",
        "drivers/net/ethernet/mellanox/mlx5/core/health.c",
    ),
    _rule(
        "transmit_timeout",
        r"(?:NETDEV WATCHDOG: (?P<net>\S+) \(|(?P<other>\S+): .*NETDEV WATCHDOG: .*transmit queue)",
        "net:{net}",
        "net/sched/sch_generic.c, dev_watchdog",
    ),
)
_HINT = re.compile(
    r"rror|reset|LOCKUP|lockup|Xid|blocked|stall|BUG|Oops|fault|Memory failure|timeout|TIMEOUT|rejecting|Remounting"
    r"|shut down|readonly|responding|server|hung|EDAC|health|power|over|NETDEV|XFS|failure|oom-kill|Killed process"
)
"""A line without any of these says nothing that a rule knows."""
# mm/oom_kill.c: dump_oom_victim, __oom_kill_process
_OOM_CHOICE = re.compile(r"oom-kill:constraint=.*task_memcg=(?P<cgroup>[^,]*),task=.*,pid=(?P<pid>\d+)")
_OOM_KILLED = re.compile(
    r"(?P<where>Memory cgroup out|Out) of memory[^:]*: Kill(?:ed)? process (?P<pid>\d+) "
    r"\((?P<name>.*)\),? (?:total-vm|score)"
)


def parse_record(text: str) -> Record | None:
    """A record of /dev/kmsg: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS…;MESSAGE`, then lines of properties."""
    head, semicolon, rest = text.partition(";")
    words = head.split(",")
    if not semicolon or len(words) < 3 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return Record(int(words[0]), int(words[1]), rest.partition("\n")[0])


class LineReader:
    """Turns messages into happenings; an OOM kill is told by two lines, of which the first names the group."""

    def __init__(self) -> None:
        self._chosen: tuple[int, str] = (-1, "")

    def read(self, message: str, at_s: float) -> Happening | None:
        """What a message tells; None where that is nothing that anybody asks for."""
        if not _HINT.search(message):
            return None
        readers: tuple[Callable[[str, float], Happening | None], ...] = (xid_from_line, self._oom, by_rules)
        return next((found for reader in readers if (found := reader(message, at_s)) is not None), None)

    def _oom(self, message: str, at_s: float) -> Happening | None:
        chosen = _OOM_CHOICE.search(message)
        if chosen is not None:
            self._chosen = (int(chosen["pid"]), chosen["cgroup"])
            return None
        killed = _OOM_KILLED.match(message)
        if killed is None:
            return None
        pid = int(killed["pid"])
        data: dict[str, Value] = {"pid": pid, "task": killed["name"], "is_whole_machine": killed["where"] == "Out"}
        if self._chosen[0] == pid:
            data["cgroup"] = self._chosen[1]
        return happened("memory", "oom_kill", at_s, message, **data)


def by_rules(message: str, at_s: float) -> Happening | None:
    """The first rule's happening whose pattern a message begins with."""
    for rule in RULES:
        found = rule.pattern.match(message)
        if found is None:
            continue
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        if "other" in groups:
            groups["net"] = groups.pop("other")
        data: dict[str, Value] = {name: int(text) if text.isdigit() else text for name, text in groups.items()}
        if rule.name in ("mce", "pcie_error"):
            data["is_corrected"] = is_corrected(groups)
        return happened(rule.subject.format(**groups), rule.name, at_s, message, **data)
    return None


def is_corrected(groups: dict[str, str]) -> bool:
    """Whether the hardware made good what it reports; what does not say is taken for corrected."""
    if "status" in groups:
        return not int(groups["status"], 16) & _UNCORRECTED
    kind = groups.get("kind", "").lower()
    return not kind.startswith(("unc", "ue", "fatal", "recoverable"))


# Kernel log ---------------------------------------------------------------------------------------------------------


PATH = "/dev/kmsg"
RECORD_BYTES = 8192
"""The kernel's own limit for one record; a shorter read fails with EINVAL."""
MAX_OLD_RECORDS = 100_000
MAX_RECORDS = 500
"""A turn; more are taken at the next, which comes at once."""


class KernelLogSensor:
    """`log`: whether it may be read; what its lines tell from now on, each of its own subject.

    A line that is written from outside the kernel counts as well: only root can.
    """

    name = "kernel_log"
    period_s = 60.0
    timeout_s = 5.0

    def __init__(self, path: str = PATH) -> None:
        self._path = path
        self._fd = -1
        self._next_sequence = -1
        self._lines = LineReader()
        self.lost = 0
        """Lines that were overwritten before they were read, so far."""

    def fileno(self) -> int:
        """/dev/kmsg's; -1 while it is not open, and then each turn tries to open it."""
        return self._fd

    def read(self, now_s: float) -> Readout:
        """From /dev/kmsg; lines that were overwritten before they were read are `lines_lost` and trouble."""
        if self._fd < 0:
            try:
                self._open()
            except OSError as error:
                self.close()
                reason = why(error, self._path)
                return Readout(
                    sensor=self.name, at_s=now_s, samples=unknown("log", ("is_readable",), reason), trouble=reason
                )
        happenings, lost = self._read_happenings(now_s)
        trouble = ""
        if lost:
            self.lost += lost
            trouble = f"{lost} lines of the kernel's log were lost: it was overwritten before it was read"
            happenings.insert(0, happened("log", "lines_lost", now_s, trouble, lines=lost))
        samples = known("log", is_readable=self._fd >= 0, lost_lines=self.lost)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, happenings=happenings, trouble=trouble)

    def _open(self) -> None:
        """From now on: what was before is nobody's here, but for the number of its last line. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._next_sequence = -1
        for _ in range(MAX_OLD_RECORDS):
            if self._next() is None:
                break
        else:
            os.lseek(self._fd, 0, os.SEEK_END)
        if self._fd < 0:
            raise OSError(errno.EINVAL, "is no log of the kernel's")

    def _read_happenings(self, now_s: float) -> tuple[list[Happening], int]:
        """Happenings of the lines since the last turn, and how many lines were lost."""
        happenings: list[Happening] = []
        lost = 0
        for _ in range(MAX_RECORDS):
            expected = self._next_sequence
            record = self._next()
            if record is None:
                break
            lost += max(0, record.sequence - expected) if expected >= 0 else 0
            happening = self._lines.read(record.message, now_s)
            if happening is not None:
                happenings.append(happening)
        return happenings, lost

    def _next(self) -> Record | None:
        """The next line; None where there is none yet. Closes what can't be read any more."""
        while self._fd >= 0:
            try:
                record = parse_record(os.read(self._fd, RECORD_BYTES).decode("utf-8", "replace"))
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # Overwritten: the next read gives the oldest that is kept, and its number tells the rest.
                self.close()
                return None
            if record is None:
                self.close()  # No log, whatever it is.
                return None
            self._next_sequence = record.sequence + 1
            return record
        return None

    def close(self) -> None:
        """Close the log; the next read would open it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
