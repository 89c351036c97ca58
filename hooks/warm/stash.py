"""Modules that the warm process has imported come back in a forked rank when it imports them, as if for the first time.

A rank starts with what a fresh interpreter has in sys.modules. `Stash`, a finder, answers its imports with the modules
that are there already, and with them come those that the module's code had asked for, in that order: finders that stand
before it (the hooks') meet each as they would in a fresh process.

Before a module is given out it is asked whether a fresh process would get the same: whether each package would still be
found where it was, and whether the variables that its code read are what they were. If not, `refuse` is called: half of
a set of modules can't be imported anew in a process that has their libraries loaded.

What can't be repeated: `from x import y` in modules that are here with x long since. Where a hook has changed x in the
meantime, the names that others took from it are changed with it, in those that come after it (`_take_again`).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

from guardrun.hooks.warm.recorder import AGAIN, READ_BY_LIBRARIES, is_read, read_time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from guardrun.hooks.warm.recorder import Record, Recorder


class _Given:
    """A loader for what is built into the interpreter, and must not be made a second time."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _given(module: ModuleType) -> Any:
    return _Given(module)


class _Step:
    """What `_bring` needs of a module."""

    __slots__ = ("asked", "is_watched", "module", "names", "package", "part", "record", "shown")

    module: ModuleType
    package: str
    part: str
    is_watched: bool
    asked: list[str]
    record: Record | None
    """None: its code does nothing that is to be done again."""
    names: dict[str, Any] | None
    """Its package's, where it has a name there; None: nobody finds it so."""
    shown: Any
    """What that name stands for: not the module, after `from .x import x`."""


