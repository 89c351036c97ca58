"""Whatever sensors tell: findings begin before they end, once; what they say is whole; nothing is kept for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.persistence import LastCounts, Lasting
from guardrun.supervisor.health.base.readings import Happening, Readout, Sample, Value
from guardrun.supervisor.health.judges import host_judges
from guardrun.supervisor.sensors.host.kernel_log import RULES, LineReader, parse_record
from guardrun.supervisor.sensors.network.rtnetlink import parse_link, parse_messages

SENSORS = {
    "cpu": (("cpu", "cpu:0"), ("busy_s", "steal_s", "throttle_count", "throttled_s")),
    "pressure": (("cpu", "io"), ("stalled_some_s",)),
    "cgroup": (("cgroup:/a", "cgroup:/b"), ("periods", "throttled_periods", "throttled_s", "threads", "threads_limit")),
    "memory": (("memory",), ("available_bytes", "total_bytes", "oom_kills")),
    "processes": (("processes",), ("waiting", "longest_wait_s", "threads", "threads_limit")),
    "disks": (
        ("disk:a", "mount:/", "mount:/b"),
        ("free_bytes", "total_bytes", "is_read_only", "completed", "in_flight"),
    ),
    "mounts": (("mount:/nfs",), ("is_answering", "asked_s", "free_bytes", "total_bytes")),
    "network": (("net:a",), ("is_up", "is_physical", "is_default_route", "carrier_changes", "rx_errors", "rx_packets")),
    "infiniband": (("ib:m/1",), ("state", "link_downed", "symbol_error")),
    "clock": (("clock",), ("offset_s", "is_synchronized")),
    "kernel_log": (("log",), ("is_readable",)),
}
HAPPENINGS = sorted(
    {rule.name for rule in RULES} | {"oom_kill", "link_down", "link_up", "clock_step", "xid", "lines_lost"}
)
SUBJECTS = ["disk:a", "net:a", "cpu", "memory", "clock", "pci:0000:01:00.0", "server:x"]

value: st.SearchStrategy[Value | None] = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(-5, 300),
    st.sampled_from(["ACTIVE", "DOWN", ""]),
    st.just(2**64 - 1),
)


@st.composite
def readout(draw: st.DrawFn, at_s: float) -> Readout:
    sensor = draw(st.sampled_from(sorted(SENSORS)))
    subjects, names = SENSORS[sensor]
    samples = [
        Sample(subject=subject, name=name, value=draw(value))
        for subject in draw(st.sets(st.sampled_from(subjects)))
        for name in names
    ]
    happenings = [
        Happening(
            subject=draw(st.sampled_from(SUBJECTS)),
            name=draw(st.sampled_from(HAPPENINGS)),
            at_s=at_s + draw(st.floats(-100, 100)),
            text=draw(st.text(max_size=20)),
            data={"is_corrected": draw(st.booleans())},
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Readout(
        sensor=sensor,
        at_s=at_s + draw(st.sampled_from([0.0, 0.0, 0.0, -50.0])),
        samples=samples,
        happenings=happenings,
        is_silent=draw(st.booleans()),
        is_partial=draw(st.booleans()),
    )


@given(st.data(), st.lists(st.sampled_from([0.0, 1.0, 10.0, 60.0, 400.0, 4000.0]), max_size=25))
def test_findings_begin_once_and_end_once(data: st.DataObject, gaps: list[float]) -> None:
    judges, now_s = host_judges(), 5000.0
    held: dict[str, Finding] = {}
    for gap in gaps:
        now_s += gap
        one = data.draw(readout(now_s))
        for judge in judges:
            if judge.sensors and one.sensor not in judge.sensors:
                continue
            for finding in judge.judge_readout(one, now_s):
                assert finding.told_s == now_s >= finding.since_s and finding.summary and finding.cause
                assert finding.id.startswith(f"{finding.cause}/{finding.subject}")
                if finding.is_over:
                    began = held.pop(finding.id)
                    assert began.since_s == finding.since_s
                else:
                    assert held.get(finding.id, finding).since_s == finding.since_s
                    held[finding.id] = finding


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.floats(0.1, 400)), max_size=60))
def test_a_condition_holds_only_if_it_was_so_for_as_long_as_it_takes(turns: list[tuple[bool | None, float]]) -> None:
    lasting, at_s, held = Lasting(30.0, 20.0, readouts=2), 0.0, False
    so_since_s: float | None = None
    not_since_s: float | None = None
    for is_so, gap in turns:
        at_s += gap
        holds = lasting.update("x", is_so, at_s)
        if is_so:
            so_since_s, not_since_s = at_s if so_since_s is None else so_since_s, None
        elif is_so is False:
            not_since_s = at_s if not_since_s is None else not_since_s
            so_since_s = so_since_s if held else None
        if holds and not held:
            assert is_so and so_since_s is not None and at_s - so_since_s >= 30
        if held and not holds:
            assert is_so is False and not_since_s is not None and at_s - not_since_s >= 20
            so_since_s = None
        held = holds


@given(st.lists(st.tuples(st.one_of(st.integers(-10, 100), st.floats(), st.none()), st.floats(-5, 50)), max_size=50))
def test_a_counter_only_ever_grows_by_what_it_did(turns: list[tuple[Value | None, float]]) -> None:
    counters, at_s = LastCounts(), 100.0
    for now, gap in turns:
        at_s += gap
        growth = counters.grown("x", now, at_s)
        assert growth is None or (growth.by >= 0 and growth.within_s > 0 and growth.rate >= 0)


@given(st.text(max_size=300), st.sampled_from(["", "EXT4-fs error (device ", "nvme nvme0: ", "INFO: task ", "mce: "]))
@settings(max_examples=300)
def test_no_line_of_the_log_is_too_much(text: str, start: str) -> None:
    found = LineReader().read(start + text, 1.0)
    assert found is None or (found.subject and len(found.text) <= 400)
    parse_record(f"6,1,2,-;{text}")
    parse_record(text)


@given(st.binary(max_size=300))
def test_no_message_of_rtnetlink_is_too_much(data: bytes) -> None:
    for message in parse_messages(data):
        parse_link(message)
