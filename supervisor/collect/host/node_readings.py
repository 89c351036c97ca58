"""Readings of the node at the moment of a look or a fall: what may slow or stop everything on it.

What is unknown is left out.

Every file of /proc and /sys that a reading comes from is named in its parser. Limits for `is_odd` are those beyond
which a person would look there; nothing is decided by them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from guardrun.supervisor.collect.host.file_systems import Answers, Mount, ask, mounts_used_by, read_mounts
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.engine.model.looks import Reading

MAX_READINGS = 32
MOUNT_TIMEOUT_S = 2.0
_GIB = 1 << 30
_ODD_LOAD = 2.0
"""Running and waiting tasks a CPU."""
_ODD_MEMORY = 0.05
"""Share that is left."""
_ODD_SWAP = 0.5
"""Share that is used."""
_ODD_PRESSURE = 20.0
"""Percent of the last ten seconds in which somebody (cpu: everybody's neighbour; memory and io: all) waited for it."""
_ODD_DISK = 0.02
_ODD_DISK_BYTES = _GIB
_ODD_WAITING = 4
"""Processes in uninterruptible wait: one or two are there whenever a disk is busy."""
_UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" by a number beyond this."""


def read_readings(
    folders: Iterable[str] = (),
    pids: Sequence[int] = (),
    *,
    table: ProcessTable | None = None,
    mounts: Sequence[Mount] | None = None,
    timeout_s: float = MOUNT_TIMEOUT_S,
) -> tuple[list[Reading], Answers]:
    """Read the node, and ask the file systems that these folders lie on and these processes have files on.

    Where one of them is in uninterruptible wait it may be opening a file, which is not open yet: then all remote file
    systems are asked.
    Takes some 30 ms, and timeout_s where a file system does not answer.
    """
    mounts = read_mounts() if mounts is None else mounts
    table = table or ProcessTable.read()
    used = mounts_used_by(pids, mounts)
    if any(pid in table.stats and table.stats[pid].state == "D" for pid in pids):
        used += [mount.point for mount in mounts if mount.is_remote]
    answers = ask(dict.fromkeys([*used, *(os.path.abspath(folder) for folder in folders)]), timeout_s, mounts)
    readings = [
        *read_system(),
        *_waiting(table),
        *read_cgroup(pids[0] if pids else os.getpid()),
        *of_mounts(answers, mounts),
    ]
    return sorted(readings, key=lambda reading: not reading.is_odd)[:MAX_READINGS], answers


def read_system() -> list[Reading]:
    """Load, memory, swap and pressure."""
    readings = [
        *parse_loadavg(_text("/proc/loadavg"), os.cpu_count() or 1),
        *parse_meminfo(_text("/proc/meminfo")),
    ]
    for what in ("cpu", "memory", "io"):
        readings += parse_pressure(what, _text(f"/proc/pressure/{what}"))
    return readings


def _text(path: str) -> str:
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def parse_loadavg(text: str, cpus: int) -> list[Reading]:
    """/proc/loadavg: tasks that run, want to, or are in uninterruptible wait, averaged over a minute."""
    try:
        load = float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return []
    return [Reading(name="load", value=round(load, 2), is_odd=load > _ODD_LOAD * cpus, note=f"{cpus} CPUs")]


def parse_sizes(text: str) -> dict[str, int]:
    """/proc/meminfo, in bytes: its kB are KiB."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * 1024
    return sizes


def parse_meminfo(text: str) -> list[Reading]:
    """Memory and swap, of /proc/meminfo."""
    sizes = parse_sizes(text)
    readings = []
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable")
    if total and free is not None:
        readings.append(_bytes("memory available", free, free < _ODD_MEMORY * total, f"of {_gib(total)} GiB"))
    swap, left = sizes.get("SwapTotal", 0), sizes.get("SwapFree")
    if swap and left is not None:
        used = swap - left
        readings.append(_bytes("swap used", used, used > _ODD_SWAP * swap, f"of {_gib(swap)} GiB"))
    return readings


def _bytes(name: str, value: int, is_odd: bool, note: str) -> Reading:
    return Reading(name=name, value=_gib(value), unit="GiB", is_odd=is_odd, note=note)


def _gib(value: int) -> float:
    return round(value / _GIB, 2)


def parse_psi(text: str) -> dict[str, dict[str, float]]:
    """/proc/pressure/WHAT (Documentation/accounting/psi.rst): `some` and `full` → `avg10` in percent, `total` in µs."""
    lines: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        words = line.split()
        for word in words[1:]:
            name, _, value = word.partition("=")
            try:
                lines.setdefault(words[0], {})[name] = float(value)
            except ValueError:
                continue
    return lines


def parse_pressure(what: str, text: str) -> list[Reading]:
    """/proc/pressure/WHAT: `full`, and `some` where there is no other (cpu)."""
    shares = {kind: values["avg10"] for kind, values in parse_psi(text).items() if "avg10" in values}
    kind = "some" if what == "cpu" else "full"
    if kind not in shares:
        return []
    share = shares[kind]
    note = "somebody waited for it" if kind == "some" else "everybody waited for it"
    odd = _ODD_PRESSURE * (3 if kind == "some" else 1)
    return [Reading(name=f"{what} pressure", value=share, unit="%", is_odd=share > odd, note=note)]


def _waiting(table: ProcessTable) -> list[Reading]:
    count = sum(1 for stat in table.stats.values() if stat.state == "D")
    return [
        Reading(name="processes in uninterruptible wait", value=float(count), is_odd=count >= _ODD_WAITING),
    ]


# The job's cgroup ----------------------------------------------------------------------------------------


def parse_cgroup(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: controller → path; `` is version 2's one hierarchy."""
    paths = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def read_cgroup(pid: int) -> list[Reading]:
    """How often a process's cgroup was not let run, and what is left of its memory; versions 1 and 2."""
    paths = parse_cgroup(_text(f"/proc/{pid}/cgroup"))
    readings = []
    cpu = _first_folder((f"/sys/fs/cgroup{paths.get('', '')}", f"/sys/fs/cgroup/cpu{paths.get('cpu', '')}"), "cpu.stat")
    if cpu:
        readings += parse_cpu_stat(_text(f"{cpu}/cpu.stat"))
    two = _first_folder((f"/sys/fs/cgroup{paths.get('', '')}",), "memory.current")
    one = _first_folder((f"/sys/fs/cgroup/memory{paths.get('memory', '')}",), "memory.usage_in_bytes")
    if two:
        readings += of_memory(_text(f"{two}/memory.current"), _text(f"{two}/memory.max"))
    elif one:
        readings += of_memory(_text(f"{one}/memory.usage_in_bytes"), _text(f"{one}/memory.limit_in_bytes"))
    return readings


def _first_folder(folders: Iterable[str], name: str) -> str:
    """The first of these folders that has such a file; in a container they may lie above what it sees."""
    return next((folder for folder in folders if os.path.exists(f"{folder}/{name}")), "")


def parse_cpu_stat(text: str) -> list[Reading]:
    """cpu.stat of either version: of the periods since the cgroup began, those in which its quota was used up."""
    values: Mapping[str, int] = {
        words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) == 2 and words[1].isdigit()
    }
    periods, throttled = values.get("nr_periods", 0), values.get("nr_throttled", 0)
    if not periods:
        return []
    share = round(100 * throttled / periods, 1)
    return [Reading(name="CPU quota used up", value=share, unit="%", is_odd=share > 10, note="of its cgroup's periods")]


