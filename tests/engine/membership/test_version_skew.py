"""What should be alike on all nodes: who differs is named, with both values."""

from __future__ import annotations

from guardrun.supervisor.engine.membership.version_skew import NodeEnvironment, compare

CODE = {"train.py": "aaa", "model.py": "bbb", "data/load.py": "ccc"}


def facts(
    torch: str = "2.6.0", wall_s: float = 1.8e9, files: dict[str, str] | None = None, **more: bool
) -> NodeEnvironment:
    code = CODE if files is None else files
    return NodeEnvironment(versions={"torch": torch, "nccl": ""}, wall_s=wall_s, script="train.py", files=code, **more)


def test_nothing_to_say_of_nodes_that_are_alike() -> None:
    assert compare({f"n{number}": facts(wall_s=1.8e9 + number / 10) for number in range(5)}) == []


def test_the_odd_version_is_named_with_whose_it_is() -> None:
    nodes = {f"n{number}": facts() for number in range(6)} | {"n3": facts(torch="2.5.1")}
    assert compare(nodes) == ["n3 has torch 2.5.1, n0, n1, n2, n4 and 1 more have 2.6.0"]


def test_of_two_the_first_is_the_usual() -> None:
    assert compare({"n0": facts(), "n1": facts(torch="2.7.0")}) == ["n1 has torch 2.7.0, n0 has 2.6.0"]


def test_what_is_unknown_is_not_compared() -> None:
    assert compare({"n0": facts(), "n1": NodeEnvironment(), "n2": facts(files={})}) == []


def test_other_code_is_named_by_its_files_the_script_first() -> None:
    other = {**CODE, "train.py": "xxx", "data/load.py": "yyy"}
    assert compare({"n0": facts(), "n1": facts(files=other), "n2": facts()}) == [
        "n1 would run other code: train.py, data/load.py differ from the other nodes'"
    ]
    missing = {name: CODE[name] for name in ("train.py", "model.py")}
    assert compare({"n0": facts(files=missing), "n1": facts(), "n2": facts()}) == [
        "n0 would run other code: data/load.py differs from the other nodes'"
    ]


def test_where_only_the_script_was_read_only_that_is_compared() -> None:
    alone = facts(files={"train.py": "aaa"}, is_script_alone=True)
    assert compare({"n0": alone, "n1": facts(), "n2": alone}) == []
    other = facts(files={"train.py": "xxx"}, is_script_alone=True)
    assert compare({"n0": facts(), "n1": other, "n2": facts()}) == [
        "n1 would run other code: train.py differs from the other nodes'"
    ]


def test_a_clock_that_is_off_is_told_by_how_much() -> None:
    nodes = {f"n{number}": facts() for number in range(4)} | {"n2": facts(wall_s=1.8e9 - 312.4)}
    assert compare(nodes) == ["n2's wall clock is 312.4 s behind the others'"]
    assert compare({"n0": facts(), "n1": facts(wall_s=1.8e9 + 5)}) == ["n1's wall clock is 5.0 s ahead of the others'"]
