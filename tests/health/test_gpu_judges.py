"""The judges of GPUs: what they are told, turn by turn, and what they make of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from guardrun.supervisor.health.base.findings import Finding, Response, is_key
from guardrun.supervisor.health.base.readings import Judge, Readout, Sample, Value, parse_holders, write_holders
from guardrun.supervisor.health.gpu.device_links import LinkJudge
from guardrun.supervisor.health.gpu.device_memory import EccJudge, RemapJudge
from guardrun.supervisor.health.gpu.gpu_inventory import GpuBook, LostJudge, strangers
from guardrun.supervisor.health.gpu.thermal import ThrottleJudge
from guardrun.supervisor.health.judges import gpu_judges

GPU, OTHER = "gpu:GPU-1", "gpu:GPU-2"
NOTE, RESTART, ISOLATE = Response.NOTE, Response.RESTART, Response.ISOLATE
HOUR_S = 3600.0
H100 = "NVIDIA H100 80GB HBM3"


class Bench:
    """One judge, fed with what a GPU tells; keeps all that it has told."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.told: list[Finding] = []
        self.turn(-1.0, index=3, model=H100, bus="0000:3b:00")

    def turn(self, at_s: float, subject: str = GPU, **values: Value | None) -> list[Finding]:
        return self.turns(at_s, {subject: values})

    def turns(self, at_s: float, values: dict[str, dict[str, Value | None]]) -> list[Finding]:
        samples = [
            Sample(subject=subject, name=name, value=value, trouble="" if value is not None else "cannot be read")
            for subject, of in values.items()
            for name, value in of.items()
        ]
        news = self.judge.judge_readout(Readout(sensor="gpu", at_s=at_s, samples=samples), at_s)
        assert all(is_key(finding.key or finding.cause) for finding in news)
        self.told += news
        return news

    def every(self, step_s: float, times: Iterable[dict[str, Value | None]], from_s: float = 0.0) -> list[Finding]:
        """Turns one after another; all that they tell."""
        return [f for i, values in enumerate(times) for f in self.turn(from_s + i * step_s, **values)]


COOL: dict[str, Value | None] = {"clock_reasons": "", "sm_clock_hz": 1980e6, "temperature_c": 60, "power_w": 600.0}
HOT: dict[str, Value | None] = {
    "clock_reasons": "hw_slowdown,hw_thermal",
    "sm_clock_hz": 810e6,
    "temperature_c": 95,
    "power_w": 250.0,
}


def throttling() -> Bench:
    bench = Bench(ThrottleJudge())
    bench.turn(-0.5, temperature_slowdown_c=89, sm_clock_max_hz=1980e6)
    return bench


def test_throttling_begins_and_ends() -> None:
    bench = throttling()
    assert bench.every(2.0, [COOL] * 10) == []
    (began,) = bench.every(2.0, [HOT] * 20, from_s=20.0)
    assert (began.id, began.cause, began.response) == (f"throttle/{GPU}", "throttle", NOTE)
    assert began.since_s == 20.0
    assert began.told_s - began.since_s <= 12.0
    assert began.summary == (
        "GPU 3 throttles: its hardware slows it down because it is too hot: "
        "95 °C (slows down at 89 °C), 810 MHz of 1980 MHz."
    )
    assert "cooling" in began.advice
    (over,) = bench.every(2.0, [COOL] * 20, from_s=60.0)
    assert (over.id, over.is_over) == (began.id, True)
    assert 20.0 <= over.told_s - 58.0 <= 24.0


def test_its_evidence_can_be_plotted() -> None:
    bench = throttling()
    bench.every(2.0, [COOL] * 10)
    (began,) = bench.every(2.0, [HOT] * 20, from_s=20.0)
    series = began.evidence["series"]
    assert len({len(points) for points in series.values()}) == 1
    assert series["at_s"][0] == 0.0
    assert series["at_s"][-1] == began.told_s
    assert (series["sm_clock_hz"][0], series["sm_clock_hz"][-1]) == (1980e6, 810e6)
    assert (series["is_throttling"][0], series["is_throttling"][-1]) == (False, True)
    assert began.evidence["limits"] == {"temperature_slowdown_c": 89, "sm_clock_max_hz": 1980e6}


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ("hw_slowdown,hw_thermal", "its hardware slows it down because it is too hot"),
        ("sw_thermal", "its driver slows it down because it is too hot"),
        ("hw_slowdown,power_brake", "the system's power supply makes it brake"),
        ("hw_slowdown", "without saying why"),
        ("sw_power_cap,sw_thermal", "its driver slows it down because it is too hot"),
    ],
)
def test_kinds_are_told_apart_in_words(reasons: str, words: str) -> None:
    (began,) = throttling().every(2.0, [{**HOT, "clock_reasons": reasons}] * 12)
    assert words in began.summary


