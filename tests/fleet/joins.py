"""Join files, made up."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.fleet.rendezvous.join_file import JoinFile
from guardrun.supervisor.fleet.transport.curve import make_key_pair


def made(run_id: str = "run", session: int = 0, **more: Any) -> JoinFile:
    """Of keys of its own."""
    known = {
        "run_dir": "/somewhere/run",
        "token": "t",
        "head": "head",
        "addresses": ["192.0.2.1"],
        "port": 4000,
        "server_key": make_key_pair().public,
        "client": make_key_pair(),
        "version": "1",
        "created_wall_s": 1.0,
    }
    return JoinFile(run_id=run_id, session=session, **{**known, **more})
