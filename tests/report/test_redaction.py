"""Secrets, and what only looks like them."""

from __future__ import annotations

import random
import time

import pytest

from guardrun.supervisor.base.redaction import HIDDEN, redact_argv, redact_text
from tests.report.secrets import LOOK_ALIKES, S, with_secrets

CPU_S = 5.0
"""For each of the long texts: they take some tenths of a second; what is not linear takes hours."""


def test_none_of_the_secrets_is_left() -> None:
    corpus = with_secrets()
    assert len(corpus) + len(LOOK_ALIKES) >= 300
    left = [(text, redact_text(text)) for text, secret in corpus if secret in redact_text(text)]
    assert left == []


def test_what_only_looks_like_one_stays() -> None:
    """docs/incidents.md says the rate: none of these."""
    changed = [(text, redact_text(text)) for text in LOOK_ALIKES if redact_text(text) != text]
    assert changed == []


def test_what_has_been_redacted_is_left_as_it_is() -> None:
    for text, _ in with_secrets():
        assert redact_text(redact_text(text)) == redact_text(text)


def test_a_secret_is_found_wherever_it_stands_in_a_long_text() -> None:
    lines = [*LOOK_ALIKES, *(text for text, _ in with_secrets() if "\n" not in text)]
    random.Random(1).shuffle(lines)
    text = redact_text("\n".join(lines))
    assert [secret for _, secret in with_secrets() if secret in text and not secret.isdigit()] == []


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["-p", S], ["-p", HIDDEN]),
        (["-p", "8080"], ["-p", "8080"]),
        (["-p", "/data/out"], ["-p", "/data/out"]),
        (["--header", f"Authorization: {S}"], ["--header", f"Authorization: {HIDDEN}"]),
        ([f"opt.secret_value={S}"], [f"opt.secret_value={HIDDEN}"]),
        ([f"--pass={S}", "--pass", S], [f"--pass={HIDDEN}", "--pass", HIDDEN]),
        (["--eos-token", "</s>"], ["--eos-token", "</s>"]),
    ],
)
def test_of_a_command_line(argv: list[str], shown: list[str]) -> None:
    assert redact_argv(argv) == shown


@pytest.mark.parametrize(
    "part",
    ["a", "pass", "token=", "a://", "http://x:", "password='", "-", "--a-b-c-", "-----BEGIN PRIVATE KEY-----",
     "-----BEGIN ",
     "cookie: ", "eyJaaaaaaaaaaaaa.", "\\", "password=\"\\", "sk-", "1,", "-p a/", "password ", "https://me:x"],
)  # fmt: skip
def test_no_text_takes_long(part: str) -> None:
    began_s = time.process_time()
    redact_text("password=" + part * (256_000 // len(part)))
    assert time.process_time() - began_s < CPU_S
