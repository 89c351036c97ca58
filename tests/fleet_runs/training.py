"""Training by scripts/train.py, looked at from outside: where its ranks are, what the run's records say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import wait_until

T = TypeVar("T")

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
MAX_LOST = 15
"""Steps: one checkpoint in ten, and what was done while it was written."""
Mark = dict[str, Any]


class Training:
    """folder: where guardrun is started, and keeps its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.marks = folder / "marks"
        for path in (self.folder, self.marks):
            path.mkdir()

    @property
    def run_dir(self) -> Path:
        return (self.folder / "guardrun-runs" / "latest").resolve()

    def first_steps(self, attempt: int, world: int, timeout_s: float = 60.0) -> list[Mark]:
        """Wait until every rank of an attempt has done its first step; their marks in the order of ranks."""
        paths = [self.marks / f"first-{attempt}-{rank}.json" for rank in range(world)]
        self.wait_for(lambda: all(path.exists() for path in paths), timeout_s, f"attempt {attempt} of {world} ranks")
        found = [json.loads(path.read_text()) for path in paths]
        assert [mark["world"] for mark in found] == [world] * world
        return found

    def where(self, attempt: int, world: int, timeout_s: float = 60.0) -> list[str]:
        """The node of each rank, once all have done a step."""
        return [mark["node"] for mark in self.first_steps(attempt, world, timeout_s)]

    def at(self, rank: int = 0) -> Mark:
        """Where a rank was last seen."""
        mark: Mark = json.loads((self.marks / f"at-{rank}.json").read_text())
        return mark

    def happens(self, words: str, count: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until these words are in so many lines of the head's journal."""

        def seen() -> bool:
            path = self.run_dir / "events.jsonl"
            return path.exists() and sum(words in line for line in path.read_text().splitlines()) >= count

        wait_until(seen, timeout_s, f"{words!r} in the journal, {count} times", every_s=0.005)

    def in_touch(self, name: str) -> None:
        """Wait until the head has heard anew of a node's ranks."""
        words = f'"type":"node_report","node":"{name}"'
        before = (self.run_dir / "events.jsonl").read_text().count(words)
        self.happens(words, before + 1)

    def tied(self) -> set[str]:
        """Nodes whose ranks the head has seen to do something with those of others."""
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []  # the last may be cut short
        reports = (re.search(r'"type":"node_report","node":"([^"]*)".*"joint":[1-9]', line) for line in lines)
        return {report[1] for report in reports if report}

    def wait_until_tied(self, node: str) -> None:
        self.wait_for(lambda: node in self.tied(), 30.0, f"the head to know that {node} works with others")

    def advance(self, steps: int, timeout_s: float = 30.0) -> None:
        """Wait until rank 0 has done so many more steps."""
        goal = self.at()["step"] + steps
        self.wait_for(lambda: self.at()["step"] >= goal, timeout_s, f"step {goal}")

    def incidents(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.run_dir.glob("incidents/*/incident.json"))]

    def incident(self, number: int, timeout_s: float = 40.0) -> dict[str, Any]:
        """Wait for the run's incident of that number, from 1."""
        self.wait_for(lambda: len(self.incidents()) >= number, timeout_s, f"incident {number}")
        return self.incidents()[number - 1]

    def recovered(self, number: int, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait until training is past where that incident stopped it."""
        self.wait_for(
            lambda: self.incidents()[number - 1]["recovered"], timeout_s, f"incident {number} to be recovered from"
        )
        return self.incidents()[number - 1]

    def mended(self, number: int, attempt: int) -> dict[str, Any]:
        """The same, with what it has cost: steps that the next attempt did again."""
        told = self.recovered(number, 60.0)
        mark = json.loads((self.marks / f"first-{attempt}-0.json").read_text())
        assert 0 <= mark["stood"] - mark["from"] <= MAX_LOST, mark
        return told

    def events(self) -> list[dict[str, Any]]:
        """The head's journal."""
        return [json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()]

    def outputs(self) -> str:
        """What guardrun has said: for whoever reads why a test failed."""
        raise NotImplementedError

    def wait_for(self, read: Callable[[], T], timeout_s: float, what: str) -> T:
        """What is read, once it is anything."""
        try:
            return wait_until(read, timeout_s, what, every_s=0.05)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.outputs()}\n{self._records()}") from None

    def _records(self) -> str:
        """What the run itself has written down, its ends of journal and log."""
        paths = (self.run_dir / "events.jsonl", self.run_dir / "guardrun.log")
        texts = [path.read_text(errors="replace").splitlines()[-40:] for path in paths if path.exists()]
        return "\n".join(line[:400] for lines in texts for line in lines)
