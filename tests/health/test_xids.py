"""Xids: the lines they come in, the catalogue, and what is made of them."""

from __future__ import annotations

import pytest

from guardrun.supervisor.health.base.findings import Finding, Response, is_key
from guardrun.supervisor.health.base.readings import Happening, Readout, Sample
from guardrun.supervisor.health.gpu.xid_catalogue import RESPONSES, Asks, advise, codes, look_up
from guardrun.supervisor.health.gpu.xid_judge import XidJudge
from guardrun.supervisor.health.gpu.xids import (
    XidLine,
    normal_bus,
    parse_xid_line,
    recovery_in,
    xid_from_line,
)

GPU = "gpu:GPU-1"
BUS = "0000:3b:00"
NOTE, RESTART, ISOLATE = Response.NOTE, Response.RESTART, Response.ISOLATE
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python, GPU has fallen off the bus.",
            XidLine(BUS, 79, 4242, "python", "pid=4242, name=python, GPU has fallen off the bus."),
        ),
        (
            "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM",
            XidLine("0000:cb:00", 13, 0, "", "pid='<unknown>', name=<unknown>, Graphics SM"),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", XidLine("0000:03:00", 14, 0, "", "Channel 00000001")),
        (
            "4,829,1,-;NVRM: Xid (PCI:0005:01:00 GPU-I:05): 94, pid=7194, name=CUDA SM, Ch 8",
            XidLine("0005:01:00", 94, 7194, "CUDA SM", "pid=7194, name=CUDA SM, Ch 8"),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 119", XidLine(BUS, 119, 0, "", "")),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7", None),
        ("NVRM: Xid (PCI:0000:3b:00): many", None),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal", None),
        ("", None),
    ],
)
def test_lines_of_the_kernel_log(line: str, expected: XidLine | None) -> None:
    assert parse_xid_line(line) == expected


def test_a_long_line_is_cut() -> None:
    found = xid_from_line("NVRM: Xid (PCI:0000:3b:00): 31, " + "x" * 10_000, at_s=5.0)
    assert found is not None
    assert (found.subject, found.at_s, len(found.text)) == ("gpu:0000:3b:00", 5.0, 400)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("00000000:3B:00.0", BUS), ("0000:3b:00.0", BUS), ("PCI:0000:3b:00", BUS), ("10000:01:00.0", "10000:01:00")],
)
def test_buses_have_one_form(address: str, expected: str) -> None:
    assert normal_bus(address) == expected


@pytest.mark.parametrize(
    ("code", "asks", "response"),
    [
        (13, Asks.RESTART_APP, NOTE),
        (31, Asks.RESTART_APP, NOTE),
        (43, Asks.IGNORE, NOTE),
        (45, Asks.XID_45, NOTE),
        (48, Asks.XID_48, ISOLATE),
        (63, Asks.IGNORE, NOTE),
        (64, Asks.RESET_GPU, ISOLATE),
        (74, Asks.NVLINK, RESTART),
        (79, Asks.RESTART_BM, ISOLATE),
        (92, Asks.IGNORE, NOTE),
        (94, Asks.RESTART_APP, RESTART),
        (95, Asks.RESET_GPU, ISOLATE),
        (105, Asks.RESTART_APP, RESTART),
        (119, Asks.RESET_GPU, ISOLATE),
        (120, Asks.RESET_GPU, ISOLATE),
        (135, Asks.RESTART_APP, RESTART),
        (140, Asks.RESET_GPU, ISOLATE),
        (149, Asks.NVLINK5, NOTE),
        (154, Asks.XID_154, NOTE),
        (61, Asks.CONTACT_SUPPORT, NOTE),
        (9999, Asks.CONTACT_SUPPORT, NOTE),
    ],
)
def test_the_catalogue(code: int, asks: Asks, response: Response) -> None:
    entry = look_up(code)
    assert (entry.asks, entry.response) == (asks, response)


def test_every_entry_can_be_told_and_configured() -> None:
    for code in codes():
        entry = look_up(code)
        assert entry.code == code
        assert entry.meaning
        assert is_key(f"gpu_xid_{code}")
        if entry.response is not NOTE:
            assert advise(entry)
    assert set(RESPONSES.values()) == {RESTART, ISOLATE}


def test_what_the_driver_wants() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert recovery_in(text) == "gpu_reset"
    assert recovery_in(text.replace("0x1", "0x63")) == "action_99"
    assert recovery_in("GPU has fallen off the bus") == ""


