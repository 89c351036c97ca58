"""Recorded journals: real runs of the gym's faults, kept to be played through the engine again.

    python -m tests.support.journals CASE=RUN_DIR …     take the journals of these runs up, with what they led to

Paths of the machine on which they were recorded are replaced. A journal holds what the engine was told; what it decided
then is compared by its outcome, so that a sentence may be put better without recording anew.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model.actions import WriteIncident
from guardrun.supervisor.rundir.journal import Line

FOLDER = Path(__file__).parent.parent / "data" / "journals"
OUTCOMES = FOLDER / "outcomes.json"

_PACKAGES = re.compile(r"/[^\s\"':,]*?/(?=(?:site|dist)-packages/)")
_STDLIB = re.compile(r"/[^\s\"':,]*?/lib/python3\.(?=\d+/)")
_OURS = re.compile(r"/[^\s\"':,]*?/(?:src/guardrun/)?(?=hooks/[a-z_]+\.py)")
_OTHERS = re.compile(r"/(?:tmp|root|work|home)/[^\s\"':,\\]*?(?=/?(?:[^/\s\"':,\\]+)(?:[\"':,\\\s]|$))")


def scrub(text: str) -> str:
    """The same journal of a machine that is nobody's: files keep their names, and whose they are."""
    text = _PACKAGES.sub("/opt/venv/lib/", text)
    text = _STDLIB.sub("/usr/lib/python3.", text)
    text = _OURS.sub("/opt/venv/lib/site-packages/guardrun/", text)
    return _OTHERS.sub("/home/me/run", text)


def play(lines: list[bytes]) -> list[dict[str, Any]]:
    """The incidents that a journal leads to, in order: kind, cause, culprits, action."""
    engine, told = Engine(), {}
    decoder = msgspec.json.Decoder(Line)
    for data in lines:
        line = decoder.decode(data)
        assert line.event is not None and not line.error, f"line {line.n} is no event"
        for action in engine.handle(line.event, line.t):
            if isinstance(action, WriteIncident):
                told[action.incident.id] = action.incident
    return [
        {"kind": i.kind, "cause": i.cause, "culprits": [culprit.rank for culprit in i.culprits], "action": i.action}
        for i in told.values()
    ]


def read(case: str) -> list[bytes]:
    """A recorded journal's lines."""
    return gzip.decompress((FOLDER / f"{case}.jsonl.gz").read_bytes()).splitlines()


def set_version(journal: Path, version: int) -> None:
    """Make a journal look as if a guardrun of another version had written it; 0: of before there were versions.

    A torn last line is left out.
    """
    lines = [json.loads(line) for line in journal.read_bytes().splitlines() if line.endswith(b"}")]
    for line in lines:
        del line["v"]
    versions = {"v": version} if version else {}
    journal.write_text("".join(json.dumps({**versions, **line}) + "\n" for line in lines))


def record(case: str, journal: Path) -> list[dict[str, Any]]:
    """Take up a run's journal; its outcome. A torn last line is left out."""
    text = scrub(journal.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.endswith("}")]
    data = "\n".join(lines).encode() + b"\n"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{case}.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
    return play(data.splitlines())


def main() -> None:
    outcomes = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    for argument in sys.argv[1:]:
        case, _, folder = argument.partition("=")
        path = Path(folder)
        outcomes[case] = record(case, path / "events.jsonl" if path.is_dir() else path)
    OUTCOMES.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
