"""What is known of the node, from readouts that tell all, some, or only what has happened."""

from __future__ import annotations

from guardrun.supervisor.agent.agent_context import Latest
from guardrun.supervisor.health.base.readings import Happening, Readout, Sample, Value


def readout(at_s: float, *, is_partial: bool = False, **values: Value) -> Readout:
    samples = [Sample(subject="gpu:1", name=name, value=value) for name, value in values.items()]
    return Readout(sensor="gpu", at_s=at_s, samples=samples, is_partial=is_partial)


def known(latest: Latest) -> dict[str, Value | None]:
    return {sample.name: sample.value for sample in latest.readouts["gpu"].samples}


def test_a_partial_turn_leaves_the_rest_as_it_was() -> None:
    latest = Latest()
    latest.update(readout(0.0, index=3, temperature_c=60))
    latest.update(readout(2.0, is_partial=True, temperature_c=61))
    assert known(latest) == {"index": 3, "temperature_c": 61}
    latest.update(readout(4.0, temperature_c=62))
    assert known(latest) == {"temperature_c": 62}


def test_what_somebody_is_told_is_whole() -> None:
    latest = Latest()
    latest.update(readout(0.0, index=3, temperature_c=60))
    latest.take_news()
    latest.update(readout(2.0, is_partial=True, temperature_c=60))
    assert latest.take_news() == ([], [])
    latest.update(readout(4.0, is_partial=True, holders="7=70"))
    latest.update(readout(6.0, is_partial=True, temperature_c=61))
    ((told,), _) = latest.take_news()
    assert {sample.name: sample.value for sample in told.samples} == {
        "index": 3,
        "temperature_c": 61,
        "holders": "7=70",
    }


def test_happenings_alone_change_no_samples() -> None:
    latest = Latest()
    latest.update(readout(0.0, temperature_c=60))
    latest.take_news()
    happening = Happening(subject="gpu:1", name="xid", at_s=1.0)
    latest.update(Readout(sensor="gpu", at_s=1.0, happenings=[happening], is_partial=True))
    ((told,), _) = latest.take_news()
    assert (told.happenings, known(latest)) == ([happening], {"temperature_c": 60})


def test_of_a_lost_device_only_who_it_is_stays() -> None:
    latest = Latest()
    latest.update(readout(0.0, index=3, temperature_c=60, is_lost=False))
    latest.update(readout(2.0, is_partial=True, is_lost=True))
    assert known(latest) == {"index": 3, "is_lost": True}
