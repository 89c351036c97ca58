"""What steps compute on a device is read without the host ever waiting for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.messages import HookFailed, Noted
from guardrun.hooks.wire.metrics_page import Flag
from tests.emu.ranks import QUICK, SCRIPT
from tests.hooks.bed import Bed, finish
from tests.hooks.metric_records import read_page

pytestmark = pytest.mark.real("g++")

UNWAITED = SCRIPT.with_name("unwaited.py")
STEPS, NAN_AT = 60, 40


def test_values_on_a_device_are_read_when_they_are_there(library: Path, tmp_path: Path) -> None:
    with Bed() as bed:
        bed.make_board()
        done = finish(bed.start([str(UNWAITED), str(STEPS), str(tmp_path / "ours")], more=QUICK))
        assert done.returncode == 0, done
        assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
        records, unread = read_page(bed.sockets)
    command = [sys.executable, str(UNWAITED), str(STEPS), str(tmp_path / "theirs")]
    subprocess.run(command, env={**os.environ, **QUICK}, check=True)
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("ours", "theirs"))
    truth: list[Any] = ours["truth"]
    assert ours["waits"] == theirs["waits"] == 0
    assert repr(ours["parameters"]) == repr(theirs["parameters"]) and repr(truth) == repr(theirs["truth"])
    # Those that came late, as the device stood still, too.
    assert [record.step for record in records] == list(range(1, STEPS + 1)) and unread == 0
    for record in records:
        loss, norm = truth[record.step - 1]
        assert record.flags & Flag.LOSS and record.flags & Flag.GRAD_NORM
        assert (record.loss, record.grad_norm) == pytest.approx((loss, norm), nan_ok=True), record
        assert bool(record.flags & Flag.LOSS_NAN) == (record.step >= NAN_AT)
