"""What a pickle would build, without building it: no name in it is ever looked up, nothing in it is ever called.

Containers and literals become Python's own, everything else (a class, a call, a persistent id) an inert node that only
remembers what it was given. A pickle may come from anybody, so the work for it is bounded by its length:

- Each opcode costs the same, whatever is on the stack: nothing is copied, compared or descended into. Values that are
  nested a million deep are as cheap as any; who looks into them counts levels and nodes (`torchfile`).
- Only strings and integers are hashed, and no integer whose hash is another's: a tuple of tuples of tuples takes for
  ever, or the C stack. What has another key is found by its value alone. As whoever loads it does hash it, a key of
  more than MAX_KEY_NODES is told (`TooDeep`).
- No more is read than there is. A long literal is passed over, not read: nobody here asks what is in it.
"""

from __future__ import annotations

import codecs
import io
import os
import struct
from collections.abc import Callable
from typing import IO, Any

MAX_OPCODES = 4_000_000
"""A second or two; a pickle beyond it is not read (`TooLong`), which says nothing about its being whole."""
MAX_LITERAL_BYTES = 4096
"""Longer ones (an array's bytes, a document) are OPAQUE."""
MAX_LITERALS_BYTES = 32 << 20
"""Together; as MAX_OPCODES."""
MAX_DIGITS = 1000
MAX_KEY_NODES = 1000
_MAX_NAME = 200
_MAX_NAMES = 10_000
_MAX_INTEGER = (1 << 61) - 1
"""sys.hash_info.modulus where Python has 64 bits: smaller integers are their own hashes."""
_MARK = object()


class BadPickle(ValueError):
    """The bytes are no (complete) pickle."""


class TooLong(Exception):
    """The pickle has more than MAX_OPCODES, or than MAX_LITERALS_BYTES."""


class TooDeep(Exception):
    """It has a key that whoever loads it would hash for ever."""


class Opaque:
    """A literal that is of no use here."""


OPAQUE = Opaque()


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
        self.items: dict[Any, Any] | None = None
        """None: nothing was put into it."""


class Source:
    """A file that a damaged length cannot make read more than it has."""

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        self.read = file.read
        self._file = file
        self._size_bytes = size_bytes

    def literal(self, size: int) -> bytes | None:
        """Read so many bytes; None: too many, they are passed over. Raises BadPickle where they are not there."""
        if size > MAX_LITERAL_BYTES:
            if size > self._size_bytes - self._file.tell():
                raise BadPickle("ends before its end")
            self._file.seek(size, os.SEEK_CUR)
            return None
        data = self.read(size)
        if len(data) != size:
            raise BadPickle("ends before its end")
        return data

    def line(self) -> bytes | None:
        """Read a line, without its end; None: a long one, it is passed over. Raises BadPickle where it has no end."""
        first = part = self._file.readline(MAX_LITERAL_BYTES)
        while part and not part.endswith(b"\n"):
            part = self._file.readline(1 << 16)
        if not part:
            raise BadPickle("ends before its end")
        return first[:-1] if first.endswith(b"\n") else None


