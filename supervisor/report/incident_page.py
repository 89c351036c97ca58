"""report.html: an incident for a person, in one file.

Each section stands for itself: one that has nothing to show is left out and named at the end, one that fails says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.observation.stack_grouping import group_stacks
from guardrun.supervisor.engine.observation.stacks import Stack
from guardrun.supervisor.report import evidence_tables, incident_cost
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements import html_page
from guardrun.supervisor.report.elements.quantities import duration, escape, parse_iso_time
from guardrun.supervisor.report.elements.source_lines import Sources
from guardrun.supervisor.report.stack_html import stacks_html
from guardrun.supervisor.report.timeline.story import Story, steps_html, strips_html
from guardrun.supervisor.report.wait_graph import draw_graph, make_graph, read_waits

MAX_DATA_CHARS = 200_000
MAX_FILES = 500
DRAWN = 3
"""The sections that are drawings: they come before the facts."""

_ACTION_TAGS = {
    "none": ("watched", ""),
    "restart": ("restarted", "warn"),
    "isolate_node": ("node isolated", "warn"),
    "give_up": ("gave up", "bad"),
}


def report_html(
    record: dict[str, Any],
    stacks: Sequence[Stack],
    files: Sequence[str] = (),
    story: Story | None = None,
    sources: Sources | None = None,
) -> str:
    """The page for an incident.json, with the stacks that were taken and the names of their files (relative)."""
    evidence: dict[str, Any] = record["evidence"]
    culprits = ev.culprit_ranks(record)
    taken = list(stacks) or ev.evidence_stacks(evidence)
    parts: list[tuple[str, Callable[[], str]]] = [
        ("Who waits for whom", lambda: _waits(evidence, culprits)),
        ("What every rank did", lambda: strips_html(story, culprits) if story else ""),
        ("Time a step", lambda: steps_html(story) if story else ""),
        ("Each rank", lambda: evidence_tables.ranks_table(evidence, culprits)),
        ("Calls that cannot meet", lambda: evidence_tables.mismatch_table(evidence)),
        ("Data workers", lambda: evidence_tables.workers_table(evidence)),
        ("Traceback", lambda: _tracebacks(evidence)),
        ("Stacks", lambda: _stacks(taken, culprits, sources or {}) or _told_stacks(evidence)),
        ("Collectives", lambda: evidence_tables.collectives_table(evidence)),
        ("The node", lambda: evidence_tables.readings_table(evidence)),
        ("Checkpoints that were not taken", lambda: evidence_tables.skipped_table(evidence)),
    ]
    sections = [(heading, html_page.guarded(heading, make)) for heading, make in parts]
    if record["kind"] == "crash":  # its traceback says most
        sections.sort(key=lambda section: section[0] != "Traceback")
    return html_page.page(
        f"{record['kind']}: {record['cause']} · incident {record['id']} · {record['run_id']}",
        [
            html_page.paragraph(f"guardrun · run {record['run_id']} · incident {record['id']}", "where"),
            f"<h1>{escape(record['summary'])}</h1>",
            html_page.tags(_tags(record)),
            html_page.guarded_plain(lambda: incident_cost.figures(record)),
            html_page.guarded("What was done, and what to do", lambda: _done(record)),
            *(part for _, part in sections[:DRAWN]),
            html_page.guarded("Verdict", lambda: html_page.facts(_facts(record))),
            *(part for _, part in sections[DRAWN:]),
            html_page.guarded(
                "What is missing", lambda: _missing(record, [name for name, part in sections if not part])
            ),
            html_page.guarded("Evidence", lambda: _data(evidence)),
            html_page.guarded("Raw stacks", lambda: _files(files)),
            "<footer>Written by guardrun; the same as data is in "
            '<a href="incident.json">incident.json</a>. All times are UTC.</footer>',
        ],
    )


def plain_html(record: dict[str, Any], trouble: str) -> str:
    """The sentence alone, and why there is no more."""
    title = f"{record['kind']}: {record['cause']} · incident {record['id']} · {record['run_id']}"
    return html_page.page(
        title,
        [
            f"<h1>{escape(record['summary'])}</h1>",
            html_page.section("The rest of this page could not be made", html_page.preformatted(trouble)),
            '<footer>All that is known is in <a href="incident.json">incident.json</a>.</footer>',
        ],
    )


def _tags(record: dict[str, Any]) -> list[tuple[str, str]]:
    kind = "bad" if record["kind"] in ("hang", "crash", "node") else "warn"
    return [
        (f"{record['kind']}: {record['cause']}", kind),
        (f"{record['confidence']:.0%} sure", ""),
        _ACTION_TAGS.get(record["action"], (record["action"], "")),
        ("recovered", "good") if record["recovered"] else ("" if record["action"] == "give_up" else "going on", ""),
    ]


def _done(record: dict[str, Any]) -> str:
    return html_page.paragraph(incident_cost.done(record)) + incident_cost.advice(record)


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    onset_s, detected_s = parse_iso_time(record["onset"]), parse_iso_time(record["detected"])
    why_nobody = record["evidence"].get("why_no_culprit")
    culprits = "<br>".join(escape(ev.culprit_words(culprit)) for culprit in record["culprits"])
    if not culprits:
        culprits = escape(f"none named{f': {why_nobody}' if isinstance(why_nobody, str) else ''}")
    recovered = ""
    if record["recovered"]:
        after_s = parse_iso_time(record["recovered"]) - detected_s
        recovered = f"{_time(record['recovered'])}, {duration(max(after_s, 0))} after it was detected"
    resumed = record["resumed_from"]
    return [
        ("Cause", f"{html_page.code(record['kind'])} / {html_page.code(record['cause'])}"),
        ("Culprits", culprits),
        ("Began", _time(record["onset"])),
        ("Detected", f"{_time(record['detected'])}, {duration(max(detected_s - onset_s, 0))} later"),
        ("Step", "" if record["step"] is None else str(record["step"])),
        ("Attempt", str(record["attempt"])),
        ("Resumed from", f"step {resumed['step']}, {html_page.code(resumed['path'])}" if resumed else ""),
        ("Recovered", recovered or ("" if record["action"] == "give_up" else "not yet when this was written")),
    ]


def _time(iso: str) -> str:
    day, _, clock = iso.partition("T")
    return f'<time datetime="{escape(iso)}">{escape(day)} {escape(clock.rstrip("Z"))}</time>'


def _waits(evidence: dict[str, Any], culprits: list[int]) -> str:
    waits = read_waits(evidence, culprits)
    if not waits:
        return ""
    graph = make_graph(waits, evidence, culprits)
    drawing = draw_graph(graph)
    return f'<div class="graph">{drawing}</div>' if drawing else ""


def _tracebacks(evidence: dict[str, Any]) -> str:
    parts = []
    for heading, text in ev.tracebacks(evidence):
        parts += [html_page.paragraph(heading, "soft"), html_page.preformatted(text)]
    return "".join(parts)


def _stacks(stacks: list[Stack], culprits: list[int], sources: Sources) -> str:
    return stacks_html(group_stacks(stacks, culprits), sources)


def _told_stacks(evidence: dict[str, Any]) -> str:
    """The groups as the evidence has them: what there is where the stacks' files are gone."""
    parts = [
        html_page.folded(f"<strong>{escape(title)}</strong>", html_page.preformatted(text), is_open=number == 0)
        for number, (title, text) in enumerate(ev.told_groups(evidence))
    ]
    return "\n".join(parts)