@pytest.mark.parametrize(
    "reasons",
    [
        "",
        "idle",
        "sw_power_cap",
        "applications_clocks",
        "sync_boost",
        "display_clock",
        "idle,hw_slowdown",
        "bit_20",
        None,
    ],
)
def test_what_is_no_throttling(reasons: str | None) -> None:
    assert throttling().every(2.0, [{**HOT, "clock_reasons": reasons}] * 60) == []


def test_a_blip_is_none() -> None:
    bench = throttling()
    blips = ([HOT] * 3 + [COOL] * 20) * 10
    assert bench.every(2.0, blips) == []


def test_on_and_off_is_one_that_lasts() -> None:
    told = throttling().every(2.0, [HOT, COOL] * 60)
    assert [finding.is_over for finding in told] == [False]


def test_two_readings_a_minute_are_too_few_to_say() -> None:
    assert throttling().every(30.0, [HOT] * 3) == []


def test_another_kind_is_news() -> None:
    bench = throttling()
    brake = {**HOT, "clock_reasons": "hw_slowdown,power_brake"}
    told = bench.every(2.0, [HOT] * 20 + [brake] * 20)
    assert [finding.evidence["kind"] for finding in told] == ["hw_thermal", "power_brake"]
    assert {finding.since_s for finding in told} == {0.0}


def test_a_lost_device_throttles_no_more() -> None:
    bench = throttling()
    bench.every(2.0, [HOT] * 10)
    (over,) = bench.turn(20.0, is_lost=True)
    assert over.is_over


def test_its_memory_stays_bounded() -> None:
    bench = throttling()
    bench.every(0.5, [HOT] * 5000)
    bench.every(0.5, [COOL] * 100, from_s=2500.0)
    assert len(bench.told[-1].evidence["series"]["at_s"]) <= 300


# Memory errors -------------------------------------------------------------------------------------------------


def test_an_uncorrected_error_restarts_a_second_one_isolates() -> None:
    bench = Bench(EccJudge())
    assert bench.every(10.0, [{"ecc_volatile_uncorrected": 0}] * 10) == []
    (first,) = bench.turn(100.0, ecc_volatile_uncorrected=1)
    assert (first.id, first.response) == (f"gpu_ecc/{GPU}/uncorrected", RESTART)
    assert "GPU 3 has met a memory error that ECC could not correct (1 since" in first.summary
    assert bench.turn(110.0, ecc_volatile_uncorrected=2) == [], "the same event goes on"
    assert bench.every(10.0, [{"ecc_volatile_uncorrected": 2}] * 30, from_s=120.0) == []
    (second,) = bench.turn(HOUR_S, ecc_volatile_uncorrected=3)
    assert (second.id, second.response, second.since_s) == (first.id, ISOLATE, 100.0)
    assert "twice in a day" in second.summary


def test_errors_of_before_are_only_noted() -> None:
    bench = Bench(EccJudge())
    (finding,) = bench.turn(0.0, ecc_volatile_uncorrected=3)
    assert finding.response is NOTE
    assert "3 memory errors that ECC could not correct since its driver was loaded" in finding.summary
    assert bench.turn(10.0, ecc_volatile_uncorrected=3) == []


def test_counters_that_begin_anew_are_no_errors() -> None:
    bench = Bench(EccJudge())
    bench.turn(0.0, ecc_volatile_uncorrected=5, ecc_volatile_corrected=100_000)
    told = bench.turn(10.0, ecc_volatile_uncorrected=0, ecc_volatile_corrected=0)
    assert [finding.is_over for finding in told] == [True]
    assert bench.turn(20.0, ecc_volatile_uncorrected=0, ecc_volatile_corrected=3) == []


