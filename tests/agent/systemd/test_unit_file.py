"""The unit and its companions, as systemd's own tools see them, and as guardctl puts them into a system."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.supervisor.cli.verbs.node_agent import PIECES, SOURCE, render
from tests.support.real import find_program

GUARDCTL = find_program("guardctl") or "guardctl"
GUARDRUND = Path(find_program("guardrund") or "/usr/bin/guardrund")
MOST_EXPOSED = 3.0
"""What the project promises; systemd-analyze(1): 0 is best, 10 worst."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    path = tmp_path / "guardrund.service"
    path.write_text(render("guardrund.service", GUARDRUND))
    return path


def analyze(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_COLORS": "0", "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.real("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    said = [line for line in analyze("verify", unit).splitlines() if "guardrund" in line]
    assert said == []


@pytest.mark.real("systemd-analyze")
def test_the_unit_is_as_closed_as_promised(unit: Path) -> None:
    said = analyze("security", "--offline=yes", "--no-pager", unit)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert exposure, said
    assert float(exposure[1]) <= MOST_EXPOSED


def test_every_capability_and_exception_has_its_reason() -> None:
    text = (SOURCE / "guardrund.service").read_text()
    names = next(line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=")).split("=")[1].split()
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for name in (*names, "PrivateDevices=no", "ProtectKernelLogs=no", "ProtectProc=default", "PrivateNetwork=no"):
        assert name in comments, name


def test_a_path_with_blanks_and_signs_is_quoted_for_systemd() -> None:
    text = render("guardrund.service", Path('/opt/my tools/100% "$x"/guardrund'))
    assert 'ExecStart="/opt/my tools/100%% \\"$$x\\"/guardrund" --node\n' in text


def guardctl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GUARDCTL, "node-agent", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.real("systemd-analyze")
def test_an_image_gets_the_units_and_loses_them_again(tmp_path: Path) -> None:
    done = guardctl("install", "--root", tmp_path, "--force", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["done"]) == len(PIECES) + 1
    unit = tmp_path / "etc/systemd/system/guardrund.service"
    assert f"ExecStart={GUARDRUND} --node" in unit.read_text()
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/guardrund.service").is_symlink()
    assert guardctl("install", "--root", tmp_path, "--force").returncode == 0  # again, as after an upgrade
    assert guardctl("uninstall", "--root", tmp_path).returncode == 0
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    done = guardctl("install", "--root", tmp_path, "--force", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would: write" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("act", ["install", "uninstall"])
def test_a_file_of_somebody_elses_is_left_alone(tmp_path: Path, act: str) -> None:
    unit = tmp_path / "etc/systemd/system/guardrund.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    force = ["--force"] if act == "install" else []
    done = guardctl(act, "--root", tmp_path, *force)
    assert done.returncode == 1
    assert f"{unit} was not written by guardctl" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [unit]


@pytest.mark.real("root")
def test_a_program_that_others_may_change_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    program = tmp_path / "guardrund"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o777)
    done = guardctl("install", "--root", tmp_path / "system", "--guardrund", program)
    assert done.returncode == 1
    assert f"everybody may write {program}" in done.stderr
    assert "--force" in done.stderr
    program.chmod(0o755)
    os.chown(program, 65534, 65534)
    assert "who could change what the agent runs" in guardctl("install", "--guardrund", program, "--dry-run").stderr


def test_the_status_says_when_there_is_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [GUARDCTL, "node-agent", "status"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "GUARDRUN_AGENT_SOCKET": str(tmp_path / "no.sock"), "COLUMNS": "400"},
        check=False,
    )
    assert done.returncode == 1
    assert f"no node agent listens at {tmp_path / 'no.sock'}" in done.stdout
