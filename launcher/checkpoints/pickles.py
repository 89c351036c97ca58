"""What a pickle would build, without building it: no name in it is ever looked up, nothing in it is ever called.

The opcodes are walked with `pickletools.genops`; containers and literals become Python's own, everything else (a class,
a call, a persistent id) an inert node that only remembers what it was given.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any

MAX_OPCODES = 4_000_000
"""Some seconds of work; a pickle beyond it is not read (`TooLong`), which says nothing about its being whole."""

_LITERALS = frozenset(
    (
        "FLOAT",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    )
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "NEXT_BUFFER": None}
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset(("PROTO", "FRAME", "READONLY_BUFFER"))
_MARK = object()


class BadPickle(ValueError):
    """The bytes are no (complete) pickle."""


class TooLong(Exception):
    """The pickle has more than MAX_OPCODES."""


class Name:
    """A global that the pickle names: `torch FloatStorage`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Node:
    """What the pickle would have called into being."""

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: str, args: Any) -> None:
        self.name = name
        """As `module qualname`; `persistent` for a persistent id."""
        self.args = args
        self.state: Any = None
        self.items: dict[Any, Any] = {}


class Walk:
    """One pickle's machine: a stack and a memo, as pickle.py has them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.persistent: list[Any] = []
        """Persistent ids, in order: for torch, a tuple for each use of a storage."""
        self.calls: dict[str, int] = {}
        """How often each global would have been called."""

    def run(self, opcodes: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> Any:
        """Walk to STOP and return what would have been loaded."""
        for count, (opcode, arg, _) in enumerate(opcodes):
            if count >= MAX_OPCODES:
                raise TooLong
            name = opcode.name
            if name in _LITERALS:
                self._stack.append(arg)
            elif name in _PUTS:
                self._memo[arg] = self._stack[-1]
            elif name in _GETS:
                self._stack.append(self._memo[arg])
            elif name == "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            elif name == "MARK":
                self._stack.append(_MARK)
            elif name == "STOP":
                return self._stack.pop()
            elif name not in _IGNORED:
                self._build(name, arg)
        raise BadPickle("ends before its end")

    def _build(self, name: str, arg: Any) -> None:
        stack = self._stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            size = _TUPLES[name]
            values = tuple(stack[len(stack) - size :])
            if len(values) != size:
                raise BadPickle("takes more than it has")
            del stack[len(stack) - size :]
            stack.append(values)
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET"):
            stack.append({} if name == "EMPTY_DICT" else [])
        else:
            _BUILDERS[name](self, arg)

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        return values

    def _call(self, function: Any, args: Any) -> None:
        name = function.name if isinstance(function, Name) else "?"
        self.calls[name] = self.calls.get(name, 0) + 1
        # An ordered dictionary is the one call whose result is looked into like a literal.
        self._stack.append({} if name == "collections OrderedDict" and not args else Node(name, args))

    def _reduce(self, _: Any) -> None:
        args = self._stack.pop()
        self._call(self._stack.pop(), args)

    def _newobj_ex(self, _: Any) -> None:
        self._stack.pop()
        self._reduce(None)

    def _inst(self, arg: str) -> None:
        self._call(Name(arg), tuple(self._since_mark()))

    def _obj(self, _: Any) -> None:
        values = self._since_mark()
        self._call(values[0], tuple(values[1:]))

    def _global(self, arg: str) -> None:
        self._stack.append(Name(arg))

    def _extension(self, arg: int) -> None:
        self._stack.append(Name(f"extension {arg}"))

    def _stack_global(self, _: Any) -> None:
        qualname = self._stack.pop()
        self._stack.append(Name(f"{self._stack.pop()} {qualname}"))

    def _persistent(self, arg: Any) -> None:
        key = arg if arg is not None else self._stack.pop()
        self.persistent.append(key)
        self._stack.append(Node("persistent", key))

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        items = target.items if isinstance(target, Node) else target
        if not isinstance(items, dict):
            raise BadPickle("sets an item of what has none")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            try:
                items[key] = value
            except TypeError:  # A key that Python could not hash either way; only its value matters here.
                items[f"unhashable {len(items)}"] = value

    def _setitem(self, _: Any) -> None:
        value = self._stack.pop()
        self._set([self._stack.pop(), value])

    def _setitems(self, _: Any) -> None:
        self._set(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Node):
            target.items[len(target.items)] = values
        else:
            raise BadPickle("appends to what is no list")

    def _append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _dict(self, _: Any) -> None:
        pairs = self._since_mark()
        self._stack.append({})
        self._set(pairs)

    def _list(self, _: Any) -> None:
        self._stack.append(self._since_mark())

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _state(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Node):
            self._stack[-1].state = state

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._since_mark()

    def _dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])


_BUILDERS: dict[str, Callable[[Walk, Any], None]] = {
    "REDUCE": Walk._reduce,
    "NEWOBJ": Walk._reduce,
    "NEWOBJ_EX": Walk._newobj_ex,
    "INST": Walk._inst,
    "OBJ": Walk._obj,
    "GLOBAL": Walk._global,
    "STACK_GLOBAL": Walk._stack_global,
    "EXT1": Walk._extension,
    "EXT2": Walk._extension,
    "EXT4": Walk._extension,
    "PERSID": Walk._persistent,
    "BINPERSID": Walk._persistent,
    "SETITEM": Walk._setitem,
    "SETITEMS": Walk._setitems,
    "APPEND": Walk._append,
    "APPENDS": Walk._appends,
    "ADDITEMS": Walk._appends,
    "DICT": Walk._dict,
    "LIST": Walk._list,
    "FROZENSET": Walk._list,
    "TUPLE": Walk._tuple,
    "BUILD": Walk._state,
    "POP": Walk._pop,
    "POP_MARK": Walk._pop_mark,
    "DUP": Walk._dup,
}


class Bounded:
    """A file that a damaged length cannot make read more than it has: pickletools asks for what the bytes say."""

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def read(self, size: int = -1) -> bytes:
        """Read up to size bytes, never beyond the end."""
        left = max(0, self._size_bytes - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def tell(self) -> int:
        """Where the next byte is."""
        return self._file.tell()

    def readline(self) -> bytes:
        """Read a line; no pickle of torch's has one near the limit."""
        return self._file.readline(65536)


def walk_pickle(source: bytes | Bounded) -> tuple[Any, Walk]:
    """Walk one pickle from source (a file is left right behind it).

    Raises BadPickle, TooLong, and OSError where source is a file.
    """
    walk = Walk()
    try:
        # genops takes anything with read and readline.
        return walk.run(pickletools.genops(source)), walk  # type: ignore[arg-type]
    except BadPickle:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, struct.error) as error:
        raise BadPickle(f"{type(error).__name__}: {error}") from error
