"""Room left on the file systems that a run writes to, with what else the node says of itself at that moment."""

from __future__ import annotations

import os
from collections.abc import Iterable

from guardrun.supervisor.collect.host.node_readings import read_readings
from guardrun.supervisor.engine.model.looks import Reading

TIMEOUT_S = 1.0
"""A fall is to be explained within two seconds."""


def read_room(folders: Iterable[str], timeout_s: float = TIMEOUT_S) -> tuple[dict[str, int], list[Reading]]:
    """Bytes that the user may still write, per folder, and the node's readings.

    A folder that doesn't exist yet is judged by its nearest parent; 0 is also for bytes but no inodes left. Left out
    are those that didn't answer within timeout_s, all together (a dead mount), or may not be asked.
    """
    by_path = {os.path.abspath(folder): folder for folder in folders if "\0" not in folder}
    readings, answers = read_readings(by_path, timeout_s=timeout_s)
    return {by_path[room.path]: room.free_bytes for room in answers.rooms if room.path in by_path}, readings
