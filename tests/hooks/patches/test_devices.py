"""What a rank says of the device that it trains on, and that it asks nobody for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.beat.message_sender import MAX_VARIABLE_CHARS, TOO_LONG, read_device_variables
from guardrun.hooks.wire.messages import DeviceReported, Hello, HookFailed
from tests.hooks.bed import Bed, finish

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "devices.py")
THIRD = ("cuda", 3, "uuid-3", "0000:3e:00", True)
FIFTH = ("cuda", 5, "uuid-5", "0000:40:00", True)
SEVERAL = ("cuda", -1, "", "", False)


def said(bed: Bed) -> list[tuple[str, int, str, str, bool]]:
    assert bed.hear_all(HookFailed) == []
    return [(t.device_type, t.index, t.uuid, t.bus, t.is_alone) for t in bed.hear_all(DeviceReported)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        # By where its parameters lie; what it is set to meanwhile, and comes back from, says less.
        ("set=3 step=cuda:3", [THIRD]),
        ("set=3 set=3 set=5 set=3 step=cuda:3 step=cuda:3", [THIRD, FIFTH, THIRD]),
        ("set=3 step=cuda:3 set=5 step=cuda:3 set=3", [THIRD]),
        ("set=3 step=cuda:3 set=5 step=cuda:5", [THIRD, FIFTH]),
        (" ".join(["set=3", "set=5"] * 20), [*[THIRD, FIFTH] * 3, THIRD, SEVERAL]),
        (" ".join(["set=3", "set=5"] * 20) + " step=cuda:5", [*[THIRD, FIFTH] * 3, THIRD, SEVERAL, FIFTH]),
        ("set=0 step=cuda:3", [("cuda", 0, "uuid-0", "0000:3b:00", True), THIRD]),
        ("set=3 step=cpu step=cuda:3+cpu", [THIRD]),
        ("set=3 step=cuda:3+cuda:4", [THIRD, SEVERAL]),
        ("no-uuid set=3", [("cuda", 3, "", "", True)]),
        # Nothing of CUDA is there to ask, or to be initialised for it.
        ("step=xpu:1", [("xpu", 1, "", "", True)]),
        ("step=cpu", []),
    ],
)
def test_the_device_is_told_as_it_becomes_known(words: str, told: list[tuple[str, int, str, str, bool]]) -> None:
    with Bed() as bed:
        done = finish(bed.start([SCRIPT, *words.split()]))
        assert done.returncode == 0, done.stderr
        assert said(bed) == told
    calls = done.stdout.split()
    sets = [word.partition("=")[2] for word in words.split() if word.startswith("set=")]
    assert [call for call in calls if call.startswith("set_device")] == [f"set_device({index},)" for index in sets]
    assert set(calls) <= {"get_device()", *(f"set_device({index},)" for index in sets)}


def test_the_environment_is_told_at_once() -> None:
    with Bed() as bed:
        bed.start(["-c", "input()"], more={"CUDA_VISIBLE_DEVICES": "GPU-8932f937", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        told = bed.wait_for(Hello).devices
    assert told["CUDA_VISIBLE_DEVICES"] == "GPU-8932f937" and told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_list_that_is_too_long_names_no_device_and_is_not_as_if_unset() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0," * MAX_VARIABLE_CHARS, "NVIDIA_VISIBLE_DEVICES": "", "HOME": "/root"}
    assert read_device_variables(environ) == {"CUDA_VISIBLE_DEVICES": TOO_LONG, "NVIDIA_VISIBLE_DEVICES": ""}
