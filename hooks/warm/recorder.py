"""What each module's code did when it was executed: asked for, read, changed; so that it can be done again, or refused.

The warm process imports under a `Recorder`. Each module's code has a record: the modules it asked for, the variables of
the environment it read, what is to be called at the end, and what it changed in the interpreter that a forked rank does
again as it is given the module (`effects`). What can't be done again, or must not be shared by processes (threads,
descriptors, devices, handlers of signals, child processes, …), makes it unfit (`unfit`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in no stub; the interpreter has it at its start
import _warnings
import atexit
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # What is imported here is not seen by the recorder, and no rank can be without it.
    from collections.abc import Callable, Collection, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from guardrun.hooks.warm.process_state import Inspector

RANK_VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
RANK_PREFIXES = ("TORCHELASTIC_", "GUARDRUN_")
"""Variables that differ between ranks, or attempts."""

READ_BY_LIBRARIES = (
    "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "VECLIB_",
    "LC_", "LANG", "TZ", "ATEN_", "PYTORCH_", "TORCH_CPP_", "TORCH_SHOW_", "DNNL_", "ONEDNN_", "RAYON_",
    "JEMALLOC", "ARROW_", "OPENSSL_", "SSL_", "KINETO_",
)  # fmt: skip
"""Variables that libraries may read as they are loaded, where no recorder sees it."""

AGAIN: dict[str, tuple[frozenset[str], Callable[[Any], object]]] = {
    "lightning.fabric.utilities.rank_zero": (
        frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"}),
        lambda module: setattr(module.rank_zero_only, "rank", module._get_rank() or 0),
    ),
    "torchmetrics.utilities.prints": (
        frozenset({"LOCAL_RANK"}),
        lambda module: setattr(module.rank_zero_only, "rank", int(os.environ.get("LOCAL_RANK", "0"))),
    ),
    "torch.distributed": (frozenset(), lambda module: getattr(module, "set_debug_level_from_env", int)()),
}
"""Modules that read such variables as they are imported: which they may read, and how they are had to do so again."""

PREFIXES = {"tqdm.std": "TQDM_", "fsspec.config": "FSSPEC_"}
"""Modules that go through the whole environment for variables that begin so."""

_KNOWN_FORK_HANDLERS = (
    "random", "threading", "logging", "concurrent.futures.thread", "multiprocessing.util", "torch",
    "filelock._api", "fsspec.asyn", "fsspec.spec", "huggingface_hub.utils._http",
)  # fmt: skip
"""They mend what a fork leaves, and do nothing else."""


def differs_by_rank(name: str) -> bool:
    """Say whether a variable is one of those that each rank, or attempt, has its own value of."""
    return name in RANK_VARIABLES or name.startswith(RANK_PREFIXES)


def is_read(variable: str, names: Collection[str]) -> bool:
    """Say whether one of these is what a record says was read."""
    return any(name.startswith(variable[:-1]) for name in names) if variable.endswith("*") else variable in names


class Record:
    """What one module's code did."""

    __slots__ = ("asked", "at_exit", "beside", "effects", "loggers", "reads", "seconds", "spec")

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec
        self.asked: dict[str, None] = {}
        """Names it asked for, in order."""
        self.beside: list[str] = []
        """Those that it put into sys.modules without an import that was seen."""
        self.reads: dict[str, str | None] = {}
        """Variables, with the value that it met first; `X*`: all whose names begin so."""
        self.at_exit: list[tuple[Any, Any, Any]] = []
        self.effects: list[Callable[[], object]] = []
        self.loggers: list[str] = []
        self.seconds = 0.0


