"""Files that are made to be the end of whoever looks into them, most of them of a few hundred bytes."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

PROTOCOL = b"\x80\x02"


def archive(pickle: bytes) -> bytes:
    """What torch.save would have written around a pickle."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as zip_file:
        zip_file.writestr("archive/data.pkl", pickle)
        zip_file.writestr("archive/version", "3\n")
    return into.getvalue()


def legacy(pickle: bytes) -> bytes:
    """As before torch 1.6."""
    magic = PROTOCOL + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
    return magic + PROTOCOL + b"M\xe9\x03." + PROTOCOL + b"}." + pickle + PROTOCOL + b"]."


def text(value: str) -> bytes:
    """An opcode that pushes a short string."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def lists(levels: int, width: int) -> bytes:
    """Opcodes that push a list, many times in a list, many times in a list …"""
    return b"]q\0" + b"".join(b"0(" + bytes((0x68, at)) * width + b"l" + bytes((0x71, at + 1)) for at in range(levels))


def hash_bomb(levels: int = 60) -> bytes:
    """A dictionary whose key is a pair of twice the same pair of twice the same pair …"""
    return PROTOCOL + b"})" + b"2\x86" * levels + b"K\x01s."


def deep_key(depth: int = 300_000) -> bytes:
    """A key of tuples, one in the other: a hash that takes all of the stack."""
    return PROTOCOL + b"})" + b"\x85" * depth + b"K\x01s."


def deep_value(depth: int = 300_000) -> bytes:
    """Tuples, one in the other."""
    return PROTOCOL + b"}" + text("model") + b")" + b"\x85" * depth + b"s."


def fan_out(levels: int = 10, width: int = 250) -> bytes:
    """A list of lists, each with the next one many times: few bytes, no end of paths."""
    return PROTOCOL + b"}" + text("optimizer") + lists(levels, width) + b"s."


def storage_key(levels: int = 30) -> bytes:
    """A storage whose key is a list with no end of text."""
    return PROTOCOL + b"(" + text("storage") + b"ctorch\nFloatStorage\n" + lists(levels, 9) + text("cpu") + b"K\x04tQ."


def name_of_names(levels: int = 30) -> bytes:
    """A global whose module is a list."""
    return b"\x80\x04" + lists(levels, 9) + text("x") + b"\x93."


def long_names(uses: int = 50_000) -> bytes:
    """Two long strings, put together again and again."""
    long = "m" * 4000
    return b"\x80\x04" + text(long) + b"q\0" + text(long) + b"q\1" + b"h\0h\1\x93" * uses + b"."


def long_step(size: int = 4000) -> bytes:
    """A step of ten thousand digits."""
    return PROTOCOL + b"}" + text("step") + b"\x8b" + struct.pack("<i", size) + b"\x7f" * size + b"s."


def same_hashes(count: int = 60_000) -> bytes:
    """Integers that all have one hash."""
    modulus = 2**61 - 1
    numbers = ((n * modulus).to_bytes(12, "little") for n in range(count))
    return PROTOCOL + b"}(" + b"".join(b"\x8a\x0c" + number + b"N" for number in numbers) + b"u."


def long_literal() -> bytes:
    """A literal of more bytes than any disk has."""
    return b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x."


def long_line() -> bytes:
    """A number in digits that Python would take minutes to read."""
    return b"L" + b"9" * 3_000_000 + b"L\n."


PICKLES: dict[str, Callable[[], bytes]] = {
    made.__name__: made
    for made in (
        *(hash_bomb, deep_key, deep_value, fan_out, storage_key, name_of_names, long_names, long_step, same_hashes),
        *(long_literal, long_line),
    )
}


def directory_of(size: int) -> bytes:
    """The end of a zip archive whose directory is so long, and of nothing."""
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, size, 0)
    locator = struct.pack("<IIQI", 0x07064B50, 0, size, 1)
    return end64 + locator + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, *(0xFFFFFFFF,) * 2, 0)


def write_sparse(path: Path, size: int, begin: bytes = b"", end: bytes = b"") -> None:
    """A file that takes no room, of any size."""
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(size)
        file.seek(size)
        file.write(end)


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    """A file with that header."""
    return struct.pack("<Q", len(header)) + header + data


def many_values(chains: int = 5800, depth: int = 500) -> bytes:
    """JSON of objects in objects, which take thirty times its size."""
    chain = b'{"a":' * depth + b"0" + b"}" * depth
    return b'{"a":[' + b",".join([chain] * chains) + b"]}"


def item_again_and_again(folder: Path, uses: int = 60_000, size: int = 8 << 20) -> None:
    """A DCP folder of one item, which its `.metadata` names so often that comparing its checksum takes a day."""
    data = archive(PROTOCOL + text("x" * size)[:5] + b"x" * size + b".")
    (folder / "__0_0.distcp").write_bytes(data)
    info = b"c_\n_\n)\x81}(" + text("relative_path") + text("__0_0.distcp") + text("offset") + b"K\0"
    info += text("length") + b"J" + struct.pack("<i", len(data)) + b"ub"
    stored = b"}(" + b"K\0" + info + b"q\0"
    stored += b"".join(b"J" + struct.pack("<i", n) + b"h\0" for n in range(1, uses)) + b"u"
    body = b"c_\n_\n)\x81}(" + text("state_dict_metadata") + b"}" + text("storage_data") + stored + b"ub."
    (folder / ".metadata").write_bytes(PROTOCOL + body)


def write_index(folder: Path, shards: int) -> None:
    """What Hugging Face's index of many shards looks like."""
    index = {"weight_map": {f"w{n}": f"model-{n}.safetensors" for n in range(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_fifo(path: Path) -> None:
    """A file that waits for a writer who never comes."""
    os.mkfifo(path)
