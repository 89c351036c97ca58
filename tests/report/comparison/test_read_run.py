"""What the journal tells of a run that is compared."""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.report.comparison.read_run import JournalStory


def test_an_attempt_that_is_told_twice_is_one() -> None:
    """Once by the launcher, and once more when all is known of it."""
    story = JournalStory()
    one = ev.Rank(global_rank=0, local_rank=0, pid=7, node="node-a")
    other = ev.Rank(global_rank=1, local_rank=1, pid=8, node="node-b")
    story.feed(ev.AttemptStarted(attempt=0, ranks=[one]), 1.0)
    story.feed(ev.AttemptStarted(attempt=0, ranks=[one, other]), 1.1)
    story.feed(ev.AttemptStarted(attempt=1, ranks=[one, other]), 9.0)
    assert [(attempt.number, attempt.world_size) for attempt in story.attempts] == [(0, 2), (1, 2)]
