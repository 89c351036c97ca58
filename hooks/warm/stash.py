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
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

from guardrun.hooks.warm.recorder import AGAIN, is_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from guardrun.hooks.warm.recorder import Record, Recorder

READ_BY_LIBRARIES = (
    "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "VECLIB_",
    "LC_", "LANG", "TZ", "ATEN_", "PYTORCH_", "TORCH_CPP_", "TORCH_SHOW_", "DNNL_", "ONEDNN_", "RAYON_",
    "JEMALLOC", "ARROW_", "OPENSSL_", "SSL_", "KINETO_",
)  # fmt: skip
"""Variables that libraries may read as they are loaded, where no recorder sees it."""


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
            if name not in self._fresh and name.partition(".")[0] != own
        }
        self._whole = recorder.whole
        self._loggers = self._read_loggers()
        self._origins = {
            name: _place(getattr(module, "__spec__", None))
            for name, module in self._modules.items()
            if "." not in name and (name in self._records or _is_namespace(module))
        }
        self._takers: dict[str, list[tuple[str, str, str, Any]]] = {}
        """Per module: a name in it, the watched module it was taken from, its name there, and what it is."""
        self._watched = frozenset(watched)
        self._find_takers()
        self._shown = self._find_shown()
        self._kept: list[object] = []
        self.environ: dict[str, str] = {}
        """With which the rank was started."""
        self.changed: frozenset[str] = frozenset()
        self.refuse: Callable[[str], object] = lambda why: None
        self.seeds_torch = False
        """A fresh process has a random seed."""
        self._is_within = 0

    def find_readers(self) -> dict[str, str]:
        """All variables that a module has read, each with one of those, but for modules that read them again."""
        return {
            variable: name
            for name, record in self._records.items()
            if name not in AGAIN and name.partition(".")[0] != self._own
            for variable in record.reads
        }

    def hide(self) -> None:
        """Leave in sys.modules what a fresh interpreter has, and find the rest again as it is imported."""
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
        sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Find nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

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

    def _follow(self, name: str, record: Record) -> None:
        """Do what a module's code does besides defining its names."""
        for other in record.asked:
            if other not in sys.modules and other in self._modules:
                self._bring(other)
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
                logger.setLevel(level)
                logger.handlers[:], logger.propagate = handlers, propagate
        if name == "multiprocessing.process":
            self._modules[name].current_process().authkey = os.urandom(32)
        elif name == "threading":
            self._modules[name].main_thread()._set_native_id()  # a fork leaves it as it was before Python 3.12
        elif name == "torch.random" and self.seeds_torch:
            self._modules[name].default_generator.seed()
        elif name == "numpy.random.mtrand":
            self._modules[name].seed()
        elif name in AGAIN:
            AGAIN[name][1](self._modules[name])

    def _bring(self, name: str) -> None:
        """As an import does; where no finder but this one looks out for a module, without asking them all."""
        package, _, part = name.rpartition(".")
        record = self._records.get(name)
        if package and package not in sys.modules:
            if package not in self._modules:
                import_module(name)
                return
            self._bring(package)
            if name in sys.modules:
                return
        if name in self._watched:
            import_module(name)
        else:
            sys.modules[name] = self._modules[name]
            if record is not None:
                self._follow(name, record)
        if package and record is not None:
            names = getattr(self._modules.get(package), "__dict__", None)
            if isinstance(names, dict):
                names[part] = self._shown.get(name, self._modules[name])

    def _verify(self, name: str) -> None:
        """Whether a fresh process would get the same, of all that comes with it."""
        coming = self._closure(name)
        for other in coming:
            if other in self._origins and self._find(other) != self._origins[other]:
                self.refuse(f"{other} is found elsewhere now")
        changed = self._changed()
        if not changed:
            return
        loaded = [other for other in coming if other in self._records and _is_native(self._records[other].spec)]
        if loaded and any(variable.startswith(READ_BY_LIBRARIES) for variable in changed):
            self.refuse(f"{', '.join(sorted(changed))[:200]} may be read by libraries, and is not what it was")
        for other in coming:
            record = self._records.get(other)
            for variable in record.reads if record is not None and other not in AGAIN else ():
                if is_read(variable, changed):
                    self.refuse(f"{other} reads {variable}, which is not what it was")

    def _changed(self) -> set[str]:
        """Variables that are not as the rank was started with, but for what modules from here have set."""
        now, before = os.environ, self.environ
        own = {effect.name for record in self._records.values() for effect in record.effects if hasattr(effect, "name")}
        changed = {name for name, value in now.items() if before.get(name) != value}
        changed |= {name for name in before if name not in now}
        return changed - own - {"GUARDRUN_HOOKS", "PYTHONPATH"}  # which sitecustomize puts back

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
            if finder is self or type(finder).__module__.startswith(f"{self._own}."):
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

    def _find_shown(self) -> dict[str, Any]:
        """Per module whose package knows something else by its name (`from .x import x`), what that is."""
        shown = {}
        for name, module in self._modules.items():
            package, _, part = name.rpartition(".")
            names = getattr(self._modules.get(package), "__dict__", None)
            if isinstance(names, dict) and part in names and names[part] is not module:
                shown[name] = names[part]
        return shown

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