_WHY_MISSING = {
    "Who waits for whom": "nobody was seen to wait for another rank",
    "What every rank did": "guardrun did not see what came before",
    "Time a step": "too few steps were seen (a script's steps are those of its optimizer, or what it tells by step())",
    "Each rank": "no rank was judged",
    "Traceback": "no rank left an exception",
    "Stacks": "none were taken",
    "Collectives": "no rank told which collectives it had called",
    "The node": "no readings were taken",
}
_EXPECTED = {
    "hang": ("Who waits for whom", "What every rank did", "Time a step", "Each rank", "Stacks", "Collectives"),
    "crash": ("What every rank did", "Time a step", "Each rank", "Traceback"),
}


def _missing(record: dict[str, Any], empty: list[str]) -> str:
    """What such a page shows as a rule, and this one does not, and why."""
    expected = _EXPECTED.get(record["kind"], ())
    rows = [f"<li>{escape(heading)}: {escape(_why(heading, record))}.</li>" for heading in empty if heading in expected]
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def _why(heading: str, record: dict[str, Any]) -> str:
    if heading == "Stacks" and isinstance(troubles := record["evidence"].get("stack_troubles"), list) and troubles:
        return "; ".join(map(str, troubles[:3]))
    return _WHY_MISSING[heading]


def _data(evidence: dict[str, Any]) -> str:
    rest = ev.rest(evidence)
    if not rest:
        return ""
    text = msgspec.json.format(msgspec.json.encode(rest), indent=2).decode(errors="replace")
    if len(text) > MAX_DATA_CHARS:
        text = f"{text[:MAX_DATA_CHARS]}\n… cut; all of it is in incident.json"
    return html_page.folded("Everything else that was measured", html_page.preformatted(text))


def _files(files: Sequence[str]) -> str:
    if not files:
        return ""
    links = "".join(f'<li><a href="{escape(_url(name))}">{escape(name)}</a></li>' for name in files[:MAX_FILES])
    more = (
        html_page.paragraph(f"{len(files) - MAX_FILES} more are in stacks/.", "soft") if len(files) > MAX_FILES else ""
    )
    title = f"{len(files)} file{'s' if len(files) != 1 else ''}, as they were taken"
    return html_page.folded(title, f"<ul>{links}</ul>") + more


def _url(name: str) -> str:
    """A relative link; `%`, `?`, `#` and `:` would change its meaning."""
    return "".join(f"%{ord(c):02X}" if c in '%?#:"<> ' else c for c in name)
