"""Grouped stacks on a terminal."""

from __future__ import annotations

from guardrun.supervisor.core.frames import is_users
from guardrun.supervisor.ctl.output import Output
from guardrun.supervisor.render.stacks import Stack, fold, frame_line, group_stacks


def print_stacks(out: Output, stacks: list[Stack], culprits: list[int] | None = None, is_full: bool = False) -> None:
    """Print stacks, equal ones once, innermost frame first; library frames folded unless is_full."""
    for number, group in enumerate(group_stacks(stacks, culprits)):
        if number:
            out.line()
        note = f": {group.first.note}" if group.first.note else ""
        gil = ", holds the GIL" if any(stack.owns_gil for stack in group.stacks) else ""
        out.line(f"{group.title()}{gil}{note}", "bold")
        if not group.first.frames:
            out.line("    no Python frames", "dim")
        for part in fold(group.first.frames):
            if part.label and not is_full:
                out.line(f"    … {part.label}", "dim")
                continue
            for frame in part.frames:
                out.line(f"    {frame_line(frame)}", "" if is_users(frame) else "dim")
