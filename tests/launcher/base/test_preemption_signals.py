"""Which signals say that the job is about to end, and who has a handler for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from guardrun.launcher.base.signals import DEFAULT_SIGNALS, catches, choose_notices, parse_caught, spared_signals
from guardrun.supervisor.config import Config
from guardrun.supervisor.config.tables import PolicyTable, PreemptionTable

SLURM = {"SLURM_JOB_ID": "7"}
USR1, USR2, TERM = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM


def config(act: bool = True, **keys: object) -> Config:
    return Config(preemption=msgspec.convert(keys, PreemptionTable), policy=PolicyTable(act=act))


@pytest.mark.parametrize(
    ("made", "torch_signals", "environ", "expected"),
    [
        (config(), DEFAULT_SIGNALS, {}, [USR1, USR2]),
        (config(), "", SLURM, [USR1, USR2, TERM]),
        (config(), "SIGTERM,SIGUSR1", SLURM, [USR2]),  # the user's own word to torchrun
        (config(act=False), "", SLURM, [USR1, USR2]),
        (config(sigterm="never"), "", SLURM, [USR1, USR2]),
        (config(sigterm="always", signals=["SIGUSR2"]), "", {}, [USR2, TERM]),
        (config(signals=[]), "", {}, []),
    ],
)
def test_choose(made: Config, torch_signals: str, environ: dict[str, str], expected: list[signal.Signals]) -> None:
    assert choose_notices(made, torch_signals, environ) == expected


def test_ranks_outlive_warnings_only_under_slurm_and_where_they_are_not_passed_on() -> None:
    table = msgspec.to_builtins(PreemptionTable())
    assert spared_signals(table, SLURM) == [USR1, USR2]
    assert spared_signals(table, {}) == []
    assert spared_signals({**table, "forward": True}, SLURM) == []


def test_a_handler_is_seen_from_outside() -> None:
    code = "import signal, sys; signal.signal(signal.SIGUSR1, print); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        assert catches(process.pid, USR1)
        assert not catches(process.pid, USR2)
        process.stdin.close()
    assert not catches(process.pid, USR1)
    assert parse_caught("Name:\tx\nSigCgt:\t0000000000000200\n") == 1 << (USR1 - 1)
    assert parse_caught(f"Pid:\t{os.getpid()}\n") == 0
