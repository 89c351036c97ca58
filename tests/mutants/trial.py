"""One mutation tried: its tests are run on a copy in which it is planted, and what became of that."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from tests.mutants.mutation import Mutation, StaleError
from tests.mutants.tree import Tree, clean_environment

TEST_S = 60
"""For one named test: a mutation may well make something wait for ever."""
NAMED_S = 600.0
SUITE_S = 3600.0

NAMED, QUICK, ALL = "named", "quick", "all"
SUITES = {QUICK: "test-quick", ALL: "test"}
"""What else may be run than the tests that a mutation names: targets of the Makefile."""

TABLE_TEST = "tests/project/test_mutants.py"
"""Wants each mutation's place unchanged: it would notice all of them."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
DETAIL_CHARS = 3000
_PASSED, _SOME_FAILED = 0, 1
"""Exit statuses of pytest; of all others no test can be the reason."""


class Verdict(str, Enum):
    """What became of a mutation."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    """No test has failed: one is missing."""
    BROKEN = "BROKEN"
    """It could not be tried: the table, or what it names, is to be mended."""


@dataclass(frozen=True)
class Outcome:
    """The verdict, and why."""

    mutation: Mutation
    verdict: Verdict
    took_s: float
    test: str = ""
    """The first that failed."""
    detail: str = ""
    """The end of the output, where it could not be tried."""

    @property
    def is_by_quick(self) -> bool:
        """Whether a test that is named as quick has caught it."""
        return self.verdict is Verdict.CAUGHT and self.test.startswith(self.mutation.quick)


@dataclass(frozen=True)
class _Ran:
    status: int
    output: str


def pytest_command(tree: Tree, tests: Sequence[str]) -> list[str]:
    """What runs some tests of a copy, in their order, until one fails."""
    options = ["-x", "-q", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
    return [str(tree.python), "-m", "pytest", *options, *tests]


def make_command(suite: str, *, is_first_enough: bool = True) -> list[str]:
    """What runs a whole suite in a copy, until a test fails; but for the one that looks after the table."""
    options = f"--ignore={TABLE_TEST}{' -x' if is_first_enough else ''}"
    return ["make", "--no-print-directory", SUITES[suite], f"PYTEST_ARGS={options}"]


class BaselineError(Exception):
    """The tests say nothing about mutations: they fail, or cannot be run, without any."""


def check_named(tree: Tree, tests: Sequence[str]) -> None:
    """See to it that these tests pass where nothing is planted. Raises BaselineError."""
    ran = _run(tree, pytest_command(tree, tests), SUITE_S)
    if ran.status != _PASSED:
        raise BaselineError(ran.output)


def failing_anyway(tree: Tree, suite: str) -> list[str]:
    """Tests of a suite that fail in a copy where nothing is planted: they are left out. Raises BaselineError."""
    ran = _run(tree, make_command(suite, is_first_enough=False), SUITE_S)
    failed = list(dict.fromkeys(_FAILED.findall(ran.output)))
    if ran.status != _PASSED and not failed:
        raise BaselineError(ran.output[-DETAIL_CHARS:])
    return failed


def attempt(tree: Tree, mutation: Mutation, number: int, suite: str = NAMED, without: Sequence[str] = ()) -> Outcome:
    """Plant a mutation, and see who notices. number: no other mutation's; without: tests of the suite to leave out."""
    began_s = time.monotonic()
    try:
        with tree.planted(mutation, number):
            verdict, test, detail = _notice(tree, mutation, suite, without)
    except StaleError as error:
        verdict, test, detail = Verdict.BROKEN, "", str(error)
    return Outcome(mutation, verdict, time.monotonic() - began_s, test, detail)


def _notice(tree: Tree, mutation: Mutation, suite: str, without: Sequence[str]) -> tuple[Verdict, str, str]:
    """The verdict on what is planted, the test that it rests on, and why there is none."""
    if suite == NAMED:
        ran = _run(tree, pytest_command(tree, mutation.caught_by), NAMED_S)
    else:
        ran = _run(tree, make_command(suite), SUITE_S, without)
    if ran.status == _PASSED:
        return Verdict.SURVIVED, "", ""
    failed = _FAILED.search(ran.output)
    if failed is None or (suite == NAMED and ran.status != _SOME_FAILED):
        return Verdict.BROKEN, "", ran.output[-DETAIL_CHARS:]
    if suite != NAMED and (again := _run(tree, pytest_command(tree, [failed[1]]), NAMED_S)).status != _SOME_FAILED:
        # Among thousands of tests one may have failed for another reason.
        return Verdict.BROKEN, failed[1], f"it has failed once, and not by itself:\n{again.output[-DETAIL_CHARS:]}"
    return Verdict.CAUGHT, failed[1], ""


def _run(tree: Tree, command: list[str], limit_s: float, without: Sequence[str] = ()) -> _Ran:
    options = " ".join(shlex.quote(f"--deselect={test}") for test in without)
    with subprocess.Popen(
        command,
        cwd=tree.root,
        env=clean_environment() | ({"PYTEST_ADDOPTS": options} if options else {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, _ = process.communicate()
            output += f"\nnot over after {limit_s:.0f} s"
    return _Ran(process.returncode, output)
