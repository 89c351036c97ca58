"""The warm process: a rank's own command line, held inside of `sitecustomize`, with the script's modules imported.

The launcher starts it as it starts a rank, with GUARDRUN_WARM in place of GUARDRUN_HOOKS: the number of a socket. Then,
over that socket (SOCK_SEQPACKET, JSON):

    launcher → warm    {"imports": [FILE, …], "left_out": FILE}            once
    warm → launcher    {"ready": …} or {"again": N} or {"useless": "…"}    once
    launcher → warm    {"fork": PID}, its own, with a socket for each rank to be
    warm → launcher    {"pids": […]}
    launcher → warm    {"check": true}
    warm → launcher    {"same": true}, or {"useless": "…"}, after which it ends
    launcher → rank    {"command": […], "environment": {…}, …}, with descriptors 0, 1, 2
    rank → launcher    {} or {"no": "…"}

A rank is forked by a fork that ends: so it comes to be the child of the launcher, who is the subreaper of all that it
has started. It waits for its message, maybe for hours. What is not asked for any more ends as its socket is closed.
The warm process, and what waits, end with the launcher.

One module, as what is done before a fork and after it is one sequence, in one process and its children.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in no stub
import sys

from guardrun.hooks.warm.process_state import Inspector, read_pss_bytes
from guardrun.hooks.warm.recorder import AGAIN, READ_BY_LIBRARIES, Recorder, differs_by_rank, is_read

OWN = "guardrun"
HOOKS, WARM = f"{OWN}.hooks.", f"{OWN}.hooks.warm"
MAX_MESSAGE_BYTES = 1 << 20
MAX_MODULES = 20_000
MAX_REASONS = 20
WORTH_S = 0.3
"""What importing it takes: for less, no process is kept."""
FIXED_SEED = 67280421310721
"""torch's own, in versions that begin with it in every process (c10/core/GeneratorImpl.h)."""
GIVEN_SEEDS = 1 << 32
"""A seed below is no random one, but was given by a module."""
PARENT_PATIENCE_S = 2.0
REST = 3.0
"""Where others want the CPU, too, it rests so many times as long as it has worked."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any, NoReturn


def wait(number: str, fresh: frozenset[str]) -> None:
    """Import, and serve; returns in a process that is to be a rank, and in no other.

    number: the socket's. fresh: modules of a fresh interpreter.
    """
    recorder = Recorder(fresh, Inspector())
    recorder.begin()  # What comes now is found in ranks as if they had imported it themselves.
    import gc

    gc.disable()  # What imports make stays.
    Warm(int(number), recorder).run()


class Warm:
    """The process, from its start to its end, or to a rank's beginning."""

    def __init__(self, number: int, recorder: Recorder) -> None:
        import ctypes
        import json
        import os
        import socket as sockets

        self._json, self._sockets = json, sockets
        self._prctl = ctypes.CDLL(None).prctl
        self._end_with_parent()
        self._socket = sockets.socket(fileno=number)
        self._socket.set_inheritable(False)
        if self._is_alone():  # since before this process was to end with it
            os._exit(0)
        self._recorder = recorder
        self._import_hooks()

    def _import_hooks(self) -> None:
        """Have the hooks imported anew, where ranks find them as others find theirs: nothing was recorded before."""
        before = {name: module for name, module in sys.modules.items() if _is_ours(name) and not name.startswith(WARM)}
        for name in before:
            del sys.modules[name]
        try:
            import guardrun.hooks.startup.activate  # noqa: F401
        except ImportError:
            for name in [name for name in sys.modules if _is_ours(name) and not name.startswith(WARM)]:
                del sys.modules[name]
            sys.modules.update(before)
            self._recorder.forget(_is_ours)

    def _end_with_parent(self) -> None:
        """As ranks do once they have hooks."""
        import ctypes

        self._prctl(1, ctypes.c_ulong(_signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG

    def _is_alone(self) -> bool:
        """Whether the launcher has gone."""
        import select

        poller = select.poll()
        poller.register(self._socket.fileno(), 0)
        return any(event & select.POLLHUP for _, event in poller.poll(0))

    def run(self) -> None:
        """Returns in a rank."""
        import os
        import traceback

        try:
            is_rank = self._serve()
        except BaseException:
            self._send(self._socket, {"useless": traceback.format_exc()[-2000:]})
            os._exit(1)
        if not is_rank:
            os._exit(0)

    def _serve(self) -> bool:
        from guardrun.hooks.startup import import_hooks
        from guardrun.hooks.warm import rank_start
        from guardrun.hooks.warm.stash import Stash

        self._start = rank_start
        asked, _ = self._receive(self._socket)
        if asked is None:
            return False
        if not rank_start.can_show():
            self._send(self._socket, {"useless": "this kernel lets no process show another command line"})
            return False
        self._priority = rank_start.Priority()
        self._priority.lower()
        try:
            imports = Imports(self._recorder, asked)
        except (OSError, ValueError, LookupError, TypeError) as error:  # the script's own json, say
            self._send(self._socket, {"useless": f"the list of its modules can't be read: {error}"[:500]})
            return False
        answer = imports.run()
        self._recorder.end()
        if "ready" in answer:
            import gc

            if OWN not in self._recorder.records:
                self._recorder.forget(_is_ours)
            self._stash = Stash(self._recorder, OWN, import_hooks.HOOKS)
            self._stash.seeds_torch = imports.torch_seed == "random"
            self._readers = self._stash.find_readers()
            self._prefixes = [variable for variable in self._readers if variable.endswith("*")]
            self._stash.keep(self, imports)
            self._stash.hide()
            gc.collect()  # Forks that go through what is new, in search of garbage, would have it all copied.
            answer["ready"]["memory_bytes"] = read_pss_bytes()
        self._send(self._socket, answer)
        if "ready" not in answer:
            return False
        while True:
            asked, sockets = self._receive(self._socket)
            if asked is None:
                return False
            if "check" in asked:
                if imports.have_changed():
                    self._send(self._socket, {"useless": "installed modules are not what they were"})
                    return False
                self._send(self._socket, {"same": True})
                continue
            if self._fork(asked, sockets):
                return True

    def _fork(self, asked: dict[str, Any], descriptors: list[int]) -> bool:
        """Fork ranks, of a process that ends; True in a rank."""
        import os

        between = os.fork()
        if between == 0:
            try:
                return self._fork_ranks(asked["fork"], descriptors)
            except BaseException:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        return False

    def _fork_ranks(self, launcher: int, descriptors: list[int]) -> bool:
        import os

        between, pids = os.getpid(), []
        for descriptor in descriptors:
            pid = os.fork()
            if pid == 0:
                try:
                    for other in descriptors:  # else nobody learns of the end of who has it
                        if other != descriptor:
                            os.close(other)
                    self._wait_to_be(descriptor, between, launcher)
                except BaseException as error:
                    self._refuse(descriptor, f"{type(error).__name__}: {error}")
                return True
            pids.append(pid)
        self._send(self._socket, {"pids": pids})
        os._exit(0)

    def _refuse(self, descriptor: int, why: str) -> NoReturn:
        import os

        try:
            os.write(descriptor, self._json.dumps({"no": why[:500]}).encode())
        except OSError:  # Nobody waits for it any more.
            pass
        os._exit(1)

    def _wait_to_be(self, descriptor: int, between: int, launcher: int) -> None:
        """In a rank to be: returns once it is one."""
        import os
        import time

        deadline_s = time.monotonic() + PARENT_PATIENCE_S
        while (parent := os.getppid()) == between:
            if time.monotonic() > deadline_s:
                raise TimeoutError("whoever forked it has not ended")
            time.sleep(0.0005)
        self._end_with_parent()
        if parent != launcher or os.getppid() != launcher:
            raise RuntimeError("it is no child of the launcher")
        self._socket.close()
        channel = self._sockets.socket(fileno=descriptor)
        message, streams = self._receive(channel)
        if message is None:
            os._exit(0)  # Nobody wants it any more.
        self._be(message, streams, channel)

    def _be(self, message: dict[str, Any], streams: list[int], channel: socket) -> None:
        import os

        command, environment = message["command"], message["environment"]
        if why := self._why_not(command, environment):
            self._refuse(channel.fileno(), why)
        self._priority.restore()
        os.umask(message["umask"])
        self._start.set_signals(message["ignored"], message["blocked"])
        self._start.become(command, environment, streams, channel.fileno())
        stash = self._stash
        hooks = self._json.loads(environment["GUARDRUN_HOOKS"])
        stash.environ = environment
        folder = os.getcwd()
        pid = os.getpid()
        stash.can_begin_anew = lambda: os.getpid() == pid and not _has_begun()
        stash.refuse = lambda why: self._start_anew(message, hooks["sockets"], folder, why)
        self._start.forget(stash, self._recorder.unseeded)
        try:
            channel.send(b"{}")
        except OSError:  # The launcher has gone, and asks no more.
            pass
        channel.close()

    def _start_anew(self, message: dict[str, Any], sockets: str, folder: str, why: str) -> NoReturn:
        """The script has changed what modules read as they are imported: be a fresh process, from the first line on.

        What an exec leaves as the script has set it is what it was at its first line. A child of a rank (a data worker)
        must not be a second rank, and one that has met others, or trains, can't do all of that twice: it ends, and all
        ranks are executed from then on.
        """
        import os
        import posix

        can_begin_anew = self._stash.can_begin_anew()
        for name in ("warm-refused",) if can_begin_anew else ("warm-refused", "warm-ended"):
            try:
                with open(os.path.join(sockets, name), "w", encoding="utf-8", errors="replace") as file:
                    file.write(why[:500])
            except OSError:
                pass
        if not can_begin_anew:
            line = f"guardrun: process {os.getpid()}, of a warm rank, can't begin anew any more, and ends: {why}"
            try:
                os.write(2, f"{line[:500]}\n".encode("utf-8", "replace"))
            finally:
                os._exit(1)
        for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
            _signal.setitimer(timer, 0.0)
        os.umask(message["umask"])
        try:
            os.chdir(folder)
        except OSError:  # The script has removed it.
            pass
        try:
            os.sched_setaffinity(0, self._stash.cpus)
        except OSError:
            pass
        self._start.set_signals(message["ignored"], message["blocked"])
        # Not by os.execve: the hooks have theirs add what this environment has already.
        posix.execve(sys.executable, message["command"], message["environment"])

    def _why_not(self, command: list[str], environment: dict[str, str]) -> str:
        """What speaks against a rank of this command line and environment; empty: nothing."""
        fixed = len(sys.orig_argv) - len(sys.argv) + 1
        if command[:fixed] != sys.orig_argv[:fixed]:
            return "another command line"
        own = self._recorder.environ
        differing = {name for name in {**own, **environment} if own.get(name) != environment.get(name)}
        for name in sorted(differing):
            if name.startswith((*READ_BY_LIBRARIES, "PYTHON")) and name != "PYTHONPATH":
                return f"{name} is not what it was"
        for name in differing:
            if (reader := self._readers.get(name)) is not None:
                return f"{reader} reads {name}, which is not what it was"
        for variable in self._prefixes:
            if is_read(variable, differing):
                return f"{self._readers[variable]} reads {variable}, which is not what it was"
        return ""

    def _receive(self, channel: socket) -> tuple[dict[str, Any] | None, list[int]]:
        text, descriptors, _, _ = self._sockets.recv_fds(channel, MAX_MESSAGE_BYTES, 250)
        return (self._json.loads(text) if text else None), list(descriptors)

    def _send(self, channel: socket, answer: dict[str, Any]) -> None:
        try:
            channel.send(self._json.dumps(answer).encode())
        except OSError:  # The launcher has gone, or wants nothing any more.
            pass


def _has_begun() -> bool:
    """Whether this rank has met others, or trained; so it is taken where nobody knows."""
    rank = getattr(sys.modules.get(f"{HOOKS}rank.rank"), "active", None)
    board: Any = sys.modules.get(f"{HOOKS}wire.board")
    if rank is None or board is None:
        return True
    stone = board.Milestone
    return bool(rank.words[board.Field.MILESTONES] & (stone.INIT_ENTERED | stone.INIT_DONE | stone.FIRST_PROGRESS))


class Imports:
    """What is to be imported, and what became of it."""

    def __init__(self, recorder: Recorder, asked: dict[str, Any]) -> None:
        import json

        told = []
        for path in asked["imports"]:
            with open(path, encoding="utf-8") as file:
                told.append(json.loads(file.read(MAX_MESSAGE_BYTES * 8)))
        self._recorder = recorder
        self._origins: dict[str, str | None] = dict(told[0]["modules"][:MAX_MODULES])
        self._changed: list[str] = [name for one in told for name in one["changed"]]
        self._left_out_file = asked["left_out"]
        self._left_out = self._read_left_out()
        self._folders = installed_folders()
        self._stats: dict[str, tuple[int, int, int]] = {}

    def run(self) -> dict[str, Any]:
        """Import it all; the answer for the launcher."""
        import importlib
        import time

        recorder = self._recorder
        began_s = time.process_time()
        pace = Pace()
        for name in self._wanted():
            if name in sys.modules:
                continue
            try:
                importlib.import_module(name)
            except Exception as error:
                recorder.failed[name] = f"{type(error).__name__}: {error}"[:200]
            pace.rest()
        took_s = time.process_time() - began_s
        if any(_is_ours(name) for name in recorder.failed):
            recorder.forget(_is_ours)
        recorder.unfit.update(recorder.inspect.judge())
        unfit = self._judge()
        left_out = self._with_importers(unfit)
        if "" in unfit:
            return {"useless": f"importing them changed what no rank may share: {unfit['']}"}
        if left_out:
            self._exclude(left_out)
            return {"again": len(left_out), "why": dict(list(unfit.items())[:MAX_REASONS])}
        if name := self._find_set_for_libraries():
            return {"useless": f"the script sets {name}, which libraries may read as they are loaded"}
        self.torch_seed = read_torch_seed()
        if self.torch_seed not in ("given", "random"):
            return {"useless": "a module draws random numbers as it is imported: all ranks would go on with the same"}
        if took_s < WORTH_S:
            return {"useless": f"what can be imported ahead takes {took_s:.2f} s"}
        specs = [record.spec for record in recorder.records.values()]
        self._stats = {spec.origin: _stat(spec.origin) for spec in specs if spec.origin and spec.has_location}
        return {"ready": {"modules": len(recorder.records), "took_s": round(took_s, 3), "failed": len(recorder.failed)}}

    def _read_left_out(self) -> set[str]:
        """What processes before this one found that no rank may have."""
        import json

        try:
            with open(self._left_out_file, encoding="utf-8") as file:
                return set(json.loads(file.read(MAX_MESSAGE_BYTES * 8)))
        except FileNotFoundError:
            return set()

    def _exclude(self, names: set[str]) -> None:
        import json

        with open(self._left_out_file, "w", encoding="utf-8") as file:
            file.write(json.dumps(sorted(self._left_out | names)))

    def _find_set_for_libraries(self) -> str:
        """A variable that the script has set by its first step, and whose readers nobody sees; empty: none."""
        effects = [effect for record in self._recorder.records.values() for effect in record.effects]
        own = {effect.name for effect in effects if hasattr(effect, "name")}
        return next((name for name in self._changed if name.startswith(READ_BY_LIBRARIES) and name not in own), "")

    def have_changed(self) -> bool:
        """Whether a file that a module came from is not what it was."""
        return any(_stat(path) != stat for path, stat in self._stats.items())

    def _wanted(self) -> list[str]:
        """Modules that a rank had, of those that are installed, in the order in which it imported them."""
        return [
            name
            for name, origin in self._origins.items()
            if name not in self._left_out and name != "__main__" and origin is not None
            and (self._is_hook(name) if _is_ours(name) else self._is_installed(origin))
        ]  # fmt: skip

    def _is_installed(self, origin: str) -> bool:
        import os

        return origin in ("built-in", "frozen") or os.path.realpath(origin).startswith(self._folders)

    def _is_hook(self, name: str) -> bool:
        return name.startswith(HOOKS) and not name.startswith(WARM) and OWN in self._recorder.records

    def _judge(self) -> dict[str, str]:
        """Per module that no rank may have from here, why."""
        recorder = self._recorder
        unfit = dict(recorder.unfit)
        own = {
            effect.name for record in recorder.records.values() for effect in record.effects if hasattr(effect, "name")
        }
        changed = set(self._changed) - own
        for name, record in recorder.records.items():
            if _is_ours(name):
                continue
            origin = record.spec.origin
            if name in recorder.failed:
                unfit.setdefault(name, f"it can't be imported alone: {recorder.failed[name]}")
            elif name in self._left_out:
                unfit.setdefault(name, "it was left out before")
            elif not self._is_known(name, origin):
                unfit.setdefault(name, f"ranks had none, or another one: {origin}")
            allowed = AGAIN[name][0] if name in AGAIN else frozenset()
            for variable in record.reads.keys() - allowed:
                if differs_by_rank(variable) or variable == "*":
                    unfit.setdefault(name, f"it reads {'all variables' if variable == '*' else variable}")
                elif is_read(variable, changed):
                    unfit.setdefault(name, f"it reads {variable}, which the script sets")
        for name in unowned_generators(recorder):
            unfit.setdefault(name, "it holds a generator of random numbers")
        return unfit

    def _is_known(self, name: str, origin: str | None) -> bool:
        """Whether ranks had it from there; or only its package, whose parts come and go."""
        if name in self._origins:
            return self._origins[name] == origin
        if origin is None:
            return True
        if not self._is_installed(origin):
            return False
        is_own = origin.startswith(library_folder()) and "-packages" not in origin
        return is_own or name.partition(".")[0] in self._origins

    def _with_importers(self, unfit: dict[str, str]) -> set[str]:
        """Those, and all that had asked for one of them."""
        found = set(unfit) - {""}
        while True:
            more = {
                name
                for name, record in self._recorder.records.items()
                if name not in found and (not found.isdisjoint(record.asked) or name.rpartition(".")[0] in found)
            }
            if not more:
                return found
            found |= more


class Pace:
    """Rests as long as others want the CPU, too."""

    def __init__(self) -> None:
        self._ran_ns, self._waited_ns = self._read()

    def rest(self) -> None:
        """Asked after each module."""
        import time

        ran_ns, waited_ns = self._read()
        ran, waited = ran_ns - self._ran_ns, waited_ns - self._waited_ns
        if ran < 10_000_000:
            return
        if waited * 20 > ran:
            time.sleep(min(ran * REST / 1e9, 10.0))
        self._ran_ns, self._waited_ns = ran_ns, waited_ns

    def _read(self) -> tuple[int, int]:
        try:
            with open("/proc/self/schedstat", encoding="utf-8") as file:
                ran, waited, _ = (int(word) for word in file.read().split())
        except (OSError, ValueError):
            return 0, 0
        return ran, waited


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == OWN


def library_folder() -> str:
    """Where the interpreter's own library lies, with a slash at its end."""
    import os

    return os.path.realpath(os.path.dirname(os.__file__)) + os.sep


def installed_folders() -> tuple[str, ...]:
    """Likewise, and where installed packages do."""
    import os
    import site

    paths = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return (library_folder(), *(os.path.realpath(path) + os.sep for path in paths))


def unowned_generators(recorder: Recorder) -> list[str]:
    """Modules that hold a generator of numpy's of their own: forks would all draw the same numbers."""
    return [
        name
        for name in recorder.records
        if not name.startswith("numpy.random")
        for value in list(getattr(sys.modules.get(name), "__dict__", {}).values())
        if type(value).__module__.startswith("numpy.random") and not isinstance(value, type(len))
    ]


def read_torch_seed() -> str:
    """How torch's generator stands: "given" a seed, "random", as in each fresh process, or "used"."""
    if "torch.random" not in sys.modules:
        return "given"
    return _ask_fork(_judge_torch_seed)  # Nothing of torch runs in the process itself.


def _judge_torch_seed() -> str:
    torch: Any = sys.modules["torch"]
    seed = torch.initial_seed()
    if seed < GIVEN_SEEDS or seed == FIXED_SEED:
        return "given"
    fresh = torch.Generator().manual_seed(seed).get_state()
    return "random" if torch.equal(fresh, torch.default_generator.get_state()) else "used"


def _ask_fork(question: Any) -> str:
    """What a fork of this process answers."""
    import os

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(question()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    return answer


def _stat(path: str) -> tuple[int, int, int]:
    import os

    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
