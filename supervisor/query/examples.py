"""Queries to begin with: what people ask first of a run."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """One query, and what it answers."""

    about: str
    sql: str


EXAMPLES = (
    Example(
        "Where is every rank?",
        "SELECT rank, func, file, lineno FROM threads WHERE is_main AND is_rank ORDER BY rank",
    ),
    Example(
        "The stack of one rank, innermost first",
        "SELECT depth, func, file, lineno FROM python.backtrace WHERE rank = 0 AND is_main ORDER BY pid, depth",
    ),
    Example(
        "What is the odd one out?",
        "SELECT func, file, lineno, COUNT(*) AS ranks FROM threads WHERE is_main AND is_rank GROUP BY func, file, "
        "lineno ORDER BY ranks",
    ),
    Example(
        "Who has not issued the collective that the others are in?",
        "SELECT pg_desc, rank, issued, completed, MAX(issued) OVER (PARTITION BY pg) - issued AS behind FROM "
        "collectives GROUP BY pg, rank ORDER BY behind DESC",
    ),
    Example(
        "Which rank is slow by itself, and where does the time go?",
        "SELECT rank, SUM(work_s) / SUM(steps) AS work, SUM(waiting_s) / SUM(steps) AS waiting, SUM(data_s) / "
        "SUM(steps) AS data FROM steps GROUP BY rank ORDER BY work DESC LIMIT 10",
    ),
    Example(
        "The loss, and the learning rate, over time",
        "SELECT step, loss, grad_norm, learning_rate FROM metrics WHERE rank = 0 ORDER BY attempt, step",
    ),
    Example(
        "The first step that was not finite",
        "SELECT rank, MIN(odd_step) AS step FROM metrics WHERE odd_step IS NOT NULL GROUP BY rank ORDER BY step",
    ),
    Example(
        "Whose memory grows?",
        "SELECT rank, MIN(resident) / 1048576 AS least_mb, MAX(resident) / 1048576 AS most_mb, MAX(allocated) / "
        "1048576 AS device_mb FROM memory GROUP BY rank ORDER BY most_mb - least_mb DESC LIMIT 10",
    ),
    Example(
        "What data loader workers do",
        "SELECT rank, pid, state, wchan, func, file, lineno FROM workers ORDER BY rank, pid",
    ),
    Example(
        "Slowest modules over the last five steps that were traced",
        "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time FROM "
        "python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY module, stage "
        "ORDER BY total_time DESC LIMIT 10",
    ),
    Example(
        "What guardrun did, and when",
        "SELECT time, type, actions FROM events WHERE actions <> '' ORDER BY n DESC LIMIT 20",
    ),
    Example(
        "What happened",
        "SELECT id, cause, step, action, detected, recovered, summary FROM incidents",
    ),
    Example(
        "How ranks of each attempt ended",
        "SELECT attempt, e.key AS rank, e.value AS exitcode FROM attempts, json_each(exitcodes) AS e WHERE "
        "e.value <> 0",
    ),
)
