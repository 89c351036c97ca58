"""The hook of ours that torch.compile traces, as the only one of our functions: it finds nothing in it.

dynamo traces the hooks of a module that it compiles. A hook that it must not look into (hooks/patches/torch_import.py)
would end the graph at each module.
"""

from __future__ import annotations

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
