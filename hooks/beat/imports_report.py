"""Which modules a rank had imported by its first step, and which variables its script had set: for the warm process.

Written once, by the first rank of a node, on the hooks' thread, beside the boards. The others say which variables they
have set: scripts set some in all ranks but the first (WANDB_MODE). Nothing is imported for it, and no file is read.
"""

from __future__ import annotations

import os
import sys

from guardrun.hooks.wire.board import import_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from guardrun.hooks.rank.rank import Rank

MAX_MODULES = 20_000


def write(rank: Rank, before: Mapping[str, str]) -> None:
    """Leave it, where there is none. before: the environment at the rank's start. Raises OSError."""
    import json  # has been imported by sitecustomize

    path = os.path.join(rank.sockets, import_names(rank.local_rank + 1)[-1])
    if os.path.exists(path):
        return
    now = dict(os.environ)
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    modules = find_modules() if rank.local_rank == 0 else []
    text = json.dumps({"modules": modules, "changed": changed})
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(beside, path)


def find_modules() -> list[tuple[str, str | None]]:
    """Each with the file that it came from, in the order in which they were imported."""
    found: list[tuple[str, str | None]] = []
    for name, module in list(sys.modules.items())[:MAX_MODULES]:
        spec = getattr(module, "__dict__", {}).get("__spec__")
        origin = getattr(spec, "origin", None)
        if type(name) is str and spec is not None:
            found.append((name, origin if isinstance(origin, str) else None))
    return found