class Stash:
    """The modules of the warm process, found again in its ranks."""

    def __init__(self, recorder: Recorder, own: str, watched: Iterable[str]) -> None:
        """Take over what the recorder saw. own: a package that ranks import anew. watched: what hooks change."""
        self._records: dict[str, Record] = recorder.records
        self._fresh = recorder.fresh
        self._own = own
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name not in self._fresh and (name.partition(".")[0] != own or name in self._records)
        }
        self._whole = recorder.whole
        self._loggers = self._read_loggers()
        self._origins = {
            name: _place(getattr(module, "__spec__", None))
            for name, module in self._modules.items()
            if "." not in name and name != own and (name in self._records or _is_namespace(module))
        }
        self._places = recorder.places
        self._set_by_modules = {
            effect.name for record in self._records.values() for effect in record.effects if hasattr(effect, "name")
        }
        self._takers: dict[str, list[tuple[str, str, str, Any]]] = {}
        """Per module: a name in it, the watched module it was taken from, its name there, and what it is."""
        self._watched = frozenset(watched)
        self._find_takers()
        effects: list[Any] = [effect for record in self._records.values() for effect in record.effects]
        added = [effect for effect in effects if getattr(effect, "kind", 0) == 1]
        self._finders = {id(finder) for finder in sys.meta_path}
        self._finders |= {id(finder) for effect in added for finder in (*effect.front, *effect.back)}
        self._looked: dict[str, int] = {}
        """Folders of this rank's own that have nothing by a package's name, and when they last changed."""
        self._steps = {name: self._plan(name) for name in self._modules}
        self._kept: list[object] = []
        self.environ: dict[str, str] = {}
        """With which the rank was started."""
        self.changed: frozenset[str] = frozenset()
        self.refuse: Callable[[str], object] = lambda why: None
        self.can_begin_anew: Callable[[], bool] = lambda: True
        self.seeds_torch = False
        """A fresh process has a random seed."""
        self._is_within = 0
        self.cpus = os.sched_getaffinity(0)
        """Those of the rank at its start: libraries count them as they are loaded."""

    def find_readers(self) -> dict[str, str]:
        """All variables that a module has read, each with one of those, but for modules that read them again."""
        return {
            variable: name
            for name, record in self._records.items()
            if name not in AGAIN and name.partition(".")[0] != self._own
            for variable in record.reads
        }

    def keep(self, *things: object) -> None:
        """For as long as the process lives: what a fork destroys is copied to be destroyed."""
        self._kept.extend(things)

    def begin(self) -> None:
        """In a rank: find what is hidden as it is imported."""
        for name in [name for name in sys.modules if name not in self._fresh]:
            self._kept.append(sys.modules.pop(name))  # the warm process has imported it since it hid the others
        sys.meta_path.insert(0, self)

    def hide(self) -> None:
        """Leave in sys.modules what a fresh interpreter has."""
        for name in [name for name in sys.modules if name not in self._fresh]:
            module = sys.modules.pop(name)
            self._kept.append(module)
            # `from package import module` asks the package first: it knows what has been imported, and nothing else.
            package, _, part = name.rpartition(".")
            names = getattr(self._modules.get(package), "__dict__", None)
            if isinstance(names, dict) and names.get(part) is module and name in self._records:
                del names[part]
        for name, whole in self._whole.items():
            names = getattr(self._modules.get(name), "__dict__", None)
            if isinstance(names, dict):
                for key in [key for key in names if key not in whole]:
                    del names[key]

    # Finder ---------------------------------------------------------------------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec with which it was imported; its loader hands out what is there, this once."""
        module = self._modules.get(name)
        if module is None:
            return None
        record = self._records.get(name)
        if record is None:
            spec = getattr(module, "__spec__", None)
            return ModuleSpec(name, _given(module), origin=spec.origin) if _is_built_in(module) and spec else None
        if not self._is_within:
            self._verify(name)
        loader: Any = record.spec.loader

        def create_module(_: ModuleSpec) -> ModuleType:
            loader.__dict__.pop("create_module", None)
            return module

        def exec_module(_: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            self._is_within += 1
            try:
                self._follow(name, record)
            finally:
                self._is_within -= 1

        loader.create_module = create_module
        loader.exec_module = exec_module
        return record.spec

    def _plan(self, name: str) -> _Step:
        """What `_bring` needs of a module, looked up beforehand: thousands come at once."""
        step, record = _Step(), self._records.get(name)
        step.module = self._modules[name]
        step.package, _, step.part = name.rpartition(".")
        step.is_watched = name in self._watched
        step.asked = [other for other in record.asked if other in self._modules] if record is not None else []
        step.record = record if record is not None and self._does_more(name, record) else None
        names: Any = getattr(self._modules.get(step.package), "__dict__", None)
        # A package that has taken the name away again has none.
        is_shown = record is not None and isinstance(names, dict) and step.part in names
        step.names = names if is_shown else None
        step.shown = names[step.part] if is_shown else None
        return step

    def _does_more(self, name: str, record: Record) -> bool:
        """Whether a module's code does more than to ask for others, and to define its names."""
        more = record.beside or record.at_exit or record.effects or name in self._takers or name in self._loggers
        return bool(more) or name in AGAIN or name in _SEEDED

    def _follow(self, name: str, record: Record) -> None:
        """Do what a module's code does besides defining its names."""
        for other in record.asked:
            if other not in sys.modules and other in self._modules:
                self._bring(other)
        self._do_more(name, record)

    def _do_more(self, name: str, record: Record) -> None:
        for other in record.beside:
            if other in self._modules:
                sys.modules.setdefault(other, self._modules[other])
        for function, arguments, options in record.at_exit:
            atexit.register(function, *arguments, **options)
        for effect in record.effects:
            effect()
        for key, watched, their_key, value in self._takers.get(name, ()):
            now = getattr(sys.modules.get(watched), "__dict__", {}).get(their_key, value)
            names = vars(self._modules[name])
            if now is not value and names.get(key) is value:
                names[key] = now
        for logger, level, handlers, propagate in self._loggers.get(name, ()):
            # A script that set up logging before has switched off what it found there: in a fresh process, not this.
            logger.disabled = False
            if level or handlers or not propagate:
                if logger.level != level:
                    logger.setLevel(level)
                logger.handlers[:], logger.propagate = handlers, propagate
        if name == "multiprocessing.process":
            self._modules[name].current_process().authkey = os.urandom(32)
        elif name == "threading":
            self._modules[name].main_thread()._set_native_id()  # a fork leaves it as it was before Python 3.12
        elif name == "logging":
            names = vars(self._modules[name])  # %(relativeCreated)d counts from here
            names["_startTime"] = time.time() if isinstance(names["_startTime"], float) else time.time_ns()
        elif name == "torch.random" and self.seeds_torch:
            self._modules[name].default_generator.seed()
        elif name == "numpy.random.mtrand":
            self._modules[name].seed()
        elif name in AGAIN:
            AGAIN[name][1](self._modules[name])

    def _bring(self, name: str) -> None:
        """As an import does; where no finder but this one looks out for a module, without asking them all."""
        step, loaded = self._steps[name], sys.modules
        if step.package and step.package not in loaded:
            if step.package not in self._steps:
                import_module(name)
                return
            self._bring(step.package)
            if name in loaded:
                return
        if step.is_watched:
            import_module(name)
        else:
            loaded[name] = step.module
            for other in step.asked:
                if other not in loaded:
                    self._bring(other)
            if step.record is not None:
                self._do_more(name, step.record)
        if step.names is not None:
            step.names[step.part] = step.shown

    def _verify(self, name: str) -> None:
        """Whether a fresh process would get the same, of all that comes with it."""
        coming = None
        if not self._is_surely_found():
            coming = self._closure(name)
            for other in coming:
                if other in self._origins and self._find(other) != self._origins[other]:
                    self.refuse(f"{other} is found elsewhere now")
        changed = self._changed()
        has_other_cpus = os.sched_getaffinity(0) != self.cpus and self.can_begin_anew()
        if not changed and not has_other_cpus:
            return
        coming = self._closure(name) if coming is None else coming
        loaded = [other for other in coming if other in self._records and _is_native(self._records[other].spec)]
        if loaded and has_other_cpus:
            self.refuse("the script has changed this process's CPUs, which libraries count as they are loaded")
        if loaded and any(variable.startswith(READ_BY_LIBRARIES) for variable in changed):
            self.refuse(f"{', '.join(sorted(changed))[:200]} may be read by libraries, and is not what it was")
        for other in coming:
            record = self._records.get(other)
            for variable in record.reads if record is not None and other not in AGAIN else ():
                if is_read(variable, changed):
                    self.refuse(f"{other} reads {variable}, which is not what it was")

    def _is_surely_found(self) -> bool:
        """Whether nothing can stand in the way of any package from here: without looking for each of them."""
        places = self._places
        if any(id(finder) not in self._finders for finder in sys.meta_path if not self._is_own(finder)):
            return False
        if sys.path_hooks != places.hooks or [path for path in sys.path if path in places.times] != places.path:
            return False
        for path in sys.path:
            time_ns = read_time_ns(path)
            if path in places.times:
                if time_ns != places.times[path]:
                    return False
            elif time_ns is not None and self._looked.get(path) != time_ns:
                try:
                    names = os.listdir(path or ".")
                except OSError:
                    return False
                if any(name.partition(".")[0] in self._origins for name in names):
                    return False
                self._looked[path] = time_ns
        return True

    def _is_own(self, finder: object) -> bool:
        return finder is self or type(finder).__module__.startswith(f"{self._own}.")

    def _changed(self) -> set[str]:
        """Variables that are not as the rank was started with, but for what modules from here have set."""
        now, before = dict(os.environ), self.environ
        changed = {name for name, value in now.items() if before.get(name) != value}
        changed |= before.keys() - now.keys()
        return changed - self._set_by_modules - {"GUARDRUN_HOOKS", "PYTHONPATH"}  # which sitecustomize puts back

    def _closure(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if one in found or one in sys.modules or one not in self._modules:
                continue
            found[one] = None
            package = one.rpartition(".")[0]
            if package:
                waiting.append(package)
            if (record := self._records.get(one)) is not None:
                waiting.extend(record.asked)
                waiting.extend(record.beside)
        return list(found)

    def _find(self, name: str) -> object:
        for finder in sys.meta_path:
            if self._is_own(finder):
                continue
            find = getattr(finder, "find_spec", None)
            spec = find(name, None) if find is not None else None
            if spec is not None:
                return _place(spec)
        return None

    # What is looked at beforehand ---------------------------------------------------------------------------------

    def _find_takers(self) -> None:
        owners: dict[int, tuple[str, str, Any]] = {}
        for name in self._watched:
            module = self._modules.get(name)
            for key, value in vars(module).items() if module is not None else ():
                if type(value) in (FunctionType, type) and value.__module__ == name:
                    owners[id(value)] = (name, key, value)
        for name, module in self._modules.items():
            names = getattr(module, "__dict__", None)
            for key, value in list(names.items()) if isinstance(names, dict) else ():
                owner = owners.get(id(value))
                if owner is not None and owner[0] != name:
                    self._takers.setdefault(name, []).append((key, *owner))

    def _read_loggers(self) -> dict[str, list[tuple[Any, int, list[Any], bool]]]:
        logging = sys.modules.get("logging")
        if logging is None:
            return {}
        known = logging.root.manager.loggerDict
        found: dict[str, list[tuple[Any, int, list[Any], bool]]] = {}
        for name, record in self._records.items():
            for logger in (known.get(one) for one in record.loggers):
                if isinstance(logger, logging.Logger):
                    state = (logger, logger.level, list(logger.handlers), logger.propagate)
                    found.setdefault(name, []).append(state)
        return found


_SEEDED = ("logging", "multiprocessing.process", "threading", "torch.random", "numpy.random.mtrand")
"""Modules that have something of each process's own."""


def _place(spec: ModuleSpec | None) -> object:
    """Where a module was found: of a namespace package, its folders."""
    if spec is None:
        return None
    if spec.origin is None and spec.submodule_search_locations is not None:
        return tuple(spec.submodule_search_locations)
    return spec.origin


def _is_namespace(module: object) -> bool:
    """Say whether it is a package that lies in several folders, and has no code."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _is_native(spec: ModuleSpec) -> bool:
    return str(spec.origin).endswith(".so")


def _is_built_in(module: object) -> bool:
    """Say whether a module has no loader of its own: builtin or frozen."""
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), type)
