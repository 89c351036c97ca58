"""What the user is told: file, key, what was expected, and the nearest valid key; everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.config import ConfigError, load_config


def problems(cwd: Path, text: str = "", *, environ: dict[str, str] | None = None, **flags: Any) -> list[str]:
    """The problems of a guardrun.toml, environment and flags, with the file's folder left out."""
    (cwd / "guardrun.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(None, flags, environ or {}, cwd, cwd / "no-such.toml")
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.replace(f"{cwd}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[hang]\nidle_patience_s = 30",
            'guardrun.toml: unknown key hang.idle_patience_s; hang.sensitivity ("eager", "normal" or "patient") and '
            "hang.scale have taken its place",
        ),
        (
            "[hang]\nlook_gap_s = 1",
            "guardrun.toml: unknown key hang.look_gap_s; it is gone, as looks follow hang.floor_s",
        ),
        (
            "[gc]\nwarmup_steps = 9",
            "guardrun.toml: unknown key gc.warmup_steps; it is gone: the warm-up is five steps",
        ),
        ("[hang]\nflor_s = 1", "guardrun.toml: unknown key hang.flor_s; did you mean floor_s?"),
        (
            "[hang]\nmax_restarts = 1",
            "guardrun.toml: unknown key hang.max_restarts; did you mean restart.max_restarts?",
        ),
        ("[policy]\nzzzzzz = 1", "guardrun.toml: unknown key policy.zzzzzz; valid keys: act, responses"),
        ("[hangs]\nfloor_s = 1", "guardrun.toml: unknown table [hangs]; did you mean hang?"),
        ("floor_s = 1", "guardrun.toml: unknown key floor_s: keys stand in a table; did you mean hang.floor_s?"),
        ("hang = 1", "guardrun.toml: hang: expected a table, as in [hang]"),
        ('[hang]\nfloor_s = "1"', 'guardrun.toml: hang.floor_s: expected a number, 0 or more, got the string "1"'),
        ("[hang]\nfloor_s = -1", "guardrun.toml: hang.floor_s: expected a number, 0 or more, got -1"),
        ("[hang]\nfloor_s = true", "guardrun.toml: hang.floor_s: expected a number, 0 or more, got true"),
        ("[hang]\nfloor_s = nan", "guardrun.toml: hang.floor_s: expected a number, 0 or more, got nan"),
        ("[hang]\nhard_timeout_s = inf", "guardrun.toml: hang.hard_timeout_s: expected a number, 0 or more, got inf"),
        ("[hang]\ntell_s = 0", "guardrun.toml: hang.tell_s: expected a number greater than 0, got 0"),
        (
            "[restart]\nmax_restarts = -1",
            "guardrun.toml: restart.max_restarts: expected a whole number, 0 or more, got -1",
        ),
        (
            "[restart]\nmax_restarts = 1.5",
            "guardrun.toml: restart.max_restarts: expected a whole number, 0 or more, got 1.5",
        ),
        ("[fleet]\nport = 99999", "guardrun.toml: fleet.port: expected a whole number, 0 to 65535, got 99999"),
        ("[policy]\nact = 1", "guardrun.toml: policy.act: expected true or false, got 1"),
        (
            '[launcher]\nagent = "torchrum"',
            'guardrun.toml: launcher.agent: expected "guardrun" or "torchrun", got the string "torchrum"; '
            "did you mean torchrun?",
        ),
        (
            '[notify]\ncommand = "notify"',
            'guardrun.toml: notify.command: expected a list of strings, as in ["a", "b"], got the string "notify"',
        ),
        (
            "[notify]\ncommand = [1]",
            'guardrun.toml: notify.command: expected a list of strings, as in ["a", "b"], '
            "got a list that holds more than strings",
        ),
        (
            "[checkpoint]\nresume_env = { A = 1 }",
            'guardrun.toml: checkpoint.resume_env: expected a table of strings, as in { NAME = "value" }, '
            "got a table of more than strings",
        ),
        (
            '[checkpoint]\nresume_args = ["{pth}"]',
            "guardrun.toml: checkpoint.resume_args: unknown placeholder {pth}; there are {path}, {step}, {dir}; "
            "did you mean {path}?",
        ),
        (
            '[checkpoint]\nresume_env = { A = "{x}{y}" }',
            "guardrun.toml: checkpoint.resume_env: unknown placeholder {x}, {y}; there are {path}, {step}, {dir}",
        ),
        (
            '[checkpoint]\nresume_env = { "A=B" = "x" }',
            "guardrun.toml: checkpoint.resume_env: 'A=B' is no name of an environment variable",
        ),
        (
            '[policy]\nresponses = { gpu_ec = "isolate" }',
            "guardrun.toml: policy.responses: unknown cause gpu_ec; did you mean gpu_ecc?",
        ),
        (
            '[policy]\nresponses = { gpu_xid_79 = "isolte" }',
            'guardrun.toml: policy.responses: gpu_xid_79: expected "note" or "restart" or "isolate", '
            'got the string "isolte"; did you mean isolate?',
        ),
        (
            '[policy]\nresponses = { straggler = "restart" }',
            'guardrun.toml: policy.responses: straggler: a slow rank stops no run; expected "note" or "isolate", '
            'got "restart"',
        ),
        (
            '[policy]\nresponses = { replica_divergence = "restart" }',
            'guardrun.toml: policy.responses: replica_divergence: [guards] divergence = "stop" ends the run; expected '
            '"note" or "isolate", got "restart"',
        ),
        ('[checkpoint]\ndir = "a\\u0000"', "guardrun.toml: checkpoint.dir: a NUL character can't be passed on"),
    ],
)
def test_one_mistake(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, text) == [problem]


