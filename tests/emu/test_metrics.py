"""What steps compute on a device is read without the host ever waiting for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.checksums_page import Kind, checksums_name
from guardrun.hooks.wire.messages import HookFailed, Noted
from guardrun.hooks.wire.metrics_page import Flag
from guardrun.supervisor.collect.ranks.checksums import ChecksumsReader, fold_sums
from guardrun.supervisor.engine.model.events import ReplicaCheck
from tests.emu.ranks import LIGHT, SCRIPT
from tests.hooks.bed import Bed, finish
from tests.hooks.metric_records import read_page

pytestmark = pytest.mark.real("g++")

UNWAITED = SCRIPT.with_name("unwaited.py")
STEPS, NAN_AT = 60, 40


def read_checks(sockets: Path) -> list[ReplicaCheck]:
    reader = ChecksumsReader(sockets / checksums_name(0, 0))
    reader.read(0)
    reader.close()
    return [check for check in reader.take_checks() if check.kind == Kind.PARAMETERS]


def test_zeros_of_modules_are_counted_without_waiting(library: Path, tmp_path: Path) -> None:
    """At steps 10, 20, …; what was counted at step 20 is read once the device goes on: if it does not before step 30,
    that one is not looked at. Gradients' norms likewise.
    """
    with Bed() as bed:
        bed.make_board()
        bed.detect = "deep"
        done = finish(bed.start([str(UNWAITED), str(STEPS), str(tmp_path / "ours"), "fine"], more=LIGHT))
        assert done.returncode == 0, done
        assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
    ours = json.loads((tmp_path / "ours").read_text())
    assert ours["waits"] == 0 and ours["lives"] in ([4], [5])


def test_values_on_a_device_are_read_when_they_are_there(library: Path, tmp_path: Path) -> None:
    with Bed() as bed:
        bed.make_board()
        done = finish(bed.start([str(UNWAITED), str(STEPS), str(tmp_path / "ours")], more=LIGHT))
        assert done.returncode == 0, done
        assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
        records, unread = read_page(bed.sockets)
        checks = read_checks(bed.sockets)
    command = [sys.executable, str(UNWAITED), str(STEPS), str(tmp_path / "theirs")]
    subprocess.run(command, env={**os.environ, **LIGHT}, check=True)
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("ours", "theirs"))
    truth: list[Any] = ours["truth"]
    assert ours["waits"] == theirs["waits"] == 0
    assert repr(ours["parameters"]) == repr(theirs["parameters"]) and repr(truth) == repr(theirs["truth"])
    # A check of step 20 is there once the device goes on.
    assert len(checks) >= 3 and checks[0].count == 20 and {check.count for check in checks} <= {20, 30, 40, 50, 60}
    for check in checks:
        assert check.digests == fold_sums(ours["sums"][check.step - 1], is_echo=check.is_echo), check
    # Those that came late, as the device stood still, too.
    assert [record.step for record in records] == list(range(1, STEPS + 1)) and unread == 0
    for record in records:
        loss, norm = truth[record.step - 1]
        assert record.flags & Flag.LOSS and record.flags & Flag.GRAD_NORM
        assert (record.loss, record.grad_norm) == pytest.approx((loss, norm), nan_ok=True), record
        assert bool(record.flags & Flag.LOSS_NAN) == (record.step >= NAN_AT)
