"""What modules, and groups of them, are called: by their place in the outermost module of a step that has them."""

from __future__ import annotations

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def name_module(module: Any, called: Sequence[Any]) -> str:
    """`encoder.2.norm (LayerNorm)`. called: the modules of the step, in order: outer ones come after their parts."""
    kind = type(module).__name__
    for outer in reversed(called):
        if outer is not module:
            for name, inner in outer.named_modules():
                if inner is module:
                    return f"{name} ({kind})"
    return kind


def find_roots(called: Sequence[Any]) -> set[int]:
    """The id() of each module that is no part of another one. called: in order, outer ones after their parts."""
    roots, parts = set[int](), set[int]()
    for module in reversed(called):
        if id(module) not in parts:
            roots.add(id(module))
            parts.update(map(id, module.modules()))
    return roots


MAX_DEPTH = 4


def group_of(parameter: str) -> str:
    """`model.layers.3` of `model.layers.3.attn.q.weight`, `embed` of `embed.weight`; `scale` of a model's own."""
    parts = parameter.split(".")[:-1] or [parameter]
    for place, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:MAX_DEPTH])
