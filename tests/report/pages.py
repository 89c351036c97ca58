"""Pages made from samples: of incidents, of a thousand ranks, and of a whole run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from guardrun.supervisor.collect.profiles.breakdown import Reading
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Culprit
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, Stack, StackGroup, stacks_of
from guardrun.supervisor.report.comparison.comparison_page import comparison_html
from guardrun.supervisor.report.comparison.differences import compare_runs
from guardrun.supervisor.report.elements.html_page import environment
from guardrun.supervisor.report.elements.source_lines import CHANGED, Source, Sources
from guardrun.supervisor.report.incident import incident_json
from guardrun.supervisor.report.incident_page import report_html, show_stacks
from guardrun.supervisor.report.profile_comparison import Shown, compare_since, put_beside
from guardrun.supervisor.report.profile_page import profile_html
from guardrun.supervisor.report.run_page import run_html
from guardrun.supervisor.report.timeline.story import RunIncident, run_story
from guardrun.supervisor.report.timeline.timeline import Timeline
from guardrun.supervisor.rundir.profiles import ProfileSummary
from tests.collect.profiles.device_trace import two_steps
from tests.report.comparison.facts import other_run, run
from tests.report.samples import (
    BLOCKED,
    TRAIN,
    WAITING,
    WORKER,
    begin_attempt,
    crash,
    explained,
    hang,
    rank_look,
    run_file,
    story_of,
    told_timeline,
    wall,
)

HUGE = 1024


def huge_timeline(ranks: int = HUGE) -> Timeline:
    """Ranks that each were evaluating and saving at moments of their own, and one that stops."""
    timeline = Timeline()
    begin_attempt(timeline, 0, ranks, 0.5)
    for at_s in range(1, 61):
        reports = [
            ev.RankReport(
                global_rank=n,
                progress_s=min(float(at_s), 40.0 if n == 1 else 41.0),
                progress=min(at_s, 40 if n == 1 else 41),
                step=min(at_s, 41) * 4,
                phase="eval" if (at_s + n) % 13 == 0 else "train",
                gc_since_s=float(at_s) if (at_s * 7 + n) % 31 == 0 else 0.0,
            )
            for n in range(ranks)
        ]
        timeline.feed(ev.NodeReport(node="node-a", attempt=0, ranks=reports), float(at_s))
    return timeline


def huge_page(ranks: int = HUGE) -> tuple[str, float]:
    """The page of an incident with that many ranks, and the CPU seconds that it took."""
    layers = [Frame(f"forward_{n}", "/home/user/project/model.py", n) for n in range(20)]
    stacks = [Stack(rank=r, pid=r, frames=[*(BLOCKED if r == 1 else WAITING), *layers]) for r in range(ranks)]
    stacks += [
        Stack(rank=r, pid=9000 + 8 * r + n, kind=CHILD, name="worker", frames=WORKER)
        for r in range(ranks)
        for n in range(8)
    ]
    pairs = [
        {"ranks": [n, n + 1], "for": [n - 1], "group": f"tp{n}", "seq": n, "op": "all_gather", "where": "m.py:1"}
        for n in range(2, min(ranks - 1, 300), 2)
    ]
    evidence = explained(ranks)
    evidence["waits"] += pairs
    culprits = [Culprit(rank=1, local_rank=1, node="node-a", pid=1)]
    incident = hang(onset_s=41.0, detected_s=60.0, recovered_s=None, evidence=evidence, culprits=culprits)
    timeline = huge_timeline(ranks)
    began_s = time.process_time()
    page = report_html(incident_json(incident, run_file(), wall), stacks, [], story_of(incident, timeline), {})
    return page, time.process_time() - began_s


def run_data(**changes: Any) -> dict[str, Any]:
    """As `guardctl report --json` has it."""
    incident = incident_json(hang(), run_file(), wall) | {"page": "incidents/001-rank_blocked/report.html"}
    values: dict[str, Any] = {
        "run_id": "20261118-vocab-1a2b",
        "run_dir": "/home/user/project/guardrun-runs/20261118-vocab-1a2b",
        "node": "node-a",
        "command": ["guardrun", "--nproc-per-node=8", "train.py"],
        "world_size": 8,
        "is_alive": False,
        "state": "ended",
        "outcome": "finished",
        "exit_code": 0,
        "reason": "training ended well",
        "started": "2026-11-18T11:06:40.000Z",
        "ended": "2026-11-18T11:07:29.000Z",
        "wall_s": 49.0,
        "goodput": 0.2,
        "uses_s": {"training": 9.8, "detecting": 33.1, "stopping": 0.4, "starting": 3.7, "redoing": 2.0, "other": 0.0},
        "trouble_s": 35.5,
        "restarts": 1,
        "last_step": 36,
        "steps_redone": 12,
        "attempts": [
            {"attempt": 0, "started_s": 0.2, "ended_s": 43.6, "outcome": "hang", "first_step": 1, "last_step": 32}
        ],
        "incidents": [incident],
        "troubles": [],
    }
    return {**values, **changes}


def run_page() -> str:
    return run_html(run_data(), run_story(told_timeline(), [RunIncident("001", "rank_blocked", 10.0, 49.0)]))


def comparison_page() -> str:
    """Of two runs in which everything is different."""
    a, b = run(), other_run()
    return comparison_html(a, b, compare_runs(a, b))


def profile_page(name: str = "") -> str:
    """Of eight ranks on devices, one of which multiplies longer than before. name: added to what ranks name."""
    found = {}
    for number, slow in ((1, -1), (2, 5)):
        found[number] = [profile_of(number, rank, 760 if rank == slow else 600, name) for rank in range(8)]
    before, after = found[1], found[2]
    since = compare_since(before, after)
    return profile_html(f"vocab-1{name}", Shown(after, put_beside(after), since, {9: f"it is stopped{name}"}))


def profile_of(number: int, rank: int, gemm_us: float, name: str) -> ProfileSummary:
    """What the trace of two steps with NCCL comes to."""
    reading = Reading()
    for event in two_steps(gemm_us).events:
        reading.add(event | {"name": event["name"] + name} if event["cat"] == "kernel" else event)
    breakdown = reading.breakdown(f"NVIDIA H100 80GB HBM3{name}")
    assert breakdown is not None
    return ProfileSummary(
        number=number, rank=rank, node=f"node-{rank // 4}{name}", attempt=0, at_s=1.0, steps=[(120, 1e-3), (121, 1e-3)],
        wanted=5, plain_s=9e-4, held_s=(1.2, 0.4, 0.2), why=f"the script forked{name}", torch=f"2.13.0{name}",
        trace=f"profiles/{number:03d}/rank-{rank}.json.gz", trace_bytes=3 << 20, breakdown=breakdown, unrecorded=name,
    )  # fmt: skip


def macro_of(template: str, name: str) -> Callable[[Any], str]:
    made: Callable[[Any], str] = getattr(environment().get_template(template).module, name)
    return made


def drawn(macro: str, found: Any) -> str:
    """What a macro of drawings.html makes of what was laid out."""
    return macro_of("drawings.html", macro)(found)


def shown(groups: Sequence[StackGroup], sources: Sources) -> str:
    """The groups as a page has them."""
    return macro_of("stacks.html", "stacks")(show_stacks(groups, sources))


def stacks(count: int = 8) -> list[Stack]:
    """The stacks of so many ranks that hang."""
    return [stack for rank in range(count) for stack in stacks_of(rank_look(rank))]


def pages() -> dict[str, str]:
    """By name, the pages that are held against golden files."""
    files = ["stacks/rank-0-pid-4241.txt", "stacks/a #1%.txt"]
    source = Source(lines=[f"line {n}" for n in range(1, 101)], trouble=CHANGED)
    full = hang(evidence=explained())
    return {
        "hang": report_html(incident_json(full, run_file(), wall), stacks(), files, story_of(full), {TRAIN: source}),
        "crash": report_html(incident_json(crash(), run_file(), wall), []),
    }
