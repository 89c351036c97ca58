"""File systems whose answers come from elsewhere: whether they answer, and their room.

Asked by children that may be left behind (collect/host/file_systems.py), some at a turn: each costs the start of a
process.
"""

from __future__ import annotations

from collections.abc import Callable

from guardrun.supervisor.collect.host.file_systems import Answers, Mount, ask, read_mounts
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import known

AT_A_TURN = 4
ANSWER_S = 5.0
"""A file server may take its time; beyond this, whoever uses it waits noticeably."""


class MountsSensor:
    """`mount:POINT` for remote file systems."""

    name = "mounts"
    period_s = 60.0
    timeout_s = ANSWER_S + 5.0

    def __init__(self, read: Callable[[], list[Mount]] = read_mounts, answer_s: float = ANSWER_S) -> None:
        self._read_mounts = read
        self._answer_s = answer_s
        self._next = 0
        self._dead: set[str] = set()

    def read(self, now_s: float) -> Readout:
        """Asks AT_A_TURN mounts at most, each in bounded time; partial while others are left."""
        mounts = self._read_mounts()
        points = list(dict.fromkeys(mount.point for mount in mounts if mount.is_remote))
        chosen = self._choose(points)
        samples = []
        if chosen:
            answers = ask(chosen, self._answer_s, mounts)
            self._dead = {point for point in self._dead if point not in chosen and point in points} | set(answers.dead)
            samples = of_answers(answers)
        is_partial = len(chosen) < len(points)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, is_partial=is_partial)

    def _choose(self, points: list[str]) -> list[str]:
        """Those that did not answer last, since somebody waits for them, and then the others in turn."""
        dead = [point for point in points if point in self._dead][: AT_A_TURN - 1]
        others = [point for point in points if point not in dead]
        count = min(len(others), AT_A_TURN - len(dead))
        turn = [others[(self._next + number) % len(others)] for number in range(count)]
        self._next += count
        return dead + turn

    def close(self) -> None:
        """Nothing is held; a child that is stuck in a dead mount stays until that lets it go."""


def of_answers(answers: Answers) -> list[Sample]:
    """Samples of those that answered and those that did not; what may not be asked is left out."""
    samples = []
    for point, asked_s in answers.dead.items():
        samples += known(f"mount:{point}", is_answering=False, asked_s=float(asked_s))
    for room in {room.point: room for room in answers.rooms}.values():
        samples += known(f"mount:{room.point}", is_answering=True)
        if room.total_bytes:
            samples += known(f"mount:{room.point}", free_bytes=room.free_bytes, total_bytes=room.total_bytes)
    return samples
