"""RUN/report.html: a whole run for a person, in one file that links to its incidents' own pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements import html_page, svg
from guardrun.supervisor.report.elements.quantities import duration, escape, place_words
from guardrun.supervisor.report.timeline.story import Story, steps_html, strips_html

MAX_ROWS = 500
USES = {
    "training": "getting further",
    "detecting": "from the last progress to the verdict",
    "stopping": "ending what was left of an attempt",
    "starting": "from then to the first progress",
    "redoing": "repeating steps that an earlier attempt had done",
    "other": "frozen, not running, clearing up",
}
"""Where time goes: what summary.json calls it, and what it is."""


def run_html(data: dict[str, Any], story: Story | None) -> str:
    """The page for what `guardctl report --json` says."""
    incidents: list[dict[str, Any]] = data["incidents"]
    culprits = sorted({rank for record in incidents for rank in ev.culprit_ranks(record)})
    return html_page.page(
        f"run {data['run_id']}: {data['outcome'] or data['state']}",
        [
            html_page.paragraph(f"guardrun · run {data['run_id']} on {_place(data)}", "where"),
            f"<h1>{escape(headline(data))}</h1>",
            html_page.tags(_tags(data)),
            html_page.guarded_plain(lambda: _figures(data)),
            html_page.guarded("Incidents", lambda: _incidents(incidents)),
            html_page.guarded("Where the time went", lambda: _uses(data)),
            html_page.guarded("What every rank did", lambda: strips_html(story, culprits) if story else ""),
            html_page.guarded("Time a step", lambda: steps_html(story) if story else ""),
            html_page.guarded("Attempts", lambda: _attempts(data["attempts"])),
            html_page.guarded("The run", lambda: html_page.facts(_facts(data))),
            html_page.guarded("What is missing", lambda: _missing(data, story)),
            "<footer>Written by guardctl report. All times are UTC; those of the drawings count from the run's "
            "beginning.</footer>",
        ],
    )


def headline(data: dict[str, Any]) -> str:
    """The run in one sentence."""
    outcome = data["outcome"]
    states = {
        "finished": "Training ended well",
        "failed": "Training failed",
        "gave_up": "guardrun gave up",
        "interrupted": "Training was interrupted",
        "preempted": "The job was ended by its scheduler",
    }
    words = states.get(str(outcome), "Training goes on" if data["is_alive"] else "Training has not come to its end")
    step = f" at step {data['last_step']}" if data["last_step"] is not None else ""
    count, restarts = len(data["incidents"]), data["restarts"] or 0
    many = "no incident" if not count else f"{count} incident{'s' if count != 1 else ''}"
    again = f" and {restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
    reason = f": {data['reason']}" if data["reason"] and outcome not in (None, "finished") else ""
    return f"{words}{step} after {duration(data['wall_s'] or 0.0)}, with {many}{again}{reason}."


def _tags(data: dict[str, Any]) -> list[tuple[str, str]]:
    outcome = data["outcome"] or data["state"]
    kind = {"finished": "good", "failed": "bad", "gave_up": "bad", "unfinished": "bad"}.get(outcome, "warn")
    code = data["exit_code"]
    return [(outcome.replace("_", " "), kind), ("" if code is None else f"exit code {code}", "")]


def _figures(data: dict[str, Any]) -> str:
    cards = [
        ("goodput", "" if data["goodput"] is None else f"{data['goodput']:.1%}"),
        ("in all", "" if data["wall_s"] is None else duration(data["wall_s"])),
        ("lost to trouble", duration(data["trouble_s"]) if data["trouble_s"] is not None else ""),
        ("steps done again", "" if data["steps_redone"] is None else str(data["steps_redone"])),
    ]
    return html_page.figures([card for card in cards if card[1]])


def _incidents(incidents: list[dict[str, Any]]) -> str:
    rows = []
    for record in incidents[:MAX_ROWS]:
        name = escape(f"{record.get('id')} {record.get('cause')}")
        link = record.get("page")
        title = f'<a href="{escape(quote(link))}">{name}</a>' if isinstance(link, str) and link else name
        recovered = "recovered" if record.get("recovered") else "not recovered"
        facts = [
            str(record.get("onset") or "")[:19].replace("T", " "),
            f"step {record['step']}" if record.get("step") is not None else "",
            str(record.get("action") or "").replace("_", " "),
            recovered,
        ]
        soft = escape(" · ".join(fact for fact in facts if fact))
        summary = escape(str(record.get("summary") or ""))
        rows.append(f'<li><strong>{title}</strong> <span class="soft">{soft}</span><br>{summary}</li>')
    more = html_page.paragraph(f"{len(incidents) - MAX_ROWS} more are in incidents/.", "soft")
    if not rows:
        return html_page.paragraph("None.")
    return f'<ul class="plain">{"".join(rows)}</ul>' + (more if len(incidents) > MAX_ROWS else "")


def _uses(data: dict[str, Any]) -> str:
    uses: dict[str, float] = data["uses_s"]
    whole_s = sum(uses.values())
    if whole_s <= 0:
        return ""
    bar, left = "", 0.0
    for use, seconds in uses.items():
        share = 100 * seconds / whole_s
        label = f"{use}: {duration(seconds)}"
        bar += svg.rect(label, x=svg.percent(left), y=0, width=svg.percent(share), height=22, class_=f"u-{use}")
        left += share
    described = ", ".join(f"{use} {seconds / whole_s:.0%}" for use, seconds in uses.items() if seconds > 0)
    drawing = svg.picture(bar, f"Share of the time: {described}", width="100%", height=22, class_="bar")
    rows = [
        ("", [use, USES.get(use, ""), duration(seconds), f"{seconds / whole_s:.1%}"]) for use, seconds in uses.items()
    ]
    items = "".join(f"<li>{_swatch(use)} {escape(use)}</li>" for use, seconds in uses.items() if seconds > 0)
    return f'{drawing}<ul class="legend">{items}</ul>' + html_page.table(
        ["Use", "What that is", "Time", "Share"], rows, wide=("What that is",)
    )


def _swatch(use: str) -> str:
    bar = svg.rect(width="100%", height="100%", class_=f"u-{use}")
    return svg.tag("svg", bar, width=18, height=10, aria_hidden="true")


def _attempts(attempts: list[dict[str, Any]]) -> str:
    rows = []
    for attempt in attempts[:MAX_ROWS]:
        resumed = attempt.get("resumed_from")
        began_s, ended_s = attempt.get("started_s"), attempt.get("ended_s")
        took = duration(max(ended_s - began_s, 0.0)) if began_s is not None and ended_s is not None else ""
        steps = [attempt.get("first_step"), attempt.get("last_step")]
        rows.append(
            (
                "",
                [
                    str(attempt.get("attempt", "")),
                    str(attempt.get("started") or "")[:19].replace("T", " "),
                    took,
                    "–".join(str(step) for step in steps if step is not None),
                    f"step {resumed['step']}" if resumed else "the beginning",
                    str(attempt.get("outcome") or "").replace("_", " "),
                    str(attempt.get("incident") or ""),
                ],
            )
        )
    headings = ["Attempt", "Started", "Took", "Steps", "From", "Ended by", "Incident"]
    return html_page.table(headings, rows, wide=("Ended by",))


def _place(data: dict[str, Any]) -> str:
    return place_words(data["node"], data.get("nodes") or [])


def _facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("Run", data["run_id"]),
        ("Node" if len(data.get("nodes") or []) < 2 else "Nodes", _place(data)),
        ("Ranks", str(data["world_size"] or "")),
        ("Command", " ".join(data["command"])),
        ("Folder", data["run_dir"]),
        ("Started", str(data["started"] or "")),
        ("Ended", str(data["ended"] or "")),
    ]
    return [(term, escape(text)) for term, text in facts]


def _missing(data: dict[str, Any], story: Story | None) -> str:
    told = [str(trouble) for trouble in data["troubles"]]
    if story is None or not story.view.rows:
        told.append("no timeline: the journal holds no attempt that can be read")
    elif story.view.known_from_s > 1.0:
        told.append(f"the first {duration(story.view.known_from_s)}: their part of the journal is not kept")
    items = "".join(f"<li>{escape(text)}.</li>" for text in told[:20])
    return f"<ul>{items}</ul>" if items else ""
