"""Frames come out as they went in, in whatever pieces; one that is too long is refused before it is there."""

from __future__ import annotations

import pytest

from guardrun.supervisor.base.framing import LENGTH, OversizeError, Unpacker, frame

BODIES = [b"one", b"", b"\0" * 300, b"last"]


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_pieces_of_any_size(size: int) -> None:
    stream, unpacker = b"".join(map(frame, BODIES)), Unpacker(300)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [body for piece in pieces for body in unpacker.feed(piece)] == BODIES
    assert unpacker.feed(frame(b"more")[:-1]) == [] and unpacker.feed(b"e") == [b"more"]


def test_what_is_longer_than_its_reader_takes_is_refused_by_its_length_alone() -> None:
    unpacker = Unpacker(300)
    assert unpacker.feed(LENGTH.pack(301)[:3]) == []
    with pytest.raises(OversizeError, match="a frame of 301 bytes; at most 300 are taken"):
        unpacker.feed(LENGTH.pack(301)[3:])
