"""What a module is called: its place in the outermost module of a step that has it."""

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
