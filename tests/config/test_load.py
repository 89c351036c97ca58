"""The layers: which wins, and where each value is said to come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from guardrun.supervisor.checkpoints.format_table import FORMAT_NAMES
from guardrun.supervisor.config import Config, load_config
from guardrun.supervisor.config.tables import TABLES, ConfigError, FormatName
from guardrun.supervisor.config.values import read_toml_text
from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.hang_patience import patience


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "guardrun.toml"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def load(
    cwd: Path, *, file: Path | None = None, system: Path | None = None, environ: Any = None, flags: Any = None
) -> Config:
    return load_config(file, flags or {}, environ or {}, cwd, system or cwd / "no-such.toml")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


AS_NOW: dict[str, Any] = {
    "goes_past_limit": False,
    "is_sure": True,
    "isolate_lost_s": 90.0,
    "jit_s": 30.0,
    **patience("normal"),
}
"""What a configuration says where the engine's own defaults differ."""


def test_nothing_configured_is_the_contracts_defaults(cwd: Path) -> None:
    config = load(cwd)
    assert config.as_dict() | {"hang": {}} == {
        "checkpoint": {
            "dir": "",
            "format": "auto",
            "resume_args": [],
            "resume_env": {},
            "resume_first": False,
            "exact_data": False,
            "jit_s": 30.0,
            "auto_interval": False,
            "snapshot_steps": 100,
            "snapshot_gb": 16.0,
            "mirror": False,
            "mirror_gb": 16.0,
            "mirror_mb_s": 200.0,
        },
        "restart": {"max_restarts": 10, "max_no_progress": 3, "stop_grace_s": 10.0, "gpu_memory_s": 20.0},
        "launcher": {"agent": "guardrun", "linger_s": 60.0, "keep_stderr": True, "warm": False, "warm_free_mb": 4096},
        "hang": {},
        "policy": {"act": True, "responses": {}},
        "gc": {"policy": "off", "every_steps": 100},
        "slowdown": {"window_s": 20.0, "device_timing": False},
        "guards": {
            "numeric": "watch",
            "detect": "metrics",
            "skip_sigmas": 0.0,
            "max_rollbacks": 3,
            "divergence": "watch",
            "memory": "watch",
            "check_every": 500,
        },
        "leaks": {"files_window_s": 120.0, "memory_window_s": 60.0},
        "node": {"state_dir": "", "shared_dir": "", "trust_jobs": False},
        "preflight": {"level": "quick"},
        "metrics": {"listen": "", "node_listen": "127.0.0.1:19470"},
        "preemption": {
            "signals": ["USR1", "USR2"],
            "sigterm": "slurm",
            "forward": False,
            "grace_s": 600.0,
            "term_grace_s": 30.0,
            "save_before_end_s": 120.0,
            "requeue": "auto",
        },
        "fleet": {
            "spares": 0,
            "join": "",
            "port": 0,
            "munge_socket": "",
            "lost_s": 25.0,
            "term_s": 15.0,
            "isolate_lost_s": 90.0,
            "last_call_s": 30.0,
            "join_timeout_s": 600.0,
            "head_gone_s": 60.0,
        },
        "live": {"eval": True},
        "notify": {"command": []},
    }
    assert (config.hang.floor_s, config.hang.hard_timeout_s) == (10.0, 1800.0)
    assert (config.hang.sensitivity, config.hang.tell_s) == ("normal", 15.0)
    assert config.settings() == Settings(check_nodes=config.preflight.level, tell_s=15.0, **AS_NOW)
    assert set(config.origins.values()) == {"default"}
    assert config.warnings == []


def test_each_layer_wins_over_the_one_before(cwd: Path, system: Path) -> None:
    layers: list[dict[str, Any]] = [
        {"system": write(system, "[hang]\nfloor_s = 1\n")},
        {"project": write(cwd / "guardrun.toml", "[hang]\nfloor_s = 2\n")},
        {"file": write(cwd / "other.toml", "[hang]\nfloor_s = 3\n")},
        {"environ": {"GUARDRUN_HANG_FLOOR_S": "4"}},
        {"flags": {"hang.floor_s": 5}},
    ]
    origins = [str(system), str(cwd / "guardrun.toml"), str(cwd / "other.toml"), "GUARDRUN_HANG_FLOOR_S"]
    for count, origin in enumerate([*origins, "--guard-hang-floor-s"], start=1):
        given: dict[str, Any] = {"system": cwd / "none.toml"}
        for layer in layers[:count]:
            given |= {key: value for key, value in layer.items() if key != "project"}
        (cwd / "guardrun.toml").unlink(missing_ok=True)
        if count > 1:
            write(cwd / "guardrun.toml", "[hang]\nfloor_s = 2\n")
        config = load(cwd, **given)
        assert config.hang.floor_s == count
        assert config.origins["hang.floor_s"] == origin


