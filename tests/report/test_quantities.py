from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.base.redaction import HIDDEN, redact_argv, redact_values
from guardrun.supervisor.report.elements.quantities import duration, iso_time, parse_iso_time


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1795000000.25, "2026-11-18T11:06:40.250Z"),
        (1795000000.2999999, "2026-11-18T11:06:40.300Z"),
        (1795000000.9999, "2026-11-18T11:06:41.000Z"),
    ],
)
def test_iso_time(wall_s: float, text: str) -> None:
    assert iso_time(wall_s) == text


@given(st.floats(0, 4e9))
def test_iso_time_reads_back_to_the_millisecond(wall_s: float) -> None:
    assert parse_iso_time(iso_time(wall_s)) == pytest.approx(wall_s, abs=0.00051)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (12000, "3 h 20 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_environment_without_secrets() -> None:
    kept = {"PATH": "/bin", "PWD": "/w", "TOKENIZERS_PARALLELISM": "false", "GUARDRUN_TOKEN": "x", "NCCL_DEBUG": "INFO"}
    secret = [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "my_token",
        "MYSQL_PWD",
        "SLACK_WEBHOOK",
    ]
    assert redact_values({**kept, **dict.fromkeys(secret, "s3cr3t")}) == {**kept, **dict.fromkeys(secret, HIDDEN)}
    assert redact_values({"URL": "https://me:pass@host/x"}) == {"URL": f"https://me:{HIDDEN}@host/x"}
    nested = {"a": {"WANDB_API_KEY": "k", "n": 1}, "l": ["--password=x"], "m": [1]}
    shown = {"a": {"WANDB_API_KEY": HIDDEN, "n": 1}, "l": [f"--password={HIDDEN}"], "m": [1]}
    assert redact_values(nested) == shown


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["--api-key", "x", "--lr", "1"], ["--api-key", HIDDEN, "--lr", "1"]),
        (["--api-key=x"], [f"--api-key={HIDDEN}"]),
        (["--hf_token", "x"], ["--hf_token", HIDDEN]),
        (["--password", "--lr", "1"], ["--password", "--lr", "1"]),
        (
            ["--tokenizer", "gpt2", "--max-tokens=5", "--monkey", "1"],
            ["--tokenizer", "gpt2", "--max-tokens=5", "--monkey", "1"],
        ),
        (["WANDB_API_KEY=x", "logger.api_key=x"], [f"WANDB_API_KEY={HIDDEN}", f"logger.api_key={HIDDEN}"]),
        (["model.tokenizer=gpt2"], ["model.tokenizer=gpt2"]),
        (["https://me:pass@host/x"], [f"https://me:{HIDDEN}@host/x"]),
        (["hf_" + "a" * 30], [HIDDEN]),
        (["--wandb.key", "x"], ["--wandb.key", HIDDEN]),
    ],
)
def test_arguments_without_secrets(argv: list[str], shown: list[str]) -> None:
    assert redact_argv(argv) == shown