def test_all_mistakes_of_all_layers_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "[hang]\nflor_s = 1\nfloor_s = -1\n[polcy]\nact = true\n",
        environ={"GUARDRUN_HANG_FLOOR_S": "soon", "GUARDRUN_POLICY_ACT": "perhaps"},
        **{"hang.florr_s": 1, "restart.max_restarts": "many"},
    )
    assert found == [
        "guardrun.toml: unknown key hang.flor_s; did you mean floor_s?",
        "guardrun.toml: hang.floor_s: expected a number, 0 or more, got -1",
        "guardrun.toml: unknown table [polcy]; did you mean policy?",
        'GUARDRUN_HANG_FLOOR_S: expected a number, 0 or more, got the string "soon"',
        'GUARDRUN_POLICY_ACT: expected true or false, got the string "perhaps"',
        "unknown flag --guard-hang-florr-s; did you mean --guard-hang-floor-s?",
        '--guard-restart-max-restarts: expected a whole number, 0 or more, got the string "many"',
    ]


def test_keys_for_patience_have_gone_and_it_is_said_what_took_their_place(tmp_path: Path) -> None:
    hint = '; hang.sensitivity ("eager", "normal" or "patient") and hang.scale have taken its place'
    assert problems(tmp_path, "", **{"--guard-hang-data-patience-s": 20}) == [
        f"unknown flag --guard-hang-data-patience-s{hint}"
    ]
    variable = "GUARDRUN_HANG_SPIN_PATIENCE_S"
    config = load_config(None, {}, {variable: "20"}, tmp_path, tmp_path / "none")
    assert config.warnings == [f"{variable}: guardrun knows no such environment variable{hint}"]


def test_so_have_keys_that_nobody_set(tmp_path: Path) -> None:
    hint = "; it is gone, as looks follow hang.floor_s"
    assert problems(tmp_path, "", **{"--guard-hang-look-every-s": 2}) == [
        f"unknown flag --guard-hang-look-every-s{hint}"
    ]
    variable = "GUARDRUN_GC_WARMUP_STEPS"
    config = load_config(None, {}, {variable: "9"}, tmp_path, tmp_path / "none")
    gone = "guardrun knows no such environment variable; it is gone: the warm-up is five steps"
    assert config.warnings == [f"{variable}: {gone}"]


def test_syntax_errors_have_their_line(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "[hang]\nfloor_s = \n")
    assert problem.startswith("guardrun.toml: not valid TOML: ")
    assert "line 2" in problem


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(b"[hang]\xff")
    with pytest.raises(ConfigError, match=r"own\.toml: not valid TOML: not UTF-8 at byte 6"):
        load_config(Path("own.toml"), {}, {}, tmp_path, tmp_path / "none")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"own\.toml: no such file"):
        load_config(Path("own.toml"), {}, {}, tmp_path, tmp_path / "none")
    with pytest.raises(ConfigError, match="not readable: Is a directory"):
        load_config(tmp_path, {}, {}, tmp_path, tmp_path / "none")


def test_our_own_table_in_a_broken_pyproject_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.guardrun.hang\nfloor_s = 1\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: not valid TOML: .*line 1"):
        load_config(None, {}, {}, tmp_path, tmp_path / "none")


def test_pyproject_keys_are_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.guardrun.hang]\nflor_s = 1\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: unknown key tool\.guardrun\.hang\.flor_s"):
        load_config(None, {}, {}, tmp_path, tmp_path / "none")


@pytest.mark.parametrize("text", ['["a", b]', "[unclosed", "'unclosed"])
def test_lists_in_the_environment_that_are_none(tmp_path: Path, text: str) -> None:
    [problem] = problems(tmp_path, environ={"GUARDRUN_NOTIFY_COMMAND": text})
    assert problem.startswith("GUARDRUN_NOTIFY_COMMAND: ")
    assert text in problem
