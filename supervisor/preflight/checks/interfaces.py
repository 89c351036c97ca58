"""Do NCCL's and gloo's variables name network interfaces, and InfiniBand devices, that are there?

NCCL_SOCKET_IFNAME: beginnings of names, comma-separated; `=` in front: whole names; `^`, `^=`: all but these.
NCCL_IB_HCA: likewise, a port may follow after a colon (NCCL's user guide, "Environment Variables").
GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME: whole names (torch, ProcessGroupGloo.cpp and init.cpp of rpc).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, ok, warn

NAME = "interfaces"
NET, INFINIBAND = "/sys/class/net", "/sys/class/infiniband"
LOOPBACK = "lo"


class Choice(NamedTuple):
    """What a variable chooses."""

    names: tuple[str, ...]
    is_exact: bool
    is_excluding: bool

    def chosen(self, present: Sequence[str]) -> list[str]:
        """Of what is there."""
        return [name for name in present if self._matches(name) is not self.is_excluding]

    def missing(self, present: Sequence[str]) -> list[str]:
        """Names that match nothing."""
        return [name for name in self.names if not any(self._is(name, one) for one in present)]

    def _matches(self, present: str) -> bool:
        return any(self._is(name, present) for name in self.names)

    def _is(self, name: str, present: str) -> bool:
        return present == name if self.is_exact else present.startswith(name)


def parse_nccl(text: str) -> Choice:
    """NCCL's lists; ports of InfiniBand devices are left out."""
    is_excluding = text.startswith("^")
    text = text.removeprefix("^")
    is_exact = text.startswith("=")
    names = (name.strip().partition(":")[0] for name in text.removeprefix("=").split(","))
    return Choice(tuple(name for name in names if name), is_exact, is_excluding)


def parse_names(text: str) -> Choice:
    """Whole names."""
    return Choice(tuple(name.strip() for name in text.split(",") if name.strip()), True, False)


def judge(variable: str, text: str, choice: Choice, present: Sequence[str], down: Sequence[str] = ()) -> Remark:
    """present: names of the interfaces, or devices, of this node; down: those of them that are not up."""
    there = ", ".join(present) or "none"
    data = {"variable": variable, "value": text, "present": list(present)}
    fix = f"Correct {variable}, or unset it and let the library choose."
    chosen = choice.chosen(present)
    if not chosen:
        return warn(NAME, f"{variable}={text} leaves nothing on this node, which has {there}.", fix, **data)
    missing = choice.missing(present)
    if missing and not choice.is_excluding and choice.is_exact:
        names = ", ".join(missing)
        return warn(NAME, f"{variable}={text} names {names}, which this node has not (it has {there}).", fix, **data)
    if all(name in down for name in chosen):
        return warn(
            NAME, f"{variable}={text} chooses {', '.join(chosen)}, which is down.", f"Bring it up, or: {fix}", **data
        )
    return ok(NAME, f"{variable}={text} chooses {', '.join(chosen)}.", **data)


def read_interfaces() -> tuple[list[str], list[str]]:
    """Names of the network interfaces, and those that are down; loopback says `unknown`, and is up."""
    names = _list(NET)
    down = []
    for name in names:
        try:
            with open(f"{NET}/{name}/operstate", encoding="ascii") as file:
                if file.read().strip() in ("down", "lowerlayerdown", "notpresent"):
                    down.append(name)
        except OSError:
            continue
    return names, down


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def run(subject: Subject) -> list[Remark]:
    """A remark for each variable that is set, or one where none is."""
    present, down = read_interfaces()
    remarks = []
    for variable, parse in (
        ("NCCL_SOCKET_IFNAME", parse_nccl),
        ("GLOO_SOCKET_IFNAME", parse_names),
        ("TP_SOCKET_IFNAME", parse_names),
    ):
        if text := subject.environ.get(variable):
            choice = parse(text)
            # Loopback is what NCCL takes when there is nothing else, no choice of the user's.
            others = [name for name in present if name != LOOPBACK]
            remarks.append(judge(variable, text, choice, others if choice.is_excluding and others else present, down))
    if text := subject.environ.get("NCCL_IB_HCA"):
        remarks.append(judge("NCCL_IB_HCA", text, parse_nccl(text), _list(INFINIBAND)))
    return remarks or [ok(NAME, "No interface is prescribed: NCCL and gloo choose.")]


CHECK = Check(NAME, run)
