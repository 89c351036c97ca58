"""The parts of a module, its parameters and buffers, by name: as torch keeps them. No method of a script is called."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_MODULES = 100_000


def walk(model: Any) -> list[tuple[str, Any]]:
    """Each part once, by its first path, the model itself (empty) first; in the order of torch's named_modules."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting and len(found) < MAX_MODULES:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        waiting += [(f"{path}.{name}" if path else name, part) for name, part in reversed(held_by(module, "_modules"))]
    return found


def name_tensors(tree: list[tuple[str, Any]], kind: str) -> list[tuple[str, Any]]:
    """Each one's first name. tree: of walk(); kind: `_parameters`, `_buffers`."""
    found: dict[int, tuple[str, Any]] = {}
    for path, module in tree:
        for name, tensor in held_by(module, kind):
            found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return list(found.values())


def held_by(module: Any, kind: str) -> list[tuple[str, Any]]:
    """What it has of a kind (`_modules`, `_parameters`, `_buffers`) itself."""
    held = getattr(module, "__dict__", {}).get(kind)
    return [(str(name), one) for name, one in list(held.items()) if one is not None] if held else []