class _Watched(dict):  # type: ignore[type-arg]
    """os.environ's own dict, with its readers noted."""

    note: Callable[[bytes | None], None]

    def __getitem__(self, key: Any) -> Any:
        self.note(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        self.note(None)
        return super().__iter__()


class Recorder:
    """Writes down, while modules are imported, what each one's code does."""

    def __init__(self, fresh: frozenset[str], inspect: Inspector) -> None:
        """fresh: modules of a fresh interpreter. inspect: notes what this process has that forks must not share."""
        self.fresh = fresh
        self.records: dict[str, Record] = {}
        self.unfit: dict[str, str] = {}
        """Per module, why no rank may have it from here."""
        self.failed: dict[str, str] = {}
        self.unseeded: list[Any] = []
        """Generators of random numbers that nobody gave a seed: ranks seed theirs anew."""
        self.whole: dict[str, frozenset[str]] = {}
        """Per module that makes its names when they are asked for: those that it had when its code had ended."""
        self.inspect = inspect
        self._running: list[str] = []
        self._import = builtins.__import__
        self._register, self._at_fork = atexit.register, os.register_at_fork
        self._environ: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        self._logger_count = 0
        self._restore_seeds: Callable[[], object] = int
        self._root: tuple[Any, ...] | None = None
        self.places = Places()

    # Begin and end -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on."""
        watched = _Watched(self._environ)
        watched.note = self._note_read
        os.environ._data = watched  # type: ignore[attr-defined]
        self._environ = watched
        self._seen_environ = dict(watched.items())
        self.environ = {os.fsdecode(key): os.fsdecode(value) for key, value in watched.items()}
        """As it was before anything was imported."""
        self._began = self._changeable()
        sys.meta_path.insert(0, self)
        self._forget_earlier()
        builtins.__import__ = self._note_import
        atexit.register = self._note_at_exit
        os.register_at_fork = self._note_at_fork
        self._seen, self._fixed = self._changeable(), self._unchangeable()
        import importlib

        self._import_module = importlib.import_module
        importlib.import_module = self._note_import_module

    def _forget_earlier(self) -> None:
        """Have what this package has imported imported again, by others: nobody has seen it."""
        for name, module in list(sys.modules.items()):
            is_file = getattr(getattr(module, "__spec__", None), "has_location", False)
            if is_file and name not in self.fresh and name.partition(".")[0] != "guardrun":
                del sys.modules[name]

    def end(self) -> None:
        """No longer; finders and warnings' filters are what they were."""
        filters, finders = self._began
        _filters()[:], sys.meta_path[:] = filters, finders
        _note_new_filters()
        builtins.__import__ = self._import
        importlib: Any = sys.modules["importlib"]
        importlib.import_module = self._import_module
        atexit.register = self._register
        os.register_at_fork = self._at_fork
        os.environ._data = dict(self._environ.items())  # type: ignore[attr-defined]
        self._restore_seeds()
        self._give_back()

    def _give_back(self) -> None:
        """To modules that have taken a function by its name, while another one stood in its place."""
        before = {
            "_note_import": self._import,
            "_note_import_module": self._import_module,
            "_note_at_exit": self._register,
            "_note_at_fork": self._at_fork,
        }
        method: Any = type(self.end)
        for module in list(sys.modules.values()):
            names: Any = getattr(module, "__dict__", None)
            for key, value in list(names.items()) if isinstance(names, dict) else ():
                if type(value) is method and value.__self__ is self and value.__name__ in before:
                    names[key] = before[value.__name__]

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Whatever was recorded of these modules: ranks import them as ever."""
        for name in [name for name in self.records if is_meant(name)]:
            del self.records[name]

    # Imports ------------------------------------------------------------------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find it, and be there when it is executed."""
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and not isinstance(spec.loader, type):
                    self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            self._settle()
            if self._running:
                self._note(spec.name, is_new=True)
            record = self.records[spec.name] = Record(spec)
            self._running.append(spec.name)
            before = len(sys.modules)
            try:
                execute(module)
            finally:
                self._settle()
                self._running.pop()
            record.beside = [name for name in list(sys.modules)[before:] if name not in self.records]
            names = getattr(sys.modules.get(spec.name), "__dict__", {})
            if "__getattr__" in names or type(sys.modules.get(spec.name)).__name__ != "module":
                self.whole[spec.name] = frozenset(names)
            if spec.name == "random":
                self._watch_seeds(module)

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

    def _note_import_module(self, name: str, package: str | None = None) -> ModuleType:
        module = self._import_module(name, package)
        if self._running:
            self._note(module.__name__)
        return module

    def _note(self, name: str, *, is_new: bool = False) -> None:
        if is_new or name in sys.modules:
            self.records[self._running[-1]].asked[name] = None

    # The rest -----------------------------------------------------------------------------------------------------

    def _note_at_exit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if self._running:
            self.records[self._running[-1]].at_exit.append((function, arguments, options))
        return self._register(function, *arguments, **options)

    def _note_at_fork(self, **handlers: Any) -> None:
        who = self._running[-1] if self._running else ""
        if who not in _KNOWN_FORK_HANDLERS:
            self._condemn(f"it asks to be called at forks ({', '.join(handlers)})")
        self._at_fork(**handlers)

    def _note_read(self, key: Any) -> None:
        if not self._running:
            return
        running = self._running[-1]
        name, prefix = "*" if key is None else os.fsdecode(key), PREFIXES.get(running, "")
        if key is None:
            name = f"{prefix}*"
        elif not name.startswith(prefix):
            return
        value = None if key is None else dict.get(self._environ, key)
        self.records[running].reads.setdefault(name, None if value is None else os.fsdecode(value))

    def _watch_seeds(self, random: Any) -> None:
        seed = random.Random.seed

        def noted(generator: Any, a: Any = None, version: int = 2) -> None:
            if a is None and type(generator) is random.Random and generator is not random._inst:
                self.unseeded.append(generator)
            seed(generator, a, version)

        random.Random.seed = noted
        self._restore_seeds = lambda: setattr(random.Random, "seed", seed)

    def _condemn(self, why: str) -> None:
        self.unfit.setdefault(self._running[-1] if self._running else "", why)

    def _changeable(self) -> tuple[list[Any], ...]:
        return list(_filters()), list(sys.meta_path)

    def _unchangeable(self) -> dict[str, Any]:
        """What no module may change, and how to say so."""
        return {
            "sys.path": list(sys.path),
            "sys.path_hooks": list(sys.path_hooks),
            "sys.excepthook": sys.excepthook,
            "sys.displayhook": sys.displayhook,
            "sys.unraisablehook": sys.unraisablehook,
            "the handlers of signals": [_signal.getsignal(signum) for signum in range(1, _signal.NSIG)],
            "the working folder": os.getcwd(),
            "the import function": builtins.__import__,
            "a trace or profile function": (sys.gettrace(), sys.getprofile()),
            "the recursion limit": sys.getrecursionlimit(),
            "the switch interval": sys.getswitchinterval(),
            "standard streams": (sys.stdin, sys.stdout, sys.stderr),
        }

    def _settle(self) -> None:
        """What has changed since last asked is the doing of the module whose code runs."""
        self.inspect.note(self._running[-1] if self._running else "")
        fixed = self._unchangeable()
        if fixed != self._fixed:
            for name, value in fixed.items():
                if value != self._fixed.get(name, value):
                    self._condemn(f"it changes {name}")
            self._fixed = fixed
        effects = self.records[self._running[-1]].effects if self._running else []
        seen = self._changeable()
        for kind, (before, now) in enumerate(zip(self._seen, seen, strict=True)):
            if [id(item) for item in before] != [id(item) for item in now]:
                effects.append(_ListChange(kind, before, now))
        self._seen = seen
        environ = dict(self._environ.items())
        if environ != self._seen_environ:
            for key in {**environ, **self._seen_environ}:
                if environ.get(key) != self._seen_environ.get(key):
                    effects.append(_VariableChange(key, environ.get(key)))
            self._seen_environ = environ
        if (logging := sys.modules.get("logging")) is not None and hasattr(logging, "root"):
            self._settle_loggers(logging)

    def _settle_loggers(self, logging: Any) -> None:
        root = logging.root
        state = (root.level, list(root.handlers), root.disabled, logging.getLoggerClass(), root.manager.disable)
        if self._root is not None and state != self._root:
            self._condemn("it changes the root logger")
        self._root = state
        known = root.manager.loggerDict
        if len(known) != self._logger_count:
            if self._running:
                self.records[self._running[-1]].loggers.extend(list(known)[self._logger_count :])
            self._logger_count = len(known)


class Places:
    """Where modules are looked for, as it is before the first is: all folders, when they last changed, and hooks."""

    def __init__(self) -> None:
        self.path = list(sys.path)
        self.times = {path: read_time_ns(path) for path in sys.path}
        self.hooks = list(sys.path_hooks)


def read_time_ns(path: str) -> int | None:
    """When an entry of sys.path last changed; None: there is none."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return None


def _filters() -> list[Any]:
    """The filters of warnings: the C part's own, until the Python part has put a list of its own in its place."""
    filters: list[Any] = getattr(sys.modules.get("warnings"), "filters", _warnings.filters)
    return filters


def _note_new_filters() -> None:
    """What warnings keep of their filters is old."""
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):  # Python 3.14
        getattr(_warnings, name, int)()


class _ListChange:
    """A change of the list of warnings' filters (0) or of finders (1): what came first, what came last, what went."""

    def __init__(self, kind: int, before: list[Any], now: list[Any]) -> None:
        self.kind = kind
        known, left = {id(item) for item in before}, {id(item) for item in now}
        new = [item for item in now if id(item) not in known]
        place = next((index for index, item in enumerate(now) if id(item) in known), len(now))
        self.front = now[:place]
        self.back = [item for item in new if all(item is not one for one in self.front)]
        self.gone = [item for item in before if id(item) not in left]

    def __call__(self) -> None:
        target = _filters() if self.kind == 0 else sys.meta_path
        gone = {id(item) for item in [*self.gone, *self.front, *self.back]}
        target[:] = [*self.front, *(item for item in target if id(item) not in gone), *self.back]
        if self.kind == 0:
            _note_new_filters()


class _VariableChange:
    """A variable of the environment that a module sets, or takes away."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self.name = os.fsdecode(key)
        self.value = None if value is None else os.fsdecode(value)

    def __call__(self) -> None:
        if self.value is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = self.value
