"""All rows: what of guardrun's own, or of what it stands on, fails; and how, and when.

A new one is a line in the file of its part.
"""

from __future__ import annotations

from tests.faults import agent, clock, disk, launcher, nodes, supervisor
from tests.faults.row import PARTS, Row

_ALL: tuple[Row, ...] = (
    *supervisor.ROWS,
    *launcher.ROWS,
    *agent.ROWS,
    *nodes.ROWS,
    *disk.ROWS,
    *clock.ROWS,
)
TABLE = tuple(sorted(_ALL, key=lambda row: PARTS.index(row.part)))
SAMPLE = tuple(row for row in TABLE if row.is_sample)