def test_layers_are_laid_over_each_other_key_by_key(cwd: Path, system: Path) -> None:
    write(system, "[restart]\nmax_restarts = 1\nmax_no_progress = 1\n")
    write(cwd / "guardrun.toml", "[restart]\nmax_restarts = 2\n")
    config = load(cwd, system=system)
    assert (config.restart.max_restarts, config.restart.max_no_progress) == (2, 1)
    assert config.origins["restart.max_no_progress"] == str(system)


def test_pyproject_table(cwd: Path) -> None:
    write(cwd / "pyproject.toml", '[project]\nname = "x"\n[tool.guardrun.policy]\nact = false\n')
    config = load(cwd)
    assert config.policy.act is False
    assert config.origins["policy.act"] == str(cwd / "pyproject.toml")


def test_guardrun_toml_wins_over_pyproject_and_says_so(cwd: Path) -> None:
    write(cwd / "pyproject.toml", "[tool.guardrun.policy]\nact = false\n")
    write(cwd / "guardrun.toml", "")
    config = load(cwd)
    assert config.policy.act is True
    [warning] = config.warnings
    assert "pyproject.toml" in warning and "not used" in warning


@pytest.mark.parametrize("text", ["not toml at all [", "[tool]\nother = 1\n", "tool = 3\n", "\ufeff"])
def test_somebody_elses_pyproject_stops_nothing(cwd: Path, text: str) -> None:
    write(cwd / "pyproject.toml", text)
    assert load(cwd).as_dict() == Config().as_dict()


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("GUARDRUN_POLICY_ACT", "false", "policy.act", False),
        ("GUARDRUN_POLICY_ACT", "0", "policy.act", False),
        ("GUARDRUN_RESTART_MAX_RESTARTS", "3", "restart.max_restarts", 3),
        ("GUARDRUN_HANG_HARD_TIMEOUT_S", "60", "hang.hard_timeout_s", 60.0),
        ("GUARDRUN_HANG_HARD_TIMEOUT_S", " 1_800.5 ", "hang.hard_timeout_s", 1800.5),
        ("GUARDRUN_CHECKPOINT_DIR", "out", "checkpoint.dir", "out"),
        ("GUARDRUN_CHECKPOINT_DIR", '"out"', "checkpoint.dir", "out"),
        ("GUARDRUN_CHECKPOINT_DIR", "2024", "checkpoint.dir", "2024"),
        ("GUARDRUN_CHECKPOINT_DIR", "a\nb = 1", "checkpoint.dir", "a\nb = 1"),
        ("GUARDRUN_LAUNCHER_AGENT", "torchrun", "launcher.agent", "torchrun"),
        ("GUARDRUN_NOTIFY_COMMAND", "notify 'a b' c", "notify.command", ["notify", "a b", "c"]),
        ("GUARDRUN_NOTIFY_COMMAND", '["notify", "a b"]', "notify.command", ["notify", "a b"]),
        ("GUARDRUN_NOTIFY_COMMAND", "", "notify.command", []),
        (
            "GUARDRUN_CHECKPOINT_RESUME_ARGS",
            "--resume {path}",
            "checkpoint.resume_args",
            ["--resume", "{path}"],
        ),
        (
            "GUARDRUN_CHECKPOINT_RESUME_ENV",
            '{ RESUME_FROM = "{path}" }',
            "checkpoint.resume_env",
            {"RESUME_FROM": "{path}"},
        ),
    ],
)
def test_environment_values(cwd: Path, name: str, text: str, key: str, value: Any) -> None:
    config = load(cwd, environ={name: text})
    table, _, short = key.partition(".")
    assert getattr(getattr(config, table), short) == value
    assert config.origins[key] == name
    assert config.warnings == []


def test_unknown_environment_variables_only_warn(cwd: Path) -> None:
    config = load(cwd, environ={"GUARDRUN_HANG_FLOR_S": "1", "GUARDRUN_XYZZY": "1"})
    assert config.warnings == [
        "GUARDRUN_HANG_FLOR_S: guardrun knows no such environment variable; did you mean GUARDRUN_HANG_FLOOR_S?",
        "GUARDRUN_XYZZY: guardrun knows no such environment variable",
    ]


def test_reserved_names_are_left_alone(cwd: Path) -> None:
    names = ["DIR", "RUN_ID", "RESUME_FROM", "RESUME_STEP", "RESUME_ANYTHING", "HOOKS", "TOKEN"]
    assert load(cwd, environ={f"GUARDRUN_{name}": "x" for name in names} | {"OTHER": "x"}).warnings == []


