"""Profiles are kept by request, and the oldest go where there are too many; the newest stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.daemon.profiles import ProfileRequest, keep_profiles
from guardrun.supervisor.rundir import profiles as module
from guardrun.supervisor.rundir.profiles import begin_profile, list_profiles, prune_profiles, read_summaries
from guardrun.supervisor.rundir.run_directory import check_run_dir
from tests.rundir.profile_answers import PROFILED


def test_what_ranks_have_told_is_kept_and_read_again(tmp_path: Path) -> None:
    assert list_profiles(tmp_path) == [] and list(read_summaries(tmp_path, 1)) == []
    number = begin_profile(tmp_path)
    answers = {0: PROFILED, 1: {**PROFILED, "steps": []}, 2: {**PROFILED, "held_ns": "x"}}
    kept, missing = keep_profiles(tmp_path, ProfileRequest(number, 3, 12.5), answers, {0: "node-a"})
    assert kept == {0: {"trace": PROFILED["trace"], "bytes": 9}}
    assert sorted(missing) == [1, 2] and all("none of this version" in why for why in missing.values())
    (one,) = read_summaries(tmp_path, number)
    assert (one.number, one.rank, one.node, one.attempt, one.at_s) == (1, 0, "node-a", 3, 12.5)
    assert one.steps == [(7, 0.0015)] and one.step_s == 0.0015 and one.plain_s == 0.001
    folder = tmp_path / "profiles"
    assert folder.stat().st_mode & 0o777 == 0o700
    check_run_dir(tmp_path)
    (folder / "001" / "rank-3.summary.json").write_text("[" * 100_000)
    (folder / "001" / "rank-4.summary.json").symlink_to(folder / "001" / "rank-0.summary.json")
    assert [one.rank for one in read_summaries(tmp_path, 1)] == [0]
    assert begin_profile(tmp_path) == 2


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        assert begin_profile(tmp_path) == number
        (tmp_path / "profiles" / f"{number:03d}" / "rank-0.json.gz").write_bytes(bytes(100))
    prune_profiles(tmp_path)
    assert list_profiles(tmp_path) == [1, 2, 3, 4]
    monkeypatch.setattr(module, "KEEP", 3)
    prune_profiles(tmp_path)
    assert list_profiles(tmp_path) == [2, 3, 4]
    monkeypatch.setattr(module, "KEEP_BYTES", 210)
    prune_profiles(tmp_path)
    assert list_profiles(tmp_path) == [3, 4]
    monkeypatch.setattr(module, "KEEP_BYTES", 10)
    prune_profiles(tmp_path)
    assert list_profiles(tmp_path) == [4]
