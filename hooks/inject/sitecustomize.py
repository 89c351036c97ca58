"""Brings guardrun's hooks into a rank, before the script's first line, and leaves no other trace.

Python's `site` imports `sitecustomize` at start-up; the launcher puts this folder, which holds nothing else, first
on PYTHONPATH. In order: take back what the launcher changed (GUARDRUN_HOOKS, PYTHONPATH, sys.path), so that children
and the script see what torchrun would have given them; hand over to the `sitecustomize` that this one shadows; then
activate. Whatever fails in guardrun's own part is said in one line and training goes on.

A rank may run any Python that its wrapper script chooses: the syntax here is old on purpose, and what the rest needs
is checked first. No module is imported that the interpreter has not loaded already, unless this is a rank.
"""

import os
import sys


def _leave_path():  # type: () -> None
    """Take this folder off sys.path, where nothing but this file would be found in it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    sys.path_importer_cache.pop(folder, None)


def _take_settings():  # type: () -> dict[str, object] | None
    """Take GUARDRUN_HOOKS out of the environment and put PYTHONPATH back; None where this is no rank."""
    text = os.environ.pop("GUARDRUN_HOOKS", None)
    if text is None:
        return None
    import json

    settings = json.loads(text)  # type: dict[str, object]
    before = settings["pythonpath"]
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = str(before)
    return settings


def _activate(settings):  # type: (dict[str, object]) -> None
    """Import guardrun's hooks, from this file's own surroundings where sys.path does not lead to them, and start."""
    if sys.version_info < (3, 10):  # noqa: UP036
        raise RuntimeError("Python 3.10 or newer is needed, this is %d.%d" % sys.version_info[:2])  # noqa: UP031
    settings["inject"] = os.path.dirname(os.path.abspath(__file__))
    try:
        from guardrun.hooks.startup.activate import activate
    except ImportError:
        hooks = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        parent = os.path.dirname(hooks)
        # Installed: …/guardrun/hooks/inject. A source tree: …/hooks/inject beside …/src/guardrun.
        root = os.path.dirname(parent) if os.path.basename(parent) == "guardrun" else os.path.join(parent, "src")
        sys.path.append(root)
        try:
            from guardrun.hooks.startup.activate import activate
        finally:
            sys.path.remove(root)
    activate(settings)


def _warn(error):  # type: (BaseException) -> None
    try:
        text = "guardrun: hooks are off in this rank: %s: %s\n" % (type(error).__name__, error)  # noqa: UP031
        os.write(2, text.encode("utf-8", "replace"))
    except Exception:  # A closed stderr: there is nobody to tell.
        pass


def _wait_to_be_rank(number):  # type: (str) -> None
    """Hold this process as the node's warm one (hooks/warm/warm_process.py): what returns is a rank, forked of it."""
    fresh = frozenset(sys.modules)
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    root = os.path.dirname(folder) if os.path.basename(folder) == "guardrun" else os.path.join(folder, "src")
    before = list(sys.path)
    sys.path.append(root)
    is_rank = False
    try:
        from guardrun.hooks.warm.warm_process import wait

        sys.path[:] = before
        wait(number, fresh)
        is_rank = True
    finally:
        if not is_rank:
            # The script must not run here.
            os._exit(1)


_settings = None
_leave_path()
_warm = os.environ.pop("GUARDRUN_WARM", None)
if _warm is not None:
    _wait_to_be_rank(_warm)
try:
    _settings = _take_settings()
except Exception as _error:
    _warn(_error)

try:
    # Importing the real one puts it into sys.modules in this module's place. Where there is none, the ImportError
    # that names `sitecustomize` is what `site` expects then; real errors are shown as they would have been.
    if __name__ == "sitecustomize":
        sys.modules.pop(__name__, None)
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    if _settings is not None:
        try:
            _activate(_settings)
        except Exception as _error:
            _warn(_error)
