"""Judges of disks and links: what is a fault, what is somebody's wish, and what is isolated for it."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.health.base.findings import Response
from guardrun.supervisor.health.base.readings import Value
from guardrun.supervisor.health.host.disks import DiskJudge
from guardrun.supervisor.health.host.network import NetworkJudge
from tests.sensors.story import Story

GIB = 1 << 30
NOTE, ISOLATE = Response.NOTE, Response.ISOLATE


def room(story: Story, point: str, free_gib: float, turns: int = 3, **more: Any) -> None:
    values: dict[str, Value] = {"free_bytes": int(free_gib * GIB), "total_bytes": 100 * GIB, "is_read_only": False}
    for _ in range(turns):
        story.wait(20).turn(f"mount:{point}", **(values | more))


def test_a_file_system_that_fills_up_and_is_emptied() -> None:
    story = Story(DiskJudge(), "disks")
    room(story, "/data", 50)
    room(story, "/data", 0.001, turns=1)
    room(story, "/data", 50)
    assert story.told == [], "a blip"
    room(story, "/data", 0.001)
    (finding,) = story.told
    assert finding.id == "disk/mount:/data/full" and finding.key == "disk_full" and finding.response is NOTE
    assert finding.summary == "/data is full: 1 of 102400 MiB left."
    room(story, "/data", 50)
    assert story.holding() == []


@pytest.mark.parametrize(
    ("point", "more", "is_found"),
    [
        ("/data", {}, False),  # Full since ever: kept full on purpose.
        ("/", {}, True),
        ("/dev/shm", {}, True),
        ("/", {"is_read_only": True}, False),
        ("/tmp", {"free_bytes": 50 * GIB, "free_inodes": 0}, True),
    ],
)
def test_full_from_the_start(point: str, more: dict[str, Any], is_found: bool) -> None:
    story = Story(DiskJudge(), "disks")
    room(story, point, 0, **more)
    assert len(story.told) == is_found


def test_a_mount_that_is_gone_is_full_no_more() -> None:
    story = Story(DiskJudge(), "disks")
    room(story, "/tmp", 0)
    room(story, "/other", 5, turns=1)
    assert story.told[-1].is_over


def test_read_only_as_mounted_is_a_note_and_by_an_error_isolates() -> None:
    story = Story(DiskJudge(), "disks")
    room(story, "/mnt", 5, is_read_only=True)
    assert story.told == [], "it was so from the start"
    room(story, "/data", 5, source="/dev/sda1")
    room(story, "/data", 5, is_read_only=True, source="/dev/sda1")
    assert [(f.id, f.response) for f in story.told] == [("disk/mount:/data/read_only", NOTE)]
    assert story.told[0].summary == "/data (/dev/sda1) has become read-only."
    story.sensor = "kernel_log"
    story.line("fs_read_only", "disk:sda1", "EXT4-fs (sda1): Remounting filesystem read-only")
    assert (story.told[-1].key, story.told[-1].response) == ("disk_read_only", ISOLATE)
    story.wait(4000).line("other", "log")
    assert "disk/disk:sda1/shut_down" not in story.holding()


def test_io_errors_count_when_they_come_apart() -> None:
    story = Story(DiskJudge(), "kernel_log")
    for _ in range(5):
        story.wait(0.1).line("io_error", "disk:sda", "I/O error, dev sda, sector 5")
    assert story.told == [], "one request, told several times"
    story.wait(60).line("io_error", "disk:sda", "I/O error, dev sda, sector 9")
    (finding,) = story.told
    assert finding.id == "disk/disk:sda/errors" and finding.response is ISOLATE
    assert finding.summary == "Disk sda has I/O errors (6 times in 10 minutes)."
    story.wait(700).line("other", "log")
    assert story.holding() == []


def test_an_image_that_cannot_be_read_blames_no_disk() -> None:
    story = Story(DiskJudge(), "kernel_log")
    for name in ("io_error", "fs_error", "fs_read_only") * 5:
        story.wait(10).line(name, "disk:loop3")
    assert story.told == []


def test_resets_and_a_lost_disk() -> None:
    story = Story(DiskJudge(), "kernel_log")
    story.line("disk_reset", "disk:nvme0")
    assert story.told == []
    story.wait(200).line("disk_reset", "disk:nvme0")
    assert (story.told[-1].id, story.told[-1].response) == ("disk/disk:nvme0/resets", NOTE)
    story.line("disk_lost", "disk:nvme0")
    assert (story.told[-1].id, story.told[-1].response) == ("disk/disk:nvme0/lost", ISOLATE)


def test_a_disks_own_counter_and_io_that_does_not_end() -> None:
    story, errors = Story(DiskJudge(), "disks"), 50
    for number in range(10):
        errors += 3
        story.wait(20).turn("disk:sda", io_errors=errors, completed=100 + number, in_flight=4)
    assert [(f.id, f.response) for f in story.told] == [("disk/disk:sda/counted", NOTE)]
    for _ in range(5):
        story.wait(20).turn("disk:sda", completed=109, in_flight=4)
    assert story.told[-1].summary == "Disk sda has completed nothing for a minute, and 4 requests wait."
    story.wait(20).turn("disk:sda", completed=110, in_flight=4)
    assert "disk/disk:sda/stuck" not in story.holding()
    for _ in range(10):
        story.wait(20).turn("disk:sdb", completed=5, in_flight=0)
    assert all("sdb" not in f.id for f in story.told)


def test_a_mount_that_does_not_answer_is_not_ended_by_what_others_tell() -> None:
    story = Story(DiskJudge(), "mounts")
    story.turn("mount:/nfs", is_answering=False, asked_s=5.0)
    assert story.told == []
    story.wait(60).turn("mount:/nfs", is_answering=False, asked_s=65.0)
    (finding,) = story.told
    assert finding.summary == "/nfs has not answered for 65 s." and finding.key == "mount_silent"
    story.sensor = "disks"
    room(story, "/", 50)
    assert story.holding() == ["disk/mount:/nfs/silent"]
    story.sensor = "mounts"
    story.wait(60).turn("mount:/nfs", is_answering=True, free_bytes=1, total_bytes=0)
    assert story.holding() == []


class Net:
    """An interface's readouts, ten seconds at a time."""

    def __init__(self, name: str = "eth0", **values: Any) -> None:
        self.story = Story(NetworkJudge(), "network")
        self.subject = f"net:{name}"
        self.values: dict[str, Value] = {
            "is_up": True,
            "is_enabled": True,
            "is_physical": True,
            "is_default_route": True,
            "carrier_changes": 7,
            **{f"{way}_{what}": 1000 for way in ("rx", "tx") for what in ("packets", "errors", "dropped")},
            **values,
        }

    def run(self, turns: int = 1, **values: Value) -> Net:
        for _ in range(turns):
            self.values |= values
            self.story.wait(10).turn(self.subject, **self.values)
        return self

    def grow(self, turns: int, **by: int) -> Net:
        for _ in range(turns):
            self.run(**{name: int(self.values[name]) + more for name, more in by.items()})
        return self


