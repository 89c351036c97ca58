"""What prolog and epilog say, and to whom: journald and stderr, and the node agent, into the node's history."""

from __future__ import annotations

import sys
from typing import Any

from guardrun.supervisor.client.agent_client import RefusedError, Unreachable, ask
from guardrun.systemd.journal import Journal

AGENT_PATIENCE_S = 1.0


def log_line(part: str, text: str, level: str = "info", **fields: str) -> None:
    """One line for whoever reads logs; slurmd keeps a script's stderr where it is configured to."""
    try:
        sys.stderr.write(f"guardrun {part}: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass
    journal = Journal(f"guardrun-{part}")
    journal.send(text, level, {f"GUARDRUN_{name.upper()}": value for name, value in fields.items()})
    journal.close()


def note(job: str, name: str, text: str, data: dict[str, Any] | None = None) -> str:
    """Put a line into the node's history, where an agent keeps one; why it could not, empty where it could."""
    arguments = {"subject": f"slurm:{job}", "name": name, "text": text, "data": data or {}}
    try:
        ask("note", arguments, timeout_s=AGENT_PATIENCE_S)
    except (Unreachable, RefusedError, OSError) as error:
        return str(error)
    return ""
