"""A pickle is walked, never run."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.checkpoints.reading.pickles import (
    OPAQUE,
    BadPickle,
    Node,
    Source,
    TooDeep,
    TooLong,
    walk_pickle,
)


class Trap:
    """Makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_it_is_called(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "sprung"
    root, walk = walk_pickle(pickle.dumps({"x": Trap(trap)}, protocol=protocol))
    assert not trap.exists()
    assert isinstance(root["x"], Node) and root["x"].args == (str(trap),)
    assert walk.calls == {"posix mkdir": 1}


keys = st.text() | st.integers(-(2**60), 2**60)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-(2**60), 2**60), inner)
    ),
    max_leaves=20,
)


@given(plain, st.integers(3, 5))
def test_plain_values_are_seen_as_they_are(value: Any, protocol: int) -> None:
    assert walk_pickle(pickle.dumps(value, protocol=protocol))[0] == value


def test_an_ordered_dictionary_is_looked_into() -> None:
    value = collections.OrderedDict(a=1, b=[2])
    assert walk_pickle(pickle.dumps(value, protocol=2))[0] == {"a": 1, "b": [2]}


@given(st.binary(max_size=200))
def test_noise_is_bad_and_nothing_else(data: bytes) -> None:
    try:
        walk_pickle(data)
    except (BadPickle, TooLong):
        pass


@given(st.data())
def test_every_cut_is_bad(data: st.DataObject) -> None:
    whole = pickle.dumps({"a": [1, 2.5, "x", b"y", (None, True)], "b": {1: 2}}, protocol=data.draw(st.integers(0, 5)))
    with pytest.raises(BadPickle):
        walk_pickle(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_damaged_length_reads_no_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"short")
    with path.open("rb") as file, pytest.raises(BadPickle):
        walk_pickle(Source(file, path.stat().st_size))


@pytest.mark.parametrize(
    "data",
    [b"ctorch\n_reb\xf2ild\n.", b"L" + b"lL" * 600 + b"\n.", b"Pa\xf2\n.", b"S'a\n.", b"p1\n.", b"K", b"\x8c\x05ab."],
)
def test_what_the_unpickler_would_refuse_is_bad(data: bytes) -> None:
    with pytest.raises(BadPickle):
        walk_pickle(data)


def test_a_long_literal_is_passed_over_and_a_long_number_too() -> None:
    root, _ = walk_pickle(pickle.dumps({"a": b"x" * 9000, "b": "y" * 9000, "c": 3}, protocol=4))
    assert root["a"] is root["b"] is OPAQUE and root["c"] == 3
    assert walk_pickle(b"L" + b"9" * 2000 + b"L\n.")[0] is OPAQUE


def test_a_key_that_takes_for_ever_to_hash_is_told_and_one_of_a_few_parts_is_not() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert len(walk_pickle(pickle.dumps({("layer", 1, (2, 3)): 4, 1.5: 5, None: 6}, protocol))[0]) == 3
    with pytest.raises(TooDeep):
        walk_pickle(b"})" + b"2\x86" * 60 + b"K\x01s.")
