"""Which tests `make test-quick` runs: what one runs before a commit, in five minutes on two cores.

    python -m pytest -p tests.support.quick

The rule stands here, and nowhere else: what is left out, by the tables below in this order, with one exception, KEPT.
When the quick tests have become slow: `make test-quick` ends with its slowest files, and either a table grows, or a
test gets `@pytest.mark.slow`. Everything is run by `make test`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

import pytest

SLOW = "slow"

KEPT = {
    "a run of the launcher": "tests/project/test_runs.py::test_a_run_to_its_end",
    "ranks that use torch.distributed": (
        "tests/launcher/test_torch.py::test_the_next_attempt_meets_nothing_of_the_last_on_the_port_that_was_asked_for"
    ),
    "a rank's environment is torchrun's": (
        "tests/launcher/test_run.py::test_environment_arguments_and_logs_are_torchruns"
    ),
    "a hang is found, and the ranks started again": (
        "tests/runs/test_policy.py::test_hold_keeps_hands_off_a_live_run_and_unhold_lets_it_be_mended"
    ),
    "a crash is told, and the ranks started again": (
        "tests/runs/crashes/test_crashes.py::test_the_same_exception_further_on_is_retried"
    ),
    "an attempt resumes from the newest whole checkpoint": (
        "tests/runs/resuming/test_resume.py::test_a_torn_newest_checkpoint_is_skipped_and_named_and_the_one_before_it_taken"
    ),
    "a supervisor is killed": (
        "tests/runs/surroundings/test_supervisor_faults.py::test_a_supervisor_killed_between_two_attempts_goes_on_where_it_was"
    ),
    "a signal ends everything": (
        "tests/runs/signals/test_signals.py::test_sigkill_of_guardrun_and_its_supervisor_at_once_ends_the_ranks"
    ),
}
"""Behaviour → the test with real processes that shows it here, whatever else the tables say of its like."""

MARKS = {
    SLOW: "takes more than a few seconds, and others show nearly the same",
}
"""Marks → why their tests are left out."""

PARTS = {
    "slurm": "its daemons take seconds to start, its jobs longer",
    "systemd": "a machine is booted",
    "chromium": "a browser is started",
    "netns": "a network of several nodes is laid",
    "sshfs": "a remote file system is mounted",
    "mkfs.ext4": "a file system is made",
    "transformers": "takes ten seconds to import",
    "accelerate": "takes ten seconds to import",
    "lightning": "takes ten seconds to import",
    "trl": "takes ten seconds to import",
}
"""Real parts (tests/support/real.py) → why their tests are left out."""

PLACES = {
    "tests/bench": "compares with torchrun",
    "tests/diagnose/test_guarded.py": "a whole run, diagnosed from its beginning to its end",
    "tests/diagnose/test_torchrun.py": "a job of torchrun's that hangs in one way after the other",
    "tests/runs": "whole runs of guardrun",
    "tests/emu": "a library is built, and jobs of several ranks train on it",
    "tests/faults": "whole runs of guardrun",
    "tests/fleet_runs": "whole runs on several nodes",
    "tests/gym": "whole runs with planted faults",
    "tests/hooks/patches/test_step_breakdown.py": "a training of several ranks for each case",
    "tests/preflight/test_full.py": "devices are tried for real",
    "tests/preflight/test_trial_parts.py": "devices are tried for real",
    "tests/realworld": "whole runs of others' trainers",
    "tests/sim": "weeks of virtual time",
    "tests/torchrun": "whole runs beside torchrun's",
}
"""Folders, and files of others, that are stories → what they are made of."""

FIXTURES = {
    "guardrun_starter": "a whole run of guardrun",
    "launcher": "a whole run of the launcher",
}
"""Fixtures → what a test that asks for one starts."""


def reason_to_leave_out(
    nodeid: str, marks: Collection[str] = (), parts: Collection[str] = (), fixtures: Collection[str] = ()
) -> str:
    """Why a test is not among the quick ones; empty where it is."""
    path, _, name = nodeid.partition("::")
    if f"{path}::{name.partition('[')[0]}" in KEPT.values():
        return ""
    places = {path, *map(str, PurePosixPath(path).parents)}
    for table, found in ((MARKS, marks), (PARTS, parts), (PLACES, places), (FIXTURES, fixtures)):
        for key, why in table.items():
            if key in found:
                return f"{key}: {why}"
    return ""


def _reason(item: pytest.Item) -> str:
    return reason_to_leave_out(
        item.nodeid,
        {mark.name for mark in item.iter_markers()},
        {str(part) for mark in item.iter_markers("real") for part in mark.args},
        getattr(item, "fixturenames", ()),
    )


def pytest_report_header() -> str:
    return "the quick ones of the tests, by tests/support/quick.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _reason(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
