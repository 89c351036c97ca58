"""What a crash's incident says beyond the error: the folder without room, the device's memory, what sensors saw."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.detectors.failure.crash_evidence import words
from guardrun.supervisor.engine.failures.root_cause import RootCause
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import ErrorRecord
from tests.engine.conftest import Told

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 80.00 GiB of which 1.00 GiB is "
    "free. Including non-PyTorch memory, this process has 78.00 GiB memory in use."
)


def crashed(told: Told, error: ErrorRecord, **read: object) -> dict[str, Any]:
    """The evidence of a rank's having raised; read: what is found beside it, as in ExitsRead."""
    told.running()
    told.tell(
        ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=msgspec.structs.replace(error, at_s=told.now_s))
    )
    told.exits(1, 1)
    told.tick()
    told.read(told.now_s + 0.1, **read)
    told.stopped(told.now_s + 1.0)
    (incident,) = told.incidents.values()
    return incident.evidence


@pytest.mark.parametrize(
    "message, free_bytes, disk",
    [
        ("No space left on device: '/out/run/step.pt'", {"/": 9 << 30, "/out": 0}, {"folder": "/out", "free_bytes": 0}),
        ("No space left on device: '/out/step.pt'", {"/data": 0}, {"folder": "/out/step.pt"}),
        ("No space left on device", {"/": 9 << 30, "/out": 4096, "/tmp": 0}, {"folder": "/tmp", "free_bytes": 0}),
        ("No space left on device", {"/": 9 << 30, "/out": -1}, None),
    ],
)
def test_the_folder_without_room_is_the_error_s_or_the_fullest(
    told: Told, message: str, free_bytes: dict[str, int], disk: dict[str, Any] | None
) -> None:
    evidence = crashed(told, ErrorRecord(error="OSError", message=f"[Errno 28] {message}"), disk_free_bytes=free_bytes)
    assert evidence.get("disk") == disk
    assert evidence["disk_free_bytes"] == free_bytes


def test_the_allocator_s_summary_is_data(told: Told) -> None:
    evidence = crashed(told, ErrorRecord(error="torch.OutOfMemoryError", message=OOM))
    memory = evidence["memory"]
    assert (memory["gpu"], memory["tried_bytes"], memory["free_bytes"]) == (3, 2 << 30, 1 << 30)
    (incident,) = told.incidents.values()
    assert "; GPU 3 of 80 GB, 1 GB free" in incident.summary


@pytest.mark.parametrize(
    "hint, evidence, said",
    [
        ("", {}, ""),
        ("", {"disk": {"folder": "/out", "free_bytes": 0}}, "; /out has 0 bytes left"),
        ("", {"disk": {"folder": "/out"}}, ""),
        ("", {"memory": {"total_bytes": 80 << 30}}, "; its device of 80 GB"),
        ("", {"checkpoint": "/out/step_4.pt"}, "; it was loading /out/step_4.pt"),
        ("reading", {"readings": [{"name": "GPU 1", "note": "fell off the bus"}]}, "; GPU 1: fell off the bus"),
        ("reading", {"readings": [{"name": "GPU 1", "note": ""}]}, "; GPU 1"),
        ("", {"readings": [{"name": "GPU 1", "note": "hot"}]}, ""),
        ("", {"node_findings": ["GPU 1 is throttled.", "A disk fails."]}, "; at that time: GPU 1 is throttled"),
        ("illegal_access", {}, "; CUDA tells it late: what caused it was launched before"),
        (
            "launch_failure",
            {"node_findings": ["GPU 1 has Xid 13."]},
            "; CUDA tells it late: what caused it was launched before; at that time: GPU 1 has Xid 13",
        ),
    ],
)
def test_the_sentence_says_what_is_known_beside_the_error(hint: str, evidence: dict[str, Any], said: str) -> None:
    found = RootCause(cause="exception", culprits=[1], confidence=1.0, key="", exit_code=1, what="raised", hint=hint)
    assert words(found, evidence) == said
