"""guardctl config."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.config import Config
from tests.cli.conftest import Ctl


def test_defaults(ctl: Ctl) -> None:
    data = ctl.json("config")
    assert set(data) == {"config", "origins", "environment", "warnings"}
    assert data["config"] == Config().as_dict()
    assert set(data["origins"].values()) == {"default"}
    assert data["environment"]["NCCL_TIMEOUT"] == {"value": "2100", "origin": "guardrun"}


def test_values_and_where_they_are_from(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.toml").write_text("[hang]\nhard_timeout_s = 60\n")
    monkeypatch.setenv("GUARDRUN_CHECKPOINT_RESUME_ENV", '{ A = "{path}" }')
    monkeypatch.setenv("GUARDRUN_HANG_FLOR_S", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    out = ctl("config", "--guard-config", "own.toml")
    for part in (
        "own.toml",
        '{ A = "{path}" }',
        "GUARDRUN_CHECKPOINT_RESUME_ENV",
        "360",
        "warning: GUARDRUN_HANG_FLOR_S",
    ):
        assert part in out, part
    environment = ctl.json("config", "--guard-config", "own.toml")["environment"]
    assert environment["NCCL_TIMEOUT"]["value"] == "360"
    assert environment["TORCH_DISTRIBUTED_DEBUG"] == {"value": "OFF", "origin": "environment"}


def test_an_alias_that_the_user_set_leaves_the_other_alone(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "5")
    environment = ctl.json("config")["environment"]
    assert environment["TORCH_NCCL_TRACE_BUFFER_SIZE"] == {"value": "5", "origin": "environment"}
    assert "TORCH_FR_BUFFER_SIZE" not in environment


def test_mistakes(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "guardrun.toml").write_text("[hang]\nflor_s = 1\n[polcy]\n")
    ctl("config", code=1)
    assert "did you mean floor_s?" in ctl.err and "did you mean policy?" in ctl.err
    assert "floor_s" in ctl.json("config", code=1)["error"]


def test_the_configuration_of_a_run(ctl: Ctl, recorded: Path) -> None:
    data = ctl.json("config", "--run", "latest")
    assert data["config"] == {"hang": {"floor_s": 3.0}}
    assert data["origins"] == {"hang.floor_s": "x.toml"}
    assert "x.toml" in ctl("config", "--run", "vocab-1")