class Walk:
    """One pickle's machine: a stack and a memo, as pickle.py has them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._names: dict[str, str] = {}
        self._literal_bytes = 0
        self.persistent: list[Any] = []
        """Persistent ids, in order: for torch, a tuple for each use of a storage."""
        self.calls: dict[str, int] = {}
        """How often each global would have been called."""

    def run(self) -> Any:
        """Walk to STOP and return what would have been loaded."""
        read, opcodes = self._source.read, _OPCODES
        for _ in range(MAX_OPCODES):
            opcode = read(1)
            if opcode == b".":
                return self._stack.pop()
            opcodes[opcode](self)
        raise TooLong

    # Literals ----------------------------------------------------------------------------------------------------

    def _keep(self, data: bytes | None) -> bytes | None:
        if data is not None:
            self._literal_bytes += len(data)
            if self._literal_bytes > MAX_LITERALS_BYTES:
                raise TooLong
        return data

    def _push_text(self, data: bytes | None, encoding: str, errors: str) -> None:
        kept = self._keep(data)
        self._stack.append(OPAQUE if kept is None else kept.decode(encoding, errors))

    def _number(self, form: struct.Struct) -> None:
        self._stack.append(form.unpack(self._source.read(form.size))[0])

    def _unicode(self, form: struct.Struct) -> None:
        size = form.unpack(self._source.read(form.size))[0]
        self._push_text(self._source.literal(size), "utf-8", "surrogatepass")

    def _string(self, form: struct.Struct) -> None:
        """Of Python 2: text or bytes, nobody knows."""
        self._push_text(self._source.literal(self._size(form)), "latin-1", "strict")

    def _bytes(self, form: struct.Struct) -> None:
        kept = self._keep(self._source.literal(self._size(form)))
        self._stack.append(OPAQUE if kept is None else kept)

    def _long(self, form: struct.Struct) -> None:
        data = self._source.literal(self._size(form))
        self._stack.append(OPAQUE if data is None else int.from_bytes(data, "little", signed=True))

    def _size(self, form: struct.Struct) -> int:
        size: int = form.unpack(self._source.read(form.size))[0]
        if size < 0:
            raise BadPickle("has a negative length")
        return size

    def _unicode_line(self) -> None:
        self._push_text(self._source.line(), "raw-unicode-escape", "strict")

    def _string_line(self) -> None:
        line = self._source.line()
        if line is not None and (len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"')):
            raise BadPickle("has a string without quotes")
        self._push_text(None if line is None else codecs.escape_decode(line[1:-1])[0], "latin-1", "strict")

    def _integer_line(self) -> int | None:
        """None: absurdly long. `INT` has booleans, too, and `LONG` an L at its end."""
        line = self._source.line()
        if line is not None and len(line) <= MAX_DIGITS:
            return int(line.removesuffix(b"L"))
        if line is not None and line.strip(b"-0123456789L"):
            raise BadPickle("has a number without digits")
        return None

    def _push_integer(self) -> None:
        value = self._integer_line()
        self._stack.append(OPAQUE if value is None else value)

    def _float_line(self) -> None:
        line = self._source.line()
        self._stack.append(OPAQUE if line is None or len(line) > MAX_DIGITS else float(line))

    def _constant(self, value: Any) -> None:
        self._stack.append(value)

    def _skip(self, size: int) -> None:
        if len(self._source.read(size)) != size:
            raise BadPickle("ends before its end")

    # Memo and stack ------------------------------------------------------------------------------------------------

    def _put(self, form: struct.Struct) -> None:
        self._memo[form.unpack(self._source.read(form.size))[0]] = self._stack[-1]

    def _get(self, form: struct.Struct) -> None:
        self._stack.append(self._memo[form.unpack(self._source.read(form.size))[0]])

    def _slot_line(self) -> int:
        slot = self._integer_line()
        if slot is None or not 0 <= slot < 1 << 32:
            raise BadPickle("has a memo beyond all bounds")
        return slot

    def _put_line(self) -> None:
        self._memo[self._slot_line()] = self._stack[-1]

    def _get_line(self) -> None:
        self._stack.append(self._memo[self._slot_line()])

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        pop, push = self._stack.pop, values.append
        while (value := pop()) is not _MARK:
            push(value)
        values.reverse()
        return values

    def _pop(self) -> None:
        self._stack.pop()

    def _pop_mark(self) -> None:
        self._since_mark()

    def _dup(self) -> None:
        self._stack.append(self._stack[-1])

    # Names and calls -----------------------------------------------------------------------------------------------

    def _name(self, module: Any, qualname: Any) -> str:
        """One string for all uses of a name: two long ones that are put together again and again would fill memory."""
        if not isinstance(module, str) or not isinstance(qualname, str) or len(module) + len(qualname) > _MAX_NAME:
            return "?"
        name = f"{module} {qualname}"
        if name not in self._names and len(self._names) >= _MAX_NAMES:
            return "?"
        return self._names.setdefault(name, name)

    def _name_lines(self) -> Name:
        module, qualname = self._source.line(), self._source.line()
        texts = [None if line is None else line.decode() for line in (module, qualname)]
        return Name(self._name(*texts))

    def _call(self, function: Any, args: Any) -> None:
        name = function.name if isinstance(function, Name) else "?"
        self.calls[name] = self.calls.get(name, 0) + 1
        # An ordered dictionary is the one call whose result is looked into like a literal.
        self._stack.append({} if name == "collections OrderedDict" and not args else Node(name, args))

    def _reduce(self) -> None:
        args = self._stack.pop()
        self._call(self._stack.pop(), args)

    def _newobj_ex(self) -> None:
        self._stack.pop()
        self._reduce()

    def _inst(self) -> None:
        name = self._name_lines()
        self._call(name, tuple(self._since_mark()))

    def _obj(self) -> None:
        values = self._since_mark()
        self._call(values[0], tuple(values[1:]))

    def _global(self) -> None:
        self._stack.append(self._name_lines())

    def _extension(self, form: struct.Struct) -> None:
        self._stack.append(Name(self._name("extension", str(form.unpack(self._source.read(form.size))[0]))))

    def _stack_global(self) -> None:
        qualname = self._stack.pop()
        self._stack.append(Name(self._name(self._stack.pop(), qualname)))

    def _persistent(self) -> None:
        self._persist(self._stack.pop())

    def _persistent_line(self) -> None:
        line = self._keep(self._source.line())
        self._persist(OPAQUE if line is None else line.decode())

    def _persist(self, key: Any) -> None:
        self.persistent.append(key)
        self._stack.append(Node("persistent", key))

    # Containers ----------------------------------------------------------------------------------------------------

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Node):
            items = target.items = {} if target.items is None else target.items
        else:
            items = target
        if not isinstance(items, dict):
            raise BadPickle("sets an item of what has none")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            is_plain = type(key) is str or (isinstance(key, int) and -_MAX_INTEGER < key < _MAX_INTEGER)
            if not is_plain and isinstance(key, tuple):
                _weigh(key)
            items[key if is_plain else f"\0{len(items)}"] = value

    def _setitem(self) -> None:
        value = self._stack.pop()
        self._set([self._stack.pop(), value])

    def _setitems(self) -> None:
        self._set(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Node):
            target.items = {} if target.items is None else target.items
            target.items[len(target.items)] = values
        else:
            raise BadPickle("appends to what is no list")

    def _append(self) -> None:
        self._extend([self._stack.pop()])

    def _appends(self) -> None:
        self._extend(self._since_mark())

    def _empty_dict(self) -> None:
        self._stack.append({})

    def _empty_list(self) -> None:
        self._stack.append([])

    def _dict(self) -> None:
        pairs = self._since_mark()
        self._stack.append({})
        self._set(pairs)

    def _list(self) -> None:
        self._stack.append(self._since_mark())

    def _tuple(self) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _tuple_of(self, size: int) -> None:
        stack = self._stack
        if len(stack) < size:
            raise BadPickle("takes more than it has")
        values = tuple(stack[-size:])
        del stack[-size:]
        stack.append(values)

    def _build(self) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Node):
            self._stack[-1].state = state


def _weigh(key: tuple[Any, ...]) -> None:
    """Count what a hash would visit, what is there twice twice. Raises TooDeep."""
    left, todo = MAX_KEY_NODES - len(key), [key]
    while todo and left >= 0:
        for value in todo.pop():
            if isinstance(value, tuple):
                left -= len(value)
                if left >= 0:
                    todo.append(value)
    if left < 0:
        raise TooDeep


def _with(method: Callable[..., None], argument: Any) -> Callable[[Walk], None]:
    return lambda walk: method(walk, argument)


_U1, _U2, _I4, _U4, _U8, _F8 = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q", ">d"))
_OPCODES: dict[bytes, Callable[[Walk], None]] = {
    # pickletools.py has what each does. Python's Unpickler reads BINSTRING's length as a signed number.
    b"F": Walk._float_line,
    b"I": Walk._push_integer,
    b"L": Walk._push_integer,
    b"J": _with(Walk._number, _I4),
    b"K": _with(Walk._number, _U1),
    b"M": _with(Walk._number, _U2),
    b"G": _with(Walk._number, _F8),
    b"\x8a": _with(Walk._long, _U1),
    b"\x8b": _with(Walk._long, _I4),
    b"S": Walk._string_line,
    b"T": _with(Walk._string, _I4),
    b"U": _with(Walk._string, _U1),
    b"V": Walk._unicode_line,
    b"X": _with(Walk._unicode, _U4),
    b"\x8c": _with(Walk._unicode, _U1),
    b"\x8d": _with(Walk._unicode, _U8),
    b"B": _with(Walk._bytes, _U4),
    b"C": _with(Walk._bytes, _U1),
    b"\x8e": _with(Walk._bytes, _U8),
    b"\x96": _with(Walk._bytes, _U8),
    b"N": _with(Walk._constant, None),
    b"\x88": _with(Walk._constant, True),
    b"\x89": _with(Walk._constant, False),
    b"\x97": _with(Walk._constant, None),
    b"\x98": _with(Walk._skip, 0),
    b"\x80": _with(Walk._skip, 1),
    b"\x95": _with(Walk._skip, 8),
    b"p": Walk._put_line,
    b"q": _with(Walk._put, _U1),
    b"r": _with(Walk._put, _U4),
    b"g": Walk._get_line,
    b"h": _with(Walk._get, _U1),
    b"j": _with(Walk._get, _U4),
    b"\x94": Walk._memoize,
    b"(": Walk._mark,
    b"0": Walk._pop,
    b"1": Walk._pop_mark,
    b"2": Walk._dup,
    b"P": Walk._persistent_line,
    b"Q": Walk._persistent,
    b"R": Walk._reduce,
    b"\x81": Walk._reduce,
    b"\x92": Walk._newobj_ex,
    b"i": Walk._inst,
    b"o": Walk._obj,
    b"c": Walk._global,
    b"\x93": Walk._stack_global,
    b"\x82": _with(Walk._extension, _U1),
    b"\x83": _with(Walk._extension, _U2),
    b"\x84": _with(Walk._extension, _I4),
    b"b": Walk._build,
    b"}": Walk._empty_dict,
    b"]": Walk._empty_list,
    b"\x8f": Walk._empty_list,
    b")": _with(Walk._constant, ()),
    b"\x85": _with(Walk._tuple_of, 1),
    b"\x86": _with(Walk._tuple_of, 2),
    b"\x87": _with(Walk._tuple_of, 3),
    b"t": Walk._tuple,
    b"d": Walk._dict,
    b"l": Walk._list,
    b"\x91": Walk._list,
    b"a": Walk._append,
    b"e": Walk._appends,
    b"\x90": Walk._appends,
    b"s": Walk._setitem,
    b"u": Walk._setitems,
}


def walk_pickle(source: bytes | Source) -> tuple[Any, Walk]:
    """Walk one pickle from source (a file is left right behind it).

    Raises BadPickle, TooLong, TooDeep, MemoryError, and OSError where source is a file.
    """
    walk = Walk(source if isinstance(source, Source) else Source(io.BytesIO(source), len(source)))
    try:
        return walk.run(), walk
    except BadPickle:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        raise BadPickle(f"{type(error).__name__}: {error}") from error
