"""Frames and grouped stacks from plain data: an incident's evidence, or py-spy's JSON."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model.looks import Frame


def parse_frame(data: Any) -> Frame | None:
    """A frame from plain data: [function, file, line], or an object as py-spy has it. None where it is neither."""
    if isinstance(data, Frame):
        return data
    if isinstance(data, (list, tuple)) and len(data) == 3:
        function, file, line = data
    elif isinstance(data, dict):
        function = data.get("function", data.get("name", "?"))
        file = data.get("file", data.get("filename", "?"))
        line = data.get("line", 0)
    else:
        return None
    return Frame(str(function), str(file), line if isinstance(line, int) else 0)


def parse_frames(data: Any) -> list[Frame]:
    """Those of the frames that are frames."""
    found = [parse_frame(item) for item in data] if isinstance(data, (list, tuple)) else []
    return [frame for frame in found if frame is not None]