def test_flags(cwd: Path) -> None:
    flags = {"--max-restarts": 2, "--guard-policy-act": "false", "hang.floor_s": None}
    config = load_config(None, flags, {"GUARDRUN_HANG_FLOOR_S": "7"}, cwd, cwd / "none")
    assert (config.restart.max_restarts, config.policy.act, config.hang.floor_s) == (2, False, 7)
    assert config.origins["restart.max_restarts"] == "--max-restarts"
    assert config.origins["policy.act"] == "--guard-policy-act"


def test_settings_carry_every_engine_key(cwd: Path) -> None:
    """A key that the engine has and the configuration has not could not be set by anybody."""
    text = dict.fromkeys(TABLES, "") | {"checkpoint": "resume_first = true\n"}
    wanted = {}
    for number, field in enumerate(msgspec.structs.fields(Settings), start=1):
        if field.type not in (int, float) or field.name in (*patience("normal"), "look_gap_s", "look_every_s"):
            continue
        tables = [name for name, keys in TABLES.items() if field.name in keys.__struct_fields__]
        assert len(tables) == 1, f"Settings.{field.name} must be a key of that name in one table, not in {tables}"
        [table] = tables
        text[table] += f"{field.name} = {number}\n"
        wanted[field.name] = number
    write(
        cwd / "guardrun.toml",
        "".join(f"[{table}]\n{keys}" for table, keys in text.items() if keys) + "[policy]\nact = false\n"
        'responses = { gpu_xid_79 = "note" }\n'
        '[launcher]\nagent = "torchrun"\n[gc]\npolicy = "freeze"\n',
    )
    settings = load(cwd).settings()
    others: dict[str, Any] = {"act": False, "resume_first": True, "is_torchrun_agent": True, "gc_policy": "freeze"}
    others |= {"check_nodes": Config().preflight.level, **AS_NOW}
    others |= {"look_gap_s": wanted["floor_s"] / 2, "look_every_s": wanted["floor_s"]}
    assert settings == Settings(**{**others, **wanted}, responses={"gpu_xid_79": "note"})


def test_sensitivity_and_scale_say_how_patient_the_engine_is(cwd: Path) -> None:
    def settings(**flags: Any) -> Settings:
        return load(cwd, flags={f"hang.{key}": value for key, value in flags.items()}).settings()

    eager, normal, patient = (settings(sensitivity=name) for name in ("eager", "normal", "patient"))
    assert [s.idle_patience_s for s in (eager, normal)] == [30, 300]
    assert [s.awake_patience_s for s in (eager, normal)] == [30, 600]
    assert [s.is_sure for s in (eager, normal, patient)] == [False, True, True]
    assert patient.idle_patience_s > 1e6
    assert patient.stopped_patience_s == normal.stopped_patience_s == 3
    assert settings(sensitivity="eager", scale=0.1).data_patience_s == pytest.approx(6)
    assert msgspec.structs.replace(eager, tell_s=0.0) == Settings(
        check_nodes="quick", **{**AS_NOW, "is_sure": False, **patience("eager")}
    ), "eager is what the engine decides by unless it is told"


@pytest.mark.parametrize(("floor_s", "gap_s", "every_s"), [(0, 0.5, 0.5), (2, 1, 2), (7, 3, 7), (10, 3, 8), (60, 3, 8)])
def test_who_lowers_the_floor_is_looked_for_sooner(cwd: Path, floor_s: float, gap_s: float, every_s: float) -> None:
    settings = load(cwd, flags={"hang.floor_s": floor_s}).settings()
    assert (settings.look_gap_s, settings.look_every_s) == (gap_s, every_s)


def test_a_hard_limit_below_the_floor_warns(cwd: Path) -> None:
    assert "less than hang.floor_s" in load(cwd, flags={"hang.hard_timeout_s": 5}).warnings[0]
    assert load(cwd, flags={"hang.hard_timeout_s": 0}).warnings == []


def test_a_guard_that_there_is_not_is_refused(cwd: Path) -> None:
    with pytest.raises(ConfigError, match='expected "watch" or "stop"'):
        load(cwd, flags={"guards.divergence": "repair"})


def test_the_documentation_shows_every_key_with_its_default() -> None:
    """docs/configuration.md holds the defaults as TOML: read it, and they are the defaults."""
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    block = page.split("```toml", 1)[1].split("```", 1)[0]
    assert read_toml_text(block) == Config().as_dict()


def test_every_checkpoint_format_can_be_configured_and_no_other() -> None:
    assert get_args(FormatName) == FORMAT_NAMES