def of_memory(usage: str, limit: str) -> list[Reading]:
    """A cgroup's memory, where it has a limit."""
    usage, limit = usage.strip(), limit.strip()
    if not usage.isdigit() or not limit.isdigit() or int(limit) >= _UNLIMITED:
        return []
    left = max(0, int(limit) - int(usage))
    is_odd = left < _ODD_MEMORY * int(limit)
    # Caches are in it, and given up when needed: little left is a hint and no more.
    return [_bytes("memory left to the cgroup", left, is_odd, f"of {_gib(int(limit))} GiB, caches count as used")]


# File systems --------------------------------------------------------------------------------------------


def of_mounts(answers: Answers, mounts: Sequence[Mount]) -> list[Reading]:
    """Room on each file system, once a mount; those that do not answer."""
    kinds = {mount.point: mount.kind for mount in mounts}
    readings = [
        Reading(
            name=point, value=float(asked_s), unit="s", is_odd=True, note=f"has not answered ({kinds.get(point, '?')})"
        )
        for point, asked_s in answers.dead.items()
    ]
    for room in {room.point: room for room in answers.rooms if room.total_bytes}.values():
        is_odd = room.free_bytes < min(_ODD_DISK_BYTES, _ODD_DISK * room.total_bytes)
        note = f"of {_gib(room.total_bytes)} GiB ({kinds.get(room.point, '?')})"
        readings.append(_bytes(f"{room.point} free", room.free_bytes, is_odd, note))
    return readings


# Disk room ----------------------------------------------------------------------------------------------------------
# Room left on the file systems that a run writes to, with what else the node says of itself at that moment.


TIMEOUT_S = 1.0
"""A fall is to be explained within two seconds."""


def read_room(folders: Iterable[str], timeout_s: float = TIMEOUT_S) -> tuple[dict[str, int], list[Reading]]:
    """Bytes that the user may still write, per folder, and the node's readings.

    A folder that doesn't exist yet is judged by its nearest parent; 0 is also for bytes but no inodes left. Left out
    are those that didn't answer within timeout_s, all together (a dead mount), or may not be asked.
    """
    by_path = {os.path.abspath(folder): folder for folder in folders if "\0" not in folder}
    readings, answers = read_readings(by_path, timeout_s=timeout_s)
    return {by_path[room.path]: room.free_bytes for room in answers.rooms if room.path in by_path}, readings
