from __future__ import annotations

import threading
import time

from guardrun.supervisor.base.background_work import run_bounded


def test_answers_keep_the_order_of_the_jobs() -> None:
    assert run_bounded([lambda number=number: number * 2 for number in range(20)], workers=4, timeout_s=5) == [
        number * 2 for number in range(20)
    ]
    assert run_bounded([], workers=4, timeout_s=5) == []


def test_an_exception_is_an_answer() -> None:
    answers = run_bounded([lambda: 1 // 0, lambda: 1], workers=1, timeout_s=5)
    assert isinstance(answers[0], ZeroDivisionError)
    assert answers[1] == 1


def test_nobody_waits_for_a_job_that_never_returns() -> None:
    release = threading.Event()
    began = time.monotonic()
    answers = run_bounded([release.wait, lambda: True, release.wait, release.wait], workers=2, timeout_s=3.0)
    took = time.monotonic() - began
    release.set()
    assert answers == [None, True, None, None]
    assert took < 30


def test_a_thread_that_had_no_core_gets_as_much_time_again() -> None:
    release = threading.Event()

    def has_waited(native_id: int) -> float:
        assert native_id in {thread.native_id for thread in threading.enumerate()}
        release.set()
        return 60.0

    assert run_bounded([lambda: release.wait(60)], workers=1, timeout_s=2.0, delay_s=has_waited) == [True]
    began_s = time.monotonic()
    stuck = threading.Event()
    assert run_bounded([lambda: stuck.wait(60)], workers=1, timeout_s=0.2, delay_s=lambda native_id: 60.0) == [None]
    assert time.monotonic() - began_s < 30
    stuck.set()