class Story:
    """A judge, and what it is told."""

    def __init__(self) -> None:
        self.judge = XidJudge()
        values = {"index": 3, "model": "NVIDIA H100", "bus": BUS}
        self.samples([Sample(subject=GPU, name=name, value=value) for name, value in values.items()], at_s=0.0)

    def samples(self, samples: list[Sample], at_s: float) -> list[Finding]:
        return self.judge.judge_readout(Readout(sensor="gpu", at_s=at_s, samples=samples), at_s)

    def nvml(self, code: int, at_s: float) -> list[Finding]:
        data = {"xid": code, "bus": BUS, "source": "nvml"}
        happening = Happening(subject=GPU, name="xid", at_s=at_s, data=data)
        return self.judge.judge_readout(Readout(sensor="gpu", at_s=at_s, happenings=[happening]), at_s)

    def log(self, code: int, at_s: float, text: str = "pid=42, name=python, Ch 8") -> list[Finding]:
        happening = xid_from_line(f"NVRM: Xid (PCI:{BUS}): {code}, {text}", at_s)
        assert happening is not None
        return self.judge.judge_readout(Readout(sensor="kernel_log", at_s=at_s, happenings=[happening]), at_s)

    def recovery(self, action: str, at_s: float) -> list[Finding]:
        return self.samples([Sample(subject=GPU, name="recovery_action", value=action)], at_s)


def test_an_xid_that_needs_a_reset_isolates() -> None:
    (finding,) = Story().nvml(79, at_s=10.0)
    assert (finding.id, finding.cause, finding.key) == (f"gpu_xid/{GPU}/79", "gpu_xid", "gpu_xid_79")
    assert (finding.response, finding.since_s) == (ISOLATE, 10.0)
    assert finding.summary == "GPU 3 has told Xid 79: the device does not answer on PCIe any more."
    assert finding.evidence["asks"] == "RESTART_BM"


def test_the_same_xid_from_both_sources_is_one_and_says_who() -> None:
    story = Story()
    (first,) = story.nvml(94, at_s=10.0)
    assert first.evidence["count"] == 1
    (second,) = story.log(94, at_s=12.0)
    assert second.id == first.id
    assert (second.evidence["count"], second.evidence["pids"], second.response) == (1, [42], RESTART)
    assert "in process 42 (python)" in second.summary
    assert story.nvml(94, at_s=14.0) == []


def test_the_kernel_log_first_is_one_too() -> None:
    story = Story()
    (first,) = story.log(94, at_s=10.0)
    assert story.nvml(94, at_s=11.0) == []
    assert first.evidence["count"] == 1


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_applications_xids_blame_no_node_however_many(code: int) -> None:
    story = Story()
    told = [finding for time in range(200) for finding in story.log(code, at_s=10.0 + 70 * time)]
    assert {finding.response for finding in told} == {NOTE}
    assert len(told) == 3, "the first, the tenth, the hundredth"


def test_a_link_that_errs_twice_in_a_day_isolates_a_burst_does_not() -> None:
    story = Story()
    assert [finding.response for finding in story.nvml(74, at_s=10.0)] == [RESTART]
    assert [f for at_s in (11.0, 30.0, 80.0, 130.0) for f in story.nvml(74, at_s=at_s)] == []
    assert [finding.response for finding in story.nvml(74, at_s=HOUR_S)] == [ISOLATE]


def test_contained_errors_restart_each_time() -> None:
    story = Story()
    told = [*story.nvml(94, at_s=10.0), *story.nvml(94, at_s=HOUR_S)]
    assert {finding.response for finding in told} == {RESTART}


def test_what_is_only_noted_is_over_after_a_while() -> None:
    story = Story()
    story.nvml(63, at_s=10.0)
    assert story.samples([], at_s=500.0) == []
    (over,) = story.samples([], at_s=700.0)
    assert over.is_over
    story.nvml(79, at_s=800.0)
    assert story.samples([], at_s=800.0 + 30 * 24 * HOUR_S) == []


@pytest.mark.parametrize(
    ("number", "label", "response"),
    [(1, "GPU Reset Required", ISOLATE), (2, "Node Reboot Required", ISOLATE), (3, "Drain P2P", RESTART)],
)
def test_154_follows_its_text(number: int, label: str, response: Response) -> None:
    story = Story()
    (first,) = story.nvml(154, at_s=10.0)
    assert first.response is NOTE
    (finding,) = story.log(154, 10.5, f"GPU recovery action changed from 0x0 (None) to 0x{number} ({label})")
    assert (finding.id, finding.response) == (first.id, response)


def test_what_the_driver_wants_holds_until_it_does_not() -> None:
    story = Story()
    assert story.recovery("none", at_s=5.0) == []
    (finding,) = story.recovery("gpu_reset", at_s=10.0)
    assert (finding.id, finding.response) == (f"gpu_xid/{GPU}/154", ISOLATE)
    assert finding.summary == "The driver wants GPU 3 to have a gpu reset (Xid 154)."
    assert story.recovery("gpu_reset", at_s=20.0) == []
    (over,) = story.recovery("none", at_s=30.0)
    assert (over.id, over.is_over) == (finding.id, True)


def test_an_unknown_device_is_told_by_its_bus() -> None:
    happening = xid_from_line("NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.", 1.0)
    assert happening is not None
    (finding,) = XidJudge().judge_readout(Readout(sensor="kernel_log", at_s=1.0, happenings=[happening]), 1.0)
    assert finding.subject == "gpu:0000:5e:00"
    assert "GPU 0000:5e:00" in finding.summary
