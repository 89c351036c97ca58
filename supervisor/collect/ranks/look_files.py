"""A look's raw material on disk: a text a process, and beside it what py-spy or faulthandler gave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from guardrun.supervisor.base.own_files import make_private
from guardrun.supervisor.collect.ranks.stacks import StackDump
from guardrun.supervisor.engine.model.looks import PYSPY, Frame, ProcessLook, RankLook, ThreadLook

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in a wait that nothing interrupts",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "a zombie",
    "X": "dead",
    "I": "idle",
    "?": "gone",
}

RAS_FILE = "nccl-ras.txt"
"""What NCCL says of its communicators: JSON, or text of an older one."""

Raw = Mapping[int, tuple[list[StackDump], str]]
"""Per pid: its dumps, and its kernel stack."""


def write_look(folder: Path, looks: list[RankLook], raw: Raw) -> str:
    """Write rank-R-pid-PID.txt for every process, and raw/ beside them; answers what went wrong, empty if nothing."""
    try:
        make_private(folder / "raw")
        for look in looks:
            for process in (look.process, *look.children):
                dumps, kernel_stack = raw.get(process.pid, ([], ""))
                name = f"rank-{look.global_rank}-pid-{process.pid}"
                text = render_process(look, process, kernel_stack)
                (folder / f"{name}.txt").write_text(text, encoding="utf-8", errors="replace")
                for number, dump in enumerate(dumps):
                    if dump.text:
                        suffix = "json" if dump.source == PYSPY else "txt"
                        path = folder / "raw" / f"{name}-{number}.{suffix}"
                        path.write_text(dump.text, encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def write_text(folder: Path, name: str, text: str) -> str:
    """Write a text as it came beside the stacks, in raw/; answers what went wrong, empty if nothing."""
    try:
        make_private(folder / "raw")
        (folder / "raw" / name).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def render_process(look: RankLook, process: ProcessLook, kernel_stack: str = "") -> str:
    """One process of a look as text: what it is doing first, then its threads as tracebacks, innermost last."""
    role = "the rank itself" if process.pid == look.process.pid else f"below the rank, child of {process.ppid}"
    lines = [
        f"rank {look.global_rank}, pid {process.pid} ({role}): {process.command}",
        f"at {look.at_s:.2f} s of the run",
        f"state {process.state}: {_STATES.get(process.state, 'unknown')}"
        + (f", in the kernel's {process.wchan}" if process.wchan else ""),
        f"{process.cpu_s:.2f} s of CPU, {process.switches} context switches, "
        f"{process.delay_s:.2f} s of wait for a CPU, "
        + (f"{process.io_bytes} bytes read and written so far" if process.io_bytes >= 0 else "I/O not readable"),
    ]
    if process.pid == look.process.pid:
        lines += _render_rank(look)
    if process.trouble:
        lines.append(f"stacks: {process.trouble}")
    elif process.source:
        lines.append(f"stacks by {process.source}")
    if kernel_stack:
        lines += ["", "Kernel stack:", *("  " + line for line in kernel_stack.splitlines())]
    for thread in process.threads:
        lines += ["", *_render_thread(thread)]
    if process.variety:
        lines += ["", f"Main thread, {len(process.variety)} different place(s) in samples within half a second:"]
        for stack in process.variety:
            lines += ["  " + " < ".join(f"{frame.function} ({frame.file}:{frame.line})" for frame in stack)]
    return "\n".join(lines) + "\n"


def _render_rank(look: RankLook) -> list[str]:
    def since(at_s: float) -> str:
        return f"for {look.at_s - at_s:.1f} s"

    inside = [
        (look.in_collective, look.collective_since_s),
        ("process-group creation", look.in_init_since_s),
        ("a data loader", look.in_data_since_s),
        ("a save", look.in_save_since_s),
        ("a garbage collection", look.gc_since_s),
    ]
    lines = [f"inside {name or 'a collective'} {since(at_s)}" for name, at_s in inside if at_s > 0]
    if look.phase:
        lines.append(f"phase {look.phase}, {look.collectives} collectives called, heart silent {since(look.heart_s)}")
    if look.socket_bytes >= 0:
        lines.append(f"{look.socket_bytes} bytes over its TCP sockets so far")
    return lines


def _render_thread(thread: ThreadLook) -> list[str]:
    marks = [
        *(["main"] if thread.is_main else []),
        *(["holds the GIL"] if thread.owns_gil else []),
        f"{thread.cpu_s:.2f} s of CPU",
        f"{thread.switches} switches",
    ]
    name = f" {thread.name!r}" if thread.name else ""
    head = f"Thread {thread.tid or ''}{name} ({', '.join(marks)}), most recent call last:"
    return [head, *(_render_frame(frame) for frame in reversed(thread.frames))]


def _render_frame(frame: Frame) -> str:
    return f'  File "{frame.file}", line {frame.line}, in {frame.function}'
