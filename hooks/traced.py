"""The hooks of ours that torch.compile traces, as the only ones of our functions: it finds nothing in them.

dynamo traces the hooks of a module that it compiles. A hook that it must not look into (hooks/patches/torch_import.py)
would end the graph at each module.
"""

from __future__ import annotations

import sys
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def make_module_hook(torch: Any, on_call: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """A forward hook for all modules that calls `on_call`, but for what is compiled."""

    def hook(module: Any, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        on_call(module, args, output)

    return hook


def make_passing_hooks(
    torch: Any, on_enter: Callable[[Any, Any], None], on_leave: Callable[[Any, Any, Any], None]
) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]:
    """A pair of hooks for all modules, before and after forward(), that come and go: dynamo compiles neither by itself.

    It would, where a compiled module's own hooks are called: once for each pair that comes.
    """

    def before(module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        on_enter(module, args)

    def after(module: Any, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        on_leave(module, args, output)

    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is not None:
        skip(before.__code__)
        skip(after.__code__)
    return before, after