def test_a_day_without_errors_ends_it() -> None:
    bench = Bench(EccJudge())
    bench.turn(0.0, ecc_volatile_uncorrected=0)
    bench.turn(10.0, ecc_volatile_uncorrected=1)
    assert bench.turn(23 * HOUR_S, ecc_volatile_uncorrected=1) == []
    (over,) = bench.turn(25 * HOUR_S, ecc_volatile_uncorrected=1)
    assert over.is_over


def test_many_corrected_errors_are_a_note_few_are_nothing() -> None:
    bench = Bench(EccJudge())
    assert bench.every(10.0, [{"ecc_volatile_corrected": 10 * i} for i in range(300)]) == []
    (storm,) = bench.every(10.0, [{"ecc_volatile_corrected": 3000 + 100 * i} for i in range(60)], from_s=3000.0)
    assert (storm.id, storm.response) == (f"gpu_ecc/{GPU}/corrected", NOTE)
    (over,) = bench.every(10.0, [{"ecc_volatile_corrected": 8900}] * 90, from_s=3600.0)
    assert over.is_over


def test_worn_sram_isolates_unknown_counters_say_nothing() -> None:
    bench = Bench(EccJudge())
    assert bench.turn(0.0, ecc_volatile_uncorrected=None, ecc_sram_threshold_exceeded=None) == []
    (finding,) = bench.turn(10.0, ecc_sram_threshold_exceeded=True)
    assert finding.response is ISOLATE


@pytest.mark.parametrize(
    ("values", "name", "response"),
    [
        ({"remap_pending": True, "remap_failed": False}, "pending", NOTE),
        ({"remap_pending": False, "remap_failed": True}, "failed", ISOLATE),
        ({"retired_pages_pending": True}, "retiring", NOTE),
        ({"retired_pages_corrected": 50, "retired_pages_uncorrected": 12}, "retired", NOTE),
    ],
)
def test_remaps(values: dict[str, Value | None], name: str, response: Response) -> None:
    bench = Bench(RemapJudge())
    healthy: dict[str, Value | None] = {"remap_pending": False, "remap_failed": False, "retired_pages_corrected": None}
    assert bench.turn(0.0, **healthy) == []
    (finding,) = bench.turn(10.0, **values)
    assert (finding.id, finding.response) == (f"gpu_remap/{GPU}/{name}", response)
    assert "GPU 3" in finding.summary
    assert bench.turn(20.0, **values) == []
    gone: dict[str, Value | None] = {key: 0 if isinstance(value, int) else False for key, value in values.items()}
    assert [over.is_over for over in bench.turn(30.0, **gone)] == [True]


# Links ---------------------------------------------------------------------------------------------------------


def test_a_link_that_stays_down_isolates_one_that_blinks_does_not() -> None:
    bench = Bench(LinkJudge())
    up: dict[str, Value | None] = {"nvlink_active": 18, "nvlink_inactive": ""}
    down: dict[str, Value | None] = {"nvlink_active": 16, "nvlink_inactive": "3,7"}
    assert bench.every(10.0, [up, down, down, up] * 20) == []
    (finding,) = bench.every(10.0, [down] * 10, from_s=800.0)
    assert (finding.id, finding.response) == (f"gpu_link/{GPU}/nvlink_down", ISOLATE)
    assert finding.summary == "GPU 3: 2 of 18 NVLinks went down (link 3,7)."
    (over,) = bench.every(10.0, [up], from_s=900.0)
    assert over.is_over


def test_fewer_links_than_its_neighbours_are_a_note() -> None:
    bench = Bench(LinkJudge())
    bench.turn(-0.5, OTHER, index=4, model=H100, bus="0000:5e:00")
    links: dict[str, dict[str, Value | None]] = {GPU: {"nvlink_active": 17}, OTHER: {"nvlink_active": 18}}
    (finding,) = bench.turns(0.0, links)
    assert (finding.id, finding.response) == (f"gpu_link/{GPU}/nvlink_fewer", NOTE)


