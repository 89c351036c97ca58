"""What differs between two runs is told, most telling first; what one of them has not recorded is no difference."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.report.comparison.arguments import ABSENT, diff_arguments, split_script
from guardrun.supervisor.report.comparison.differences import KINDS, Comparison, compare_runs
from guardrun.supervisor.report.comparison.run_facts import Attempt, Curve, RunFacts, Trouble
from guardrun.supervisor.rundir.environment import Environment, FileDigest, Repository
from tests.report.comparison.facts import ENVIRONMENT, curve, other_run, recorded, run


def whats(found: Comparison) -> list[tuple[str, str]]:
    return [(one.kind, one.what) for one in found.differences]


def test_a_run_and_itself_again() -> None:
    found = compare_runs(run(), run("b"))
    assert (found.differences, found.unknown) == ([], [])
    assert found.outcome[0] == "loss: equal to the last bit at all 400 steps that both have"
    for words in ("the script and 1 module of its own", "torch's seed on rank 0 (1234)", "4 installed packages"):
        assert words in found.same


def test_the_order_is_that_of_the_kinds() -> None:
    """Everything at once: each kind has a difference, and they come in the order of the table."""
    found = compare_runs(run(), other_run())
    kinds = [one.kind for one in found.differences]
    assert list(dict.fromkeys(kinds)) == list(KINDS)
    assert [one.what for one in found.differences if one.kind == "packages"] == ["numpy", "attrs"]
    assert [one.what for one in found.differences if one.kind == "code"] == ["train.py", "git commit"]
    assert [(one.what, one.a, one.b) for one in found.differences if one.kind == "arguments"] == [
        ("--lr", "0.1", "0.2")
    ]


# Decoys -----------------------------------------------------------------------------------------------------------


def test_another_seed_alone() -> None:
    orders = {key: msgspec.structs.replace(one, order="5eed") for key, one in run().orders.items()}
    found = compare_runs(run(), run("b", curves={"loss": curve(7)}, orders=orders, environments=recorded(seed=99)))
    assert [kind for kind, _ in whats(found)] == ["seed", "data"]
    assert "by no more than noise" in found.outcome[0]


def test_the_same_on_another_node() -> None:
    other = run("b", node="node-b", attempts=[Attempt(number=0, world_size=2, nodes=["node-b"])])
    other.environments = recorded(node="node-b", wall_s=5.0)
    assert whats(compare_runs(run(), other)) == [("place", "node")]


def test_a_resumed_run_against_a_straight_one() -> None:
    attempts = [
        Attempt(number=0, world_size=2, nodes=["node-a"]),
        Attempt(number=1, world_size=2, nodes=["node-a"], resumed_from=Checkpoint(path="/out/c_40.pt", step=40)),
    ]
    other = run(
        "b", attempts=attempts, steps_redone=20, incidents=[Trouble(cause="segfault", step=60, action="restart")]
    )
    found = compare_runs(run(), other)
    assert {kind for kind, _ in whats(found)} == {"restarts"}
    assert found.differences[-1].b == "segfault at step 60 (restart)"


def test_a_run_that_is_shorter_and_goes_on() -> None:
    short = {
        "loss": curve(steps=90),
        "grad_norm": curve(3, 90),
        "learning_rate": Curve([(n, 0.1) for n in range(1, 91)]),
    }
    found = compare_runs(run(), run("b", last_step=90, outcome="", state="running", curves=short, step_times=[]))
    assert whats(found) == [("length", "last step"), ("length", "how it ended")]
    assert (found.differences[1].a, found.differences[1].b) == ("finished", "running")
    assert found.outcome[0] == "loss: equal to the last bit at all 90 steps that both have"


@pytest.mark.parametrize(("step_s", "words"), [(0.3, "50% slower: b"), (4.0, "20 times as slow: b"), (0.202, "")])
def test_how_much_slower_in_words_that_can_be_read(step_s: float, words: str) -> None:
    found = compare_runs(run(), run("b", step_times=[step_s, step_s]))
    assert [one.note for one in found.differences] == ([words] if words else [])


@pytest.mark.parametrize("older_first", [True, False])
def test_an_older_guardrun_has_recorded_less(older_first: bool) -> None:
    older = run("old", environments=[], orders={}, curves={})
    pair = (older, run()) if older_first else (run(), older)
    found = compare_runs(*pair)
    assert (found.differences, found.outcome) == ([], [])
    assert "code, versions, flags and variables: old has not recorded them" in found.unknown
    assert "loss: old has none" in found.unknown
    assert any(words.startswith("which samples were trained on") for words in found.unknown)


def test_two_folders_of_which_nothing_is_known() -> None:
    found = compare_runs(RunFacts(run_id="a", run_dir="/a"), RunFacts(run_id="b", run_dir="/b"))
    assert found.differences == [] and found.unknown


def test_what_one_rank_alone_told_of_its_flags_is_not_compared() -> None:
    """Another torch knows another flag."""
    found = compare_runs(run(), run("b", environments=recorded(flags={**ENVIRONMENT.flags, "fp32_precision": "tf32"})))
    assert found.differences == []


def test_a_file_too_large_to_be_read_is_compared_by_size() -> None:
    def large(size: int, mtime_s: float) -> list[Environment]:
        files = {"train.py": FileDigest(size_bytes=size, mtime_s=mtime_s, why="larger than 4 MiB")}
        return recorded(files=files)

    assert whats(compare_runs(run(environments=large(9, 1.0)), run("b", environments=large(9, 2.0)))) == []
    [one] = compare_runs(run(environments=large(9, 1.0)), run("b", environments=large(8, 1.0))).differences
    assert (one.kind, one.what, one.b) == ("code", "train.py", "8 bytes, not read (larger than 4 MiB)")


def test_code_that_changed_within_a_run() -> None:
    later = recorded(
        files={**ENVIRONMENT.files, "train.py": FileDigest(digest="e" * 16, size_bytes=1)}, session=1, attempt=2
    )
    found = compare_runs(run(), run("b", environments=[ENVIRONMENT, *later]))
    assert whats(found) == [("code", "train.py, within b")]
    assert found.differences[0].a == "one and the same" and "attempt 2, session 1" in found.differences[0].b


def test_many_packages_are_cut() -> None:
    more = {f"p{n:03}": "1" for n in range(300)}
    other = run("b", environments=recorded(packages={**ENVIRONMENT.packages, **more}))
    found = [one for one in compare_runs(run(), other).differences if one.kind == "packages"]
    assert len(found) == 13 and found[-1].what == "288 more packages" and len(found[-1].note) <= 400


def test_data_of_another_length() -> None:
    orders = {key: msgspec.structs.replace(one, length=390) for key, one in run().orders.items()}
    found = compare_runs(run(), run("b", orders=orders))
    assert [(one.what, one.a, one.b) for one in found.differences] == [
        ("batches of a pass over loader 0", "400", "390")
    ]


# Arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "differing"),
    [
        ("--lr 0.1 --n 3", "--lr=0.1 --n 3", []),
        ("--lr 0.1", "--lr 0.2", [("--lr", "0.1", "0.2")]),
        ("--lr -0.1", "--lr -.2", [("--lr", "-0.1", "-.2")]),
        ("--amp --n 3", "--n 3", [("--amp", "(given)", ABSENT)]),
        ("data out --n 3", "data out2 --n 3", [("arguments", "data out", "data out2")]),
        ("optim.lr=1 +x=2", "optim.lr=3 +x=2", [("optim.lr", "1", "3")]),
        ("--set a=1 b=2", "--set a=1 b=3", [("--set", "a=1 b=2", "a=1 b=3")]),
        ("--n 3 --lr 1", "--lr 1 --n 3", []),
        ("--tag x --tag y", "--tag x", [("--tag", "x y", "x")]),
    ],
)
def test_arguments(a: str, b: str, differing: list[tuple[str, str, str]]) -> None:
    assert diff_arguments(a.split(), b.split()) == differing


@pytest.mark.parametrize(
    ("script", "program", "own"),
    [
        ("/usr/bin/python3.11 -u train.py --lr 1", "/usr/bin/python3.11 -u train.py", "--lr 1"),
        ("python -m pkg.train -x", "python -m pkg.train", "-x"),
        ("python -X faulthandler -m pkg.train -x", "python -X faulthandler -m pkg.train", "-x"),
        ("./train.sh --lr 1", "./train.sh", "--lr 1"),
        ("", "", ""),
    ],
)
def test_the_script_and_its_arguments(script: str, program: str, own: str) -> None:
    assert split_script(script.split()) == (program.split(), own.split())


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ("python -u train.py", "python -u tune.py", ("train.py", "tune.py")),
        ("python -u train.py", "python -u -O train.py", ("train.py", "-O train.py")),
        ("python -u -m pkg.train", "python -u -m pkg.tune", ("-m pkg.train", "-m pkg.tune")),
        ("python -u train.py", "python -u -m train", ("train.py", "-m train")),
    ],
)
def test_another_script_without_what_both_have(a: str, b: str, told: tuple[str, str]) -> None:
    found = compare_runs(run(script=a.split()), run("b", script=b.split()))
    assert [(one.a, one.b) for one in found.differences if one.what == "script"] == [told]


def test_the_commit_and_what_was_changed_since() -> None:
    def at(commit: str, **changes: Any) -> RunFacts:
        values = {"folder": "/p", "commit": commit * 40, "branch": "main", "is_compared": True, **changes}
        return run("b", environments=recorded(repository=Repository(**values)))

    assert "git commit aaaaaaaaaaaa (main)" in compare_runs(run(), at("a")).same
    [one] = compare_runs(run(), at("a", changed=["x.py", "y.py"], untracked=["z.py"])).differences
    assert (one.what, one.b) == ("state of the git checkout", "aaaaaaaaaaaa (main), 2 files changed, 1 file untracked")
    [one] = compare_runs(run(), at("b", branch="")).differences
    assert (one.kind, one.what, one.b) == ("code", "git commit", "bbbbbbbbbbbb")
    assert "whether files were changed since the commit" in compare_runs(run(), at("a", is_compared=False)).unknown
