"""Which device draws less than it usually does, unlike the others."""

from __future__ import annotations

import pytest

from guardrun.supervisor.health.gpu.device_power import PowerBook, PowerNow

GPUS = ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]


def trained(minutes: float, watts: dict[str, float]) -> PowerBook:
    """Each device has drawn so much, read every second."""
    book = PowerBook()
    for at_s in range(int(minutes * 60)):
        for subject, value in watts.items():
            book.note(subject, float(at_s), value)
    return book


USUAL = {"gpu:0": 640.0, "gpu:1": 650.0, "gpu:2": 400.0, "gpu:3": 645.0}
"""One is of another model, or has less to do: each is compared with itself."""


def drawing(book: PowerBook, watts: dict[str, float], at_s: float = 1800.0) -> list[PowerNow]:
    for subject, value in watts.items():
        book.note(subject, at_s, value)
    return book.compare(GPUS)


def odd(found: list[PowerNow]) -> list[str]:
    return [each.subject for each in found if each.is_odd]


def test_the_one_that_idles_while_the_others_wait_is_odd() -> None:
    found = drawing(trained(20, USUAL), {"gpu:0": 330.0, "gpu:1": 120.0, "gpu:2": 210.0, "gpu:3": 320.0})
    assert odd(found) == ["gpu:1"]
    assert found[1] == PowerNow("gpu:1", 120.0, 650.0, True)


@pytest.mark.parametrize(
    "watts",
    [
        USUAL,
        {"gpu:0": 130.0, "gpu:1": 120.0, "gpu:2": 90.0, "gpu:3": 125.0},
        {"gpu:0": 700.0, "gpu:1": 500.0, "gpu:2": 390.0, "gpu:3": 600.0},
    ],
    ids=["all work", "all wait for a disk", "a little apart"],
)
def test_nothing_is_odd_where_all_are_alike(watts: dict[str, float]) -> None:
    assert odd(drawing(trained(20, USUAL), watts)) == []


def test_ten_minutes_of_a_hang_do_not_become_usual() -> None:
    book = trained(25, USUAL)
    for at_s in range(1500, 2100):
        for subject in GPUS:
            book.note(subject, float(at_s), 120.0 if subject == "gpu:1" else 330.0)
    found = book.compare(GPUS)
    assert {each.subject: each.usual_watts for each in found} == USUAL
    assert odd(found) == ["gpu:1"]


def test_nothing_is_said_before_anything_is_usual() -> None:
    assert drawing(trained(1.5, USUAL), {"gpu:1": 100.0}, at_s=91.0) == []
    assert PowerBook().compare(GPUS) == []


def test_two_devices_tell_nothing_of_each_other() -> None:
    usual = {"gpu:0": 640.0, "gpu:1": 650.0}
    assert odd(drawing(trained(20, usual), {"gpu:0": 640.0, "gpu:1": 90.0})) == []


def test_a_device_that_draws_nothing_is_left_out() -> None:
    """Some report 0 W for good."""
    book = trained(20, {**USUAL, "gpu:1": 0.0})
    assert [each.subject for each in drawing(book, {"gpu:0": 600.0})] == ["gpu:0", "gpu:2", "gpu:3"]