def test_boards_without_links_are_fine() -> None:
    bench = Bench(LinkJudge())
    none: dict[str, Value | None] = {"nvlink_active": 0, "nvlink_links": 0, "nvlink_inactive": ""}
    assert bench.every(10.0, [none, {"nvlink_active": None}] * 5) == []


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [("nvlink_recovery_errors", 0, 1), ("nvlink_crc_flit_errors", 500, 2000), ("pcie_replays", 1, 100)],
)
def test_counters_of_links_that_jump_twice_are_a_note(name: str, small: int, large: int) -> None:
    def counts(step: int, since: int = 0) -> list[dict[str, Value | None]]:
        return [{name: since + step * i} for i in range(20)]

    quiet = Bench(LinkJudge())
    assert quiet.every(10.0, counts(small)) == []
    bench = Bench(LinkJudge())
    bench.every(10.0, [{name: 0}] * 3)
    assert [f for at_s in (30.0, 40.0) for f in bench.turn(at_s, **{name: large})] == [], "one blip"
    (finding,) = bench.every(10.0, counts(large, since=large), from_s=50.0)
    assert finding.response is NOTE
    last = large + 19 * large
    (over,) = bench.every(10.0, [{name: last}] * 90, from_s=250.0)
    assert (over.id, over.is_over) == (finding.id, True)


def pcie(width: int, generation: int, utilization: float | None) -> dict[str, Value | None]:
    most: dict[str, Value | None] = {"pcie_width_max": 16, "pcie_generation_max": 5}
    return {**most, "pcie_width": width, "pcie_generation": generation, "utilization_ratio": utilization}


@pytest.mark.parametrize(
    ("values", "is_told"),
    [
        (pcie(8, 5, 0.9), True),
        (pcie(16, 3, 0.9), True),
        (pcie(16, 5, 0.9), False),
        (pcie(16, 1, 0.0), False),
        (pcie(8, 5, None), False),
        ({**pcie(8, 5, 0.9), "pcie_width": None}, False),
    ],
)
def test_pcie_is_judged_under_load(values: dict[str, Value | None], is_told: bool) -> None:
    told = Bench(LinkJudge()).every(10.0, [values] * 10)
    assert [finding.id for finding in told] == [f"gpu_link/{GPU}/pcie"] * is_told
    assert {finding.response for finding in told} <= {NOTE}
    assert Bench(LinkJudge()).every(10.0, [values] * 5) == []


# Lost ----------------------------------------------------------------------------------------------------------

Node = dict[str, dict[str, Value | None]]


def node(*shown: str, unusable: str = "", missing: str = "") -> Node:
    """A turn in which the driver shows these devices, and all of them answer."""
    told: Node = {subject: {"is_lost": False} for subject in shown}
    names = " ".join(subject.removeprefix("gpu:") for subject in shown)
    return {**told, "node": {"gpus": names, "gpus_unusable": unusable, "gpus_missing": missing}}


def test_a_device_that_falls_off_the_bus() -> None:
    bench = Bench(LostJudge())
    bench.turns(0.0, node(GPU, OTHER))
    assert bench.turn(2.0, is_lost=True) == []
    (finding,) = bench.turn(4.0, is_lost=True)
    assert (finding.id, finding.cause, finding.response) == (f"gpu_lost/{GPU}", "gpu_lost", ISOLATE)
    assert finding.summary == "GPU 3 has fallen off the bus: it does not answer any more."
    assert finding.evidence == {"bus": "0000:3b:00", "model": H100}
    assert bench.turn(6.0, is_lost=True) == []
    (over,) = bench.turn(8.0, is_lost=False)
    assert over.is_over


def test_one_that_was_there_and_is_not_shown_any_more() -> None:
    bench = Bench(LostJudge())
    bench.turns(0.0, node(GPU, OTHER))
    assert bench.turns(10.0, node(OTHER)) == []
    assert bench.turn(12.0, OTHER, is_lost=False) == [], "a turn that does not tell which there are"
    (finding,) = bench.turns(20.0, node(OTHER))
    assert (finding.id, finding.summary) == (f"gpu_lost/{GPU}", "GPU 3 is not shown by the driver any more.")
    assert [over.is_over for over in bench.turns(30.0, node(GPU, OTHER))] == [True]


