"""The line of JSON in which a script says what it has measured."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.job import Job

MARK = "result: "


def read_result(job: Job) -> dict[str, Any]:
    """The result in a job's output. Raises CannotMeasure where there is none."""
    for line in job.output.splitlines():
        _, mark, text = line.partition(MARK)
        if mark:
            found: dict[str, Any] = json.loads(text)
            return found
    raise job.trouble("no result in its output")
