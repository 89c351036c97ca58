"""Functions as ranks (torchrun's --run-path): the child of multiprocessing learns in torch's `_wrap` which rank it is.

Its interpreter starts as those of helpers of multiprocessing do (the fork server, the resource tracker), which are no
ranks. So nothing is started before torch calls the rank's function; what the hooks want of torch is imported by then.
"""

from __future__ import annotations

import functools
import os

from guardrun.hooks.startup.import_hooks import Finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

HOOKS = {"torch.distributed.elastic.multiprocessing.api": "guardrun.hooks.startup.spawned_functions"}
OUTLETS = "GUARDRUN_OUTLETS"
"""In the environment that torch hands over: `2:PATH` and `1:PATH`, where this rank's output is to go that it would
inherit."""


class Waiting:
    """In a rank's place until there is one."""

    def __init__(self, activate: Callable[[dict[str, object]], None], settings: dict[str, object]) -> None:
        self.activate = activate
        self.settings = settings

    def fail(self, hook: str, error: BaseException) -> None:
        """One line on stderr; training goes on."""
        text = f"guardrun: hooks are off in this rank: {hook}: {type(error).__name__}: {error}\n"
        try:
            os.write(2, text.encode("utf-8", "replace"))
        except OSError:  # A closed stderr: there is nobody to tell.
            pass


def wait(activate: Callable[[dict[str, object]], None], settings: dict[str, object]) -> None:
    """Have hooks activated once torch calls a rank's function here, if it ever does."""
    Finder(Waiting(activate, settings), dict(HOOKS)).start()


def install(module: ModuleType, waiting: Waiting) -> None:
    """Be asked by torch's `_wrap`, which is given every rank's environment and sets this one's."""
    original = module._wrap

    @functools.wraps(original)
    def _wrap(local_rank: int, fn: Any, args: Any, envs: dict[int, dict[str, str]], *more: Any, **named: Any) -> Any:
        try:
            open_outlets(envs[local_rank].pop(OUTLETS, ""))
            os.environ.update(envs[local_rank])
            waiting.activate(waiting.settings)
        except Exception as error:
            waiting.fail("--run-path", error)
        return original(local_rank, fn, args, envs, *more, **named)

    module.__dict__["_wrap"] = _wrap


def open_outlets(outlets: str) -> None:
    """Put what the launcher has for this rank in the place of what it inherited, which it keeps where that fails."""
    for outlet in outlets.split():
        number, _, path = outlet.partition(":")
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # a /proc that shows a user's processes to nobody, not even that user
            continue
        os.dup2(opened, int(number))
        os.close(opened)