def test_one_that_cannot_be_opened_has_its_old_name() -> None:
    bench = Bench(LostJudge())
    bench.turns(0.0, node(GPU, OTHER))
    told = [f for at_s in (10.0, 20.0, 30.0) for f in bench.turns(at_s, node(OTHER, unusable="3: GPU is lost"))]
    assert [(finding.id, finding.summary) for finding in told] == [
        (f"gpu_lost/{GPU}", "GPU 3 cannot be used: GPU is lost.")
    ]


def test_one_that_the_driver_never_showed() -> None:
    bench = Bench(LostJudge())
    told = [f for at_s in (0.0, 10.0, 20.0) for f in bench.turns(at_s, node(GPU, missing="0000:5e:00"))]
    assert [(finding.id, finding.response) for finding in told] == [("gpu_lost/gpu:0000:5e:00", ISOLATE)]
    assert [over.is_over for over in bench.turns(30.0, node(GPU, OTHER))] == [True]


def test_a_driver_that_does_not_answer_is_a_note() -> None:
    judge = LostJudge()
    trouble = "NVML's call has not returned within 8 s (nvmlDeviceGetPowerUsage of GPU 3, for 8 s)"
    silent = Readout(sensor="gpu", at_s=10.0, is_silent=True, trouble=trouble)
    (finding,) = judge.judge_readout(silent, 18.0)
    assert (finding.id, finding.key, finding.response) == ("gpu_lost/driver", "gpu_driver_silent", NOTE)
    assert finding.summary == f"The GPUs' driver does not answer: {trouble}."
    assert judge.judge_readout(silent, 20.0) == []
    assert judge.judge_readout(Readout(sensor="gpu", at_s=22.0, trouble="NVML is being initialised"), 22.0) == []
    (over,) = judge.judge_readout(
        Readout(sensor="gpu", at_s=24.0, samples=[Sample(subject=GPU, name="bus", value="0")]), 24.0
    )
    assert over.is_over


def test_a_driver_that_is_reloaded_loses_nothing() -> None:
    bench = Bench(LostJudge())
    bench.turns(0.0, node(GPU, OTHER))
    bench.turns(10.0, node(GPU))
    assert bench.turns(20.0, {}) == []
    assert bench.turns(30.0, node(GPU, OTHER)) == []


# All together --------------------------------------------------------------------------------------------------


def test_what_devices_are_called_and_strangers() -> None:
    samples = [
        Sample(subject=subject, name=name, value=value)
        for subject, index, bus in ((OTHER, 1, "0000:5e:00"), (GPU, 0, "0000:3b:00"))
        for name, value in (("index", index), ("model", H100), ("bus", bus), ("holders", "7=70 8=?"))
    ]
    readout = Readout(sensor="gpu", at_s=0.0, samples=samples)
    book = GpuBook()
    book.update(readout)
    assert (book.index(GPU), book.model(GPU), book.bus(GPU)) == (0, H100, "0000:3b:00")
    assert [book.at_index(index) for index in (0, 1)] == [GPU, OTHER]
    found = strangers(readout, own={7})
    assert {(one.label, one.pid, one.used_bytes) for one in found} == {("GPU 0", 8, None), ("GPU 1", 8, None)}


def test_holders_are_bounded_and_read_back() -> None:
    held: dict[int, int | None] = {pid: pid * 100 for pid in range(1, 1000)}
    held[5000] = None
    kept = parse_holders(write_holders(held))
    assert len(kept) == 256
    assert kept.items() <= held.items()
    assert parse_holders("") == {}
    with pytest.raises(ValueError, match="not a pid"):
        parse_holders("7")


@pytest.mark.parametrize("make", gpu_judges(), ids=lambda judge: type(judge).__name__)
def test_a_readout_that_tells_nothing_is_no_news(make: Judge) -> None:
    assert "gpu" in make.sensors
    for readout in (
        Readout(sensor="gpu", at_s=0.0),
        Readout(sensor="gpu", at_s=10.0, trouble="no driver"),
        Readout(sensor="gpu", at_s=30.0, samples=[Sample(subject=GPU, name="temperature_c", trouble="lost")]),
    ):
        assert make.judge_readout(readout, readout.at_s) == []