def test_a_link_that_stays_down() -> None:
    net = Net().run(3).run(2, is_up=False, carrier_changes=8).run(2, is_up=True, carrier_changes=9)
    assert net.story.told == [], "one flap is no verdict"
    net = Net().run(3).run(6, is_up=False, carrier_changes=8)
    (finding,) = net.story.told
    assert finding.id == "network/net:eth0/down" and finding.response is ISOLATE
    assert finding.summary == "The link of eth0 is down."
    net.run(3, is_up=True, carrier_changes=9)
    assert net.story.holding() == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"is_default_route": False}, ["network/net:eth0/unused"]),
        ({"is_default_route": False, "is_physical": False}, []),
        ({"is_enabled": False}, []),
    ],
)
def test_whose_link_it_is(values: dict[str, Any], found: list[str]) -> None:
    net = Net(**values).run(3).run(8, is_up=False)
    assert [(f.id, f.response) for f in net.story.told] == [(name, NOTE) for name in found]


def test_a_link_that_never_was_up_is_nobodys_fault() -> None:
    assert Net(is_up=False).run(20).story.told == []


def test_twice_in_five_minutes_is_a_verdict_however_it_is_told() -> None:
    net = Net().run(3)
    net.story.line("link_down", "net:eth0", is_enabled=True)
    net.story.wait(1).line("link_up", "net:eth0", is_enabled=True)
    net.run(carrier_changes=9)
    assert net.story.told == []
    net.story.wait(200).line("link_down", "net:eth0", is_enabled=True)
    (finding,) = net.story.told
    assert finding.id == "network/net:eth0/flapping" and finding.response is ISOLATE
    assert finding.summary == "The link of eth0 went down 2 times in five minutes."
    net.run(70, carrier_changes=11)
    assert net.story.holding() == []
    # Too fast to be told: the counter has them.
    net.run(carrier_changes=15)
    assert net.story.holding() == ["network/net:eth0/flapping"]


