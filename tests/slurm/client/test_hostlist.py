"""Slurm's lists of nodes, held against `scontrol show hostnames`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guardrun.slurm.client.hostlist import HostlistError, join_hosts, parse_hostlist
from tests.support.slurmlab import SlurmLab


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07-11],gpu-a", ["n1", "n2", "n3", "n07", "n08", "n09", "n10", "n11", "gpu-a"]),
        ("rack[1-2]node[09-10]", ["rack1node09", "rack1node10", "rack2node09", "rack2node10"]),
        ("n[1,3]-ib,n2", ["n1-ib", "n3-ib", "n2"]),
        ("n1,n1", ["n1", "n1"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_lists(text: str, hosts: list[str]) -> None:
    assert parse_hostlist(text) == hosts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n[1-3", "without its ']'"),
        ("n1]", "without its '['"),
        ("n[[1]]", "within brackets"),
        ("n[3-1]", "runs backwards"),
        ("n[a-b]", "no range of numbers"),
        ("n[]", "no range of numbers"),
        ("n[1-99999999]", "more than 65536"),
        ("n[1-1000][1-1000]", "more than 65536"),
        ("n[1-60000],m[1-60000]", "more than 65536"),
    ],
)
def test_what_is_no_list_is_said(text: str, says: str) -> None:
    with pytest.raises(HostlistError, match=says.replace("[", r"\[").replace("]", r"\]")):
        parse_hostlist(text)


@given(st.text(max_size=60))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        assert all(isinstance(host, str) and host for host in parse_hostlist(text))
    except HostlistError:
        pass


def test_nodes_are_joined_once_each() -> None:
    assert join_hosts(["n2", "n1", "n2"]) == "n2,n1"


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,4}(-[a-z]{1,3})?", fullmatch=True)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    """A number, or first-last, with or without leading zeros."""
    first = draw(st.integers(0, 120))
    last = first + draw(st.integers(0, 12))
    width = draw(st.sampled_from([0, 0, 2, 3]))
    return f"{first:0{width}d}" if draw(st.booleans()) else f"{first:0{width}d}-{last:0{width}d}"


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """A list as Slurm's commands accept it."""
    words = []
    for _ in range(draw(st.integers(1, 3))):
        word = draw(NAMES)
        if draw(st.booleans()):
            word += f"[{','.join(draw(st.lists(ranges(), min_size=1, max_size=3)))}]"
        words.append(word)
    return ",".join(words)


@pytest.mark.real("slurm")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=expressions())
def test_slurm_reads_the_same(slurm_session: SlurmLab, text: str) -> None:
    said = slurm_session.run("scontrol", "show", "hostnames", text).stdout.split()
    assert parse_hostlist(text) == said
