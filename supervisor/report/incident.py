"""incident.json, and the folder that holds it, the report and the raw stacks."""

from __future__ import annotations

import os
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.own_files import write_own
from guardrun.supervisor.engine.model.actions import Incident, ranks_of
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.engine.observation.stack_grouping import group_stacks
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.report.elements.source_lines import files_of, read_sources
from guardrun.supervisor.report.elements.stored_stacks import list_files, read_stacks
from guardrun.supervisor.report.incident_page import plain_html, report_html
from guardrun.supervisor.report.timeline.story import Story, incident_story
from guardrun.supervisor.report.timeline.timeline import Timeline
from guardrun.supervisor.rundir.run_directory import RunFile

SCHEMA = 1
FOLDER = "incidents"
STACKS = "stacks"
_EARLIER = re.compile(r"look-\d+")


def incident_json(incident: Incident, run: RunFile, wall: Callable[[float], float]) -> dict[str, Any]:
    """incident.json as the contract has it. wall turns the engine's seconds into seconds since the epoch."""
    return {
        "schema": SCHEMA,
        "id": incident.id,
        "run_id": run.run_id,
        "attempt": incident.attempt,
        "kind": incident.kind,
        "cause": incident.cause,
        "confidence": round(incident.confidence, 3),
        "summary": incident.summary,
        "culprits": [msgspec.to_builtins(culprit) for culprit in incident.culprits],
        "onset": iso_time(wall(incident.onset_s)),
        "detected": iso_time(wall(incident.detected_s)),
        "acted": None if incident.acted_s is None else iso_time(wall(incident.acted_s)),
        "step": incident.step,
        "evidence": msgspec.to_builtins(incident.evidence, str_keys=True),
        "advice": incident.advice,
        "action": incident.action,
        "resumed_from": checkpoint_json(incident.resumed_from),
        "recovered": None if incident.recovered_s is None else iso_time(wall(incident.recovered_s)),
    }


def checkpoint_json(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """`{"path": …, "step": …}`, or None."""
    return None if checkpoint is None else {"path": checkpoint.path, "step": checkpoint.step}


def write_incident(
    run_dir: Path, incident: Incident, run: RunFile, wall: Callable[[float], float], timeline: Timeline | None = None
) -> Path:
    """Write or rewrite an incident's folder, incident.json first, and answer where it is.

    Raises OSError. What was written before stays whole then.
    """
    folder = _place(run_dir, incident)
    record = incident_json(incident, run, wall)
    write_own(folder / "incident.json", encode(record))
    _keep_stacks(run_dir, incident.looks, folder / STACKS)
    html = _report(record, folder, incident, run, timeline)
    write_own(folder / "report.html", html.encode("utf-8", "replace"))
    return folder


def _report(record: dict[str, Any], folder: Path, incident: Incident, run: RunFile, timeline: Timeline | None) -> str:
    """The page; a plain one where our own rendering fails, because a page is no reason to stop supervising."""
    try:
        stacks = read_stacks(folder / STACKS)
        files = [f"{STACKS}/{name}" for name in list_files(folder / STACKS)]
        culprits = ranks_of(incident.culprits)
        shown = files_of(group_stacks(stacks, culprits))
        began_s = timeline.began_s(incident.attempt) if timeline else None
        sources = read_sources(shown, run.cwd, run.date_s(began_s or 0.0))
        return report_html(record, stacks, files, _story(timeline, incident), sources)
    except Exception:
        return plain_html(record, traceback.format_exc())


def _story(timeline: Timeline | None, incident: Incident) -> Story | None:
    if timeline is None:
        return None
    try:
        return incident_story(
            timeline,
            onset_s=incident.onset_s,
            detected_s=incident.detected_s,
            recovered_s=incident.recovered_s,
        )
    except Exception:
        return None  # the page says that it is missing


def encode(record: dict[str, Any]) -> bytes:
    """Indented JSON. A lone surrogate (from a path that is no UTF-8) becomes `?`."""
    try:
        data = msgspec.json.encode(record)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_without_surrogates(record))
    return msgspec.json.format(data, indent=2) + b"\n"


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]
    return value


def _place(run_dir: Path, incident: Incident) -> Path:
    """The incident's folder, made, or renamed where the cause has changed since it was last written."""
    parent = run_dir / FOLDER
    parent.mkdir(mode=0o700, exist_ok=True)
    wanted = parent / f"{incident.id}-{incident.cause}"
    if not wanted.is_dir():
        for other in sorted(parent.glob(f"{incident.id}-*")):
            if other.is_dir() and not other.is_symlink():
                other.rename(wanted)
                break
        else:
            wanted.mkdir(mode=0o700)
    return wanted


def _keep_stacks(run_dir: Path, looks: list[str], stacks: Path) -> None:
    """Bring the looks' files here: the last look's at the top, the ones before it in look-1, look-2 and so on.

    A look that is gone from RUN/looks stays as an earlier write of this incident left it.
    """
    stacks.mkdir(mode=0o700, exist_ok=True)
    for number, look in enumerate(looks[:-1], start=1):
        target = stacks / f"look-{number}"
        if target.is_dir():
            continue
        if (run_dir / look).is_dir():
            _link_tree(run_dir / look, target)
        elif not any((stacks / f"look-{later}").is_dir() for later in range(number, len(looks))):
            # It was the last one then, and its files are still at the top.
            _move_top(stacks, target)
    if looks and (run_dir / looks[-1]).is_dir():
        # What is there of that look stays: whoever reads it meanwhile must not find half of it.
        for path in _top(stacks):
            _drop_others(run_dir / looks[-1] / path.name, path)
        _link_tree(run_dir / looks[-1], stacks)


def _top(stacks: Path) -> list[Path]:
    """What the last look has left in stacks/."""
    return [path for path in stacks.iterdir() if not _EARLIER.fullmatch(path.name)]


def _drop_others(source: Path, target: Path) -> None:
    """Remove the file, or what is in the folder, that is not the source's."""
    if source.is_dir() and target.is_dir():
        for path in target.iterdir():
            _drop_others(source / path.name, path)
    elif target.is_dir():
        shutil.rmtree(target)
    elif not source.is_file() or not os.path.samefile(source, target):
        target.unlink()


def _move_top(stacks: Path, target: Path) -> None:
    paths = _top(stacks)
    if paths:
        target.mkdir(mode=0o700)
    for path in paths:
        path.rename(target / path.name)


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            _link_tree(Path(entry.path), place)
        elif entry.is_file(follow_symlinks=False):
            try:
                os.link(entry.path, place)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                shutil.copyfile(entry.path, place)


def incident_folders(run_dir: Path) -> list[Path]:
    """The folders of all incidents that have an incident.json, by number."""
    found = [path.parent for path in (run_dir / FOLDER).glob("*/incident.json")]
    return sorted(found, key=lambda folder: (_number(folder.name), folder.name))


def _number(name: str) -> int:
    match = re.match(r"\d+", name)
    return int(match[0]) if match else 0