def test_two_flaps_ten_minutes_apart_and_switching_off_are_none() -> None:
    net = Net().run(3).run(60, carrier_changes=9).run(3, carrier_changes=11)
    assert net.story.told == []
    for _ in range(4):
        net.story.wait(5).line("link_down", "net:eth0", is_enabled=False)
    net.run(3, is_enabled=False, carrier_changes=40)
    assert net.story.told == []
    net.run(3, is_enabled=True, carrier_changes=3)
    assert net.story.told == [], "the driver was loaded anew"


@pytest.mark.parametrize(
    ("by", "is_found"),
    [
        ({"rx_errors": 500, "rx_packets": 10_000}, True),
        ({"rx_errors": 500, "rx_packets": 10_000_000}, False),
        ({"rx_errors": 5, "rx_packets": 100}, False),
        ({"rx_dropped": 500, "rx_packets": 100_000}, False),
        ({"tx_dropped": 5000, "tx_packets": 100_000}, True),
    ],
)
def test_errors_and_drops_that_last(by: dict[str, int], is_found: bool) -> None:
    net = Net().run(2).grow(8, **by)
    assert [f.id for f in net.story.told] == (["network/net:eth0/errors"] if is_found else [])
    assert Net().run(2).grow(2, **by).run(10).story.told == [], "a burst"


def test_infiniband_ports() -> None:
    story = Story(NetworkJudge(), "infiniband")
    for _ in range(2):
        story.wait(20).turn("ib:mlx5_1/1", state="DOWN", phys_state="Polling")
        story.turn("ib:mlx5_0/1", state="ACTIVE", link_downed=3, symbol_error=10)
    for _ in range(3):
        story.wait(20).turn("ib:mlx5_0/1", state="INIT", phys_state="LinkUp", link_downed=3, symbol_error=10)
    assert [(f.id, f.response) for f in story.told] == [("network/ib:mlx5_0/1/down", ISOLATE)]
    assert story.told[0].summary == "InfiniBand port mlx5_0/1 is INIT."
    story.wait(20).turn("ib:mlx5_0/1", state="ACTIVE", link_downed=5, symbol_error=10)
    assert story.told[-1].id == "network/ib:mlx5_0/1/flapping"
    count = 10
    for _ in range(6):
        count += 100
        story.wait(20).turn("ib:mlx5_0/1", state="ACTIVE", link_downed=5, symbol_error=count)
    assert story.told[-1].id == "network/ib:mlx5_0/1/errors"
    story.turn("ib:mlx5_1/1", state="DOWN")
    assert story.holding() == [], "the device is gone"


def test_an_adapter_with_a_fault() -> None:
    story = Story(NetworkJudge(), "kernel_log")
    (finding,) = story.line("nic_fault", "pci:0000:3b:00.0", "mlx5_core 0000:3b:00.0: health compromised")
    assert finding.id == "network/pci:0000:3b:00.0/adapter" and finding.response is NOTE
    story.wait(700).line("other", "log")
    assert story.holding() == []
