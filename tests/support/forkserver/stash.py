"""Modules that were imported once, and come back in a forked process when it imports them, as if for the first time.

The server imports under `Recorder`: which modules each module's code asked for is written down. A forked process then
starts with what a fresh interpreter has; `Stash`, a meta path finder, answers its imports with the modules that are
there already, and imports at the same moment whatever the module's code had asked for. So finders that were put before
it (guardrun's hooks) meet every module as they would in a fresh process, in the same order.

What cannot be repeated: `from x import y` in modules that were imported with x long since. Where a hook has changed x
in the meantime, the names that others took from it are changed with it (`_hand_on`).
"""

from __future__ import annotations

import atexit
import builtins
import sys
from importlib import import_module
from types import FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # What is imported here is not seen by the recorder, and no child can be without it.
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from typing import Any


class Recorder:
    """Writes down, while the server imports, what asks for what."""

    def __init__(self) -> None:
        self.specs: dict[str, ModuleSpec] = {}
        self.asked: dict[str, list[str]] = {}
        """Per module, the names that its code asked for, in order."""
        self.beside: dict[str, list[str]] = {}
        """Per module, those that its code put into sys.modules without an import that was seen."""
        self.at_exit: dict[str, list[tuple[Any, Any, Any]]] = {}
        """Per module, what its code wanted to be called at the end, and how."""
        self._running: list[str] = []
        self._import = builtins.__import__
        self._register = atexit.register

    def begin(self) -> None:
        sys.meta_path.insert(0, self)
        builtins.__import__ = self._note_import
        atexit.register = self._note_at_exit

    def end(self) -> None:
        sys.meta_path.remove(self)
        builtins.__import__ = self._import
        atexit.register = self._register

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find it, and be there when it is executed."""
        spec = find_by_others(self, name, path, target)
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if self._running:
                self._note(spec.name)
            self.specs[spec.name] = spec
            self._running.append(spec.name)
            before = len(sys.modules)
            try:
                execute(module)
            finally:
                self._running.pop()
                new = list(sys.modules)[before:]
                self.beside[spec.name] = [name for name in new if name not in self.specs]

        loader.exec_module = exec_module

    def _note_import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        module = self._import(name, globals, locals, fromlist, level)
        if self._running:
            whole = name
            if level and globals:
                package = globals.get("__package__") or ""
                parts = package.rsplit(".", level - 1)[0]
                whole = f"{parts}.{name}" if name else parts
            self._note(whole)
            for part in fromlist or ():
                self._note(f"{whole}.{part}")
        return module

    def _note_at_exit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if self._running:
            self.at_exit.setdefault(self._running[-1], []).append((function, arguments, options))
        return self._register(function, *arguments, **options)

    def _note(self, name: str) -> None:
        if name in sys.modules:
            asked = self.asked.setdefault(self._running[-1], [])
            if name not in asked:
                asked.append(name)


class Stash:
    """The modules of a server, found again in its children."""

    def __init__(
        self,
        recorder: Recorder,
        base: Iterable[str],
        watched: Iterable[str],
        read_again: Mapping[str, Callable[[Any], object]],
    ) -> None:
        """Take over what the recorder saw.

        base: names that a fresh interpreter has already. watched: modules that finders before this one change.
        read_again: per module, what reads the environment anew as its code does.
        """
        self._read_again = read_again
        # What is built into the interpreter would be made a second time.
        self._base = frozenset(base) | {name for name, module in sys.modules.items() if _is_built_in(module)}
        self._specs = recorder.specs
        self._asked = recorder.asked
        self._beside = recorder.beside
        self._at_exit = recorder.at_exit
        self._modules = {name: module for name, module in sys.modules.items() if name not in self._base}
        self._forgotten: tuple[str, ...] = ()
        self._takers = self._find_takers(watched)
        self._hidden = self._find_hidden()
        self._claimed: dict[str, dict[str, Any]] = {}
        """Modules that another finder wants to see executed, and what they held before it did."""

    def hide(self) -> None:
        """Leave in sys.modules what a fresh interpreter has.

        In the server, before it forks, and again in a process that is forked: so that this one finds little to hide.
        Whatever is touched there is a page that the kernel copies.
        """
        # `from package import module` asks the package first: it knows what has been imported, and nothing else.
        for name in [name for name in sys.modules if name not in self._base]:
            module = sys.modules.pop(name)
            package, _, part = name.rpartition(".")
            if package.partition(".")[0] in self._forgotten:
                continue
            names = getattr(self._modules.get(package), "__dict__", None)
            if name in self._specs and isinstance(names, dict) and names.get(part) is module:
                del names[part]
        if self not in sys.meta_path:
            sys.meta_path.insert(_place_before_path_finder(), self)

    def find_others(self) -> list[ModuleType]:
        """What has been imported here and is not the server's."""
        return [sys.modules[name] for name in sys.modules if not self._has(name)]

    def forget(self, package: str) -> None:
        """Let its modules be imported anew, from their files. They are kept: to destroy them would touch every one."""
        self._forgotten += (package,)

    def _has(self, name: str) -> bool:
        return name in self._modules and name.partition(".")[0] not in self._forgotten

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec with which it was imported; its loader hands out what is there, this once."""
        spec = self._specs.get(name)
        if spec is None or not self._has(name):
            return None
        module = self._modules[name]
        loader: Any = spec.loader

        def create_module(_: ModuleSpec) -> ModuleType:
            del loader.create_module
            if loader.exec_module is not exec_module and name in self._takers:
                self._claimed[name] = dict(vars(module))
            return module

        def exec_module(_: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            self._follow(name, module)

        loader.create_module = create_module
        loader.exec_module = exec_module
        return spec

    def _follow(self, name: str, module: ModuleType) -> None:
        """Do what a module's code does besides defining its names."""
        self._ask_again(name)
        for function, arguments, options in self._at_exit.get(name, ()):
            atexit.register(function, *arguments, **options)
        if name in self._read_again:
            self._read_again[name](module)

    def _ask_again(self, name: str) -> None:
        for other in self._asked.get(name, ()):
            if other in sys.modules or not self._has(other):
                continue
            if other in self._specs:
                self._import(other)
                self._hand_on(other)
                if other in self._hidden:
                    package, _, part = other.rpartition(".")
                    setattr(self._modules[package], part, self._hidden[other])
            else:
                sys.modules[other] = self._modules[other]
        for other in self._beside.get(name, ()):
            if self._has(other):
                sys.modules.setdefault(other, self._modules[other])

    def _import(self, name: str) -> None:
        """As import_module does; where no finder but this one looks out for a module, without asking them all."""
        package, _, part = name.rpartition(".")
        if name in self._takers or (package and not self._has(package)):
            import_module(name)
            return
        if package and package not in sys.modules:
            self._import(package)
        if name not in sys.modules:
            sys.modules[name] = module = self._modules[name]
            self._follow(name, module)
            if package:
                setattr(self._modules[package], part, module)

    def _hand_on(self, name: str) -> None:
        """Give those who took names from a module what it holds now."""
        before = self._claimed.pop(name, None)
        if before is None:
            return
        now = vars(sys.modules[name])
        for key, holders in self._takers[name].items():
            if now.get(key) is not before.get(key):
                for holder, as_name in holders:
                    if holder.get(as_name) is before.get(key):
                        holder[as_name] = now[key]

    def _find_hidden(self) -> dict[str, Any]:
        """Per module whose package knows something else by its name (`from .x import x`), what that is."""
        hidden = {}
        for name, module in self._modules.items():
            package, _, part = name.rpartition(".")
            names = getattr(self._modules.get(package), "__dict__", None)
            if isinstance(names, dict) and part in names and names[part] is not module:
                hidden[name] = names[part]
        return hidden

    def _find_takers(self, watched: Iterable[str]) -> dict[str, dict[str, list[tuple[dict[str, Any], str]]]]:
        """Per watched module and name, where else the same object is known by a module's global."""
        owners: dict[int, tuple[str, str]] = {}
        takers: dict[str, dict[str, list[tuple[dict[str, Any], str]]]] = {}
        for name in watched:
            module = self._modules.get(name)
            if module is None:
                continue
            takers[name] = {}
            for key, value in vars(module).items():
                if type(value) in (FunctionType, type) and value.__module__ == name:
                    owners[id(value)] = (name, key)
        for module in list(self._modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for key, value in names.items():
                owner = owners.get(id(value))
                if owner is not None and names is not vars(self._modules[owner[0]]):
                    takers[owner[0]].setdefault(owner[1], []).append((names, key))
        return takers


def _is_built_in(module: object) -> bool:
    """Say whether a module has no loader of its own: builtin or frozen."""
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), type)


def find_by_others(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders after this one find."""
    others = sys.meta_path[sys.meta_path.index(finder) + 1 :]  # type: ignore[arg-type]
    for other in others:
        find: Callable[..., ModuleSpec | None] | None = getattr(other, "find_spec", None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


def _place_before_path_finder() -> int:
    """After builtin and frozen modules, and before whatever looks at files."""
    names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
    return names.index("PathFinder") if "PathFinder" in names else len(names)
