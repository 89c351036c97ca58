"""report.html: an incident for a person, in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.core.folding import fold, short_path
from guardrun.supervisor.core.frames import is_users_file
from guardrun.supervisor.core.grouping import GroupFrame, StackGroup, frame_words, group_stacks
from guardrun.supervisor.core.stacks import MAIN, Stack
from guardrun.supervisor.render import evidence as ev
from guardrun.supervisor.render import page
from guardrun.supervisor.render.words import duration, parse_iso_time

MAX_GROUPS = 60
"""Beyond it the page would be slow, and the files are there."""
MAX_DATA_CHARS = 200_000

_ACTIONS = {
    "none": "Nothing was changed.",
    "restart": "All ranks were stopped and started again, {from_where}.",
    "isolate_node": "The ranks were started again without the node to blame, {from_where}.",
    "give_up": "The run was ended.",
}
_ACTION_TAGS = {
    "none": ("watched", ""),
    "restart": ("restarted", "warn"),
    "isolate_node": ("node isolated", "warn"),
    "give_up": ("gave up", "bad"),
}


def report_html(record: dict[str, Any], stacks: Sequence[Stack], files: Sequence[str] = ()) -> str:
    """The page for an incident.json, with the stacks that were taken and the names of their files (relative)."""
    evidence = record["evidence"]
    culprits = [culprit["rank"] for culprit in record["culprits"]]
    title = f"{record['kind']}: {record['cause']} · incident {record['id']} · {record['run_id']}"
    return page.page(
        title,
        [
            page.paragraph(f"guardrun · run {record['run_id']} · incident {record['id']}", "where"),
            f"<h1>{html.escape(record['summary'])}</h1>",
            page.tags(_tags(record)),
            page.section("Verdict", page.facts(_facts(record))),
            page.section("What was done, and what to do", page.paragraph(_done(record)), _advice(record)),
            _ranks(evidence, culprits),
            _tracebacks(evidence),
            _stacks(list(stacks) or ev.evidence_stacks(evidence), culprits),
            _skipped(evidence),
            _data(evidence),
            _files(files),
            "<footer>Written by guardrun; the same as data is in "
            '<a href="incident.json">incident.json</a>. All times are UTC.</footer>',
        ],
    )


def plain_html(record: dict[str, Any], trouble: str) -> str:
    """The sentence alone, and why there is no more."""
    title = f"{record['kind']}: {record['cause']} · incident {record['id']} · {record['run_id']}"
    return page.page(
        title,
        [
            f"<h1>{html.escape(record['summary'])}</h1>",
            page.section("The rest of this page could not be made", page.preformatted(trouble)),
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


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    onset_s, detected_s = parse_iso_time(record["onset"]), parse_iso_time(record["detected"])
    why_nobody = record["evidence"].get("why_no_culprit")
    culprits = "<br>".join(_culprit(culprit) for culprit in record["culprits"])
    if not culprits:
        culprits = html.escape(f"none named{f': {why_nobody}' if isinstance(why_nobody, str) else ''}")
    recovered = ""
    if record["recovered"]:
        after_s = parse_iso_time(record["recovered"]) - detected_s
        recovered = f"{_time(record['recovered'])}, {duration(max(after_s, 0))} after it was detected"
    resumed = record["resumed_from"]
    return [
        ("Cause", f"{page.code(record['kind'])} / {page.code(record['cause'])}"),
        ("Culprits", culprits),
        ("Began", _time(record["onset"])),
        ("Detected", f"{_time(record['detected'])}, {duration(max(detected_s - onset_s, 0))} later"),
        ("Step", "" if record["step"] is None else str(record["step"])),
        ("Attempt", str(record["attempt"])),
        ("Resumed from", f"step {resumed['step']}, {page.code(resumed['path'])}" if resumed else ""),
        ("Recovered", recovered or ("" if record["action"] == "give_up" else "not yet when this was written")),
    ]


def _culprit(culprit: dict[str, Any]) -> str:
    gpu = "" if culprit["gpu"] is None else f", GPU {culprit['gpu']}"
    words = f"rank {culprit['rank']} (local rank {culprit['local_rank']}{gpu}) on {culprit['node']}"
    return html.escape(f"{words}, pid {culprit['pid']}")


def _time(iso: str) -> str:
    day, _, clock = iso.partition("T")
    return f'<time datetime="{html.escape(iso)}">{html.escape(day)} {html.escape(clock.rstrip("Z"))}</time>'


def _done(record: dict[str, Any]) -> str:
    resumed = record["resumed_from"]
    from_where = f"from the checkpoint of step {resumed['step']}" if resumed else "from the beginning"
    return _ACTIONS.get(str(record["action"]), "").format(from_where=from_where)


def _advice(record: dict[str, Any]) -> str:
    return "".join(page.paragraph(part) for part in record["advice"].split("\n\n"))


def _ranks(evidence: dict[str, Any], culprits: list[int]) -> str:
    rows = ev.rank_rows(evidence, culprits)
    order = ("Does", *(heading for heading, _ in ev.COLUMNS))
    headings = [heading for heading in order if any(heading in row.cells for row in rows)]
    cells = [
        ("culprit" if row.is_culprit else "", [row.rank_words, *(row.cells.get(heading, "") for heading in headings)])
        for row in rows
    ]
    return page.section("Each rank", page.table(["Rank", *headings], cells, wide=("Does", "Where", "Why")))


def _tracebacks(evidence: dict[str, Any]) -> str:
    parts = []
    for heading, text in ev.tracebacks(evidence):
        parts += [page.paragraph(heading, "soft"), page.preformatted(text)]
    return page.section("Traceback" if len(parts) <= 2 else "Tracebacks", *parts)


def _stacks(stacks: list[Stack], culprits: list[int]) -> str:
    groups = group_stacks(stacks, culprits)
    main_groups = sum(group.kind == MAIN for group in groups)
    parts = [
        page.folded(
            _group_title(group),
            _group_body(group),
            # The odd ones out are what one came for; of one group alone nothing is odd.
            is_open=group.kind == MAIN and (index == 0 or index < main_groups - 1) and index < 4,
        )
        for index, group in enumerate(groups[:MAX_GROUPS])
    ]
    if len(groups) > MAX_GROUPS:
        parts.append(page.paragraph(f"{len(groups) - MAX_GROUPS} more are in stacks/", "soft"))
    return page.section("Stacks", *parts)


def _group_title(group: StackGroup) -> str:
    frame = next((f for f in group.frames if is_users_file(f.file)), group.frames[0] if group.frames else None)
    where = f' <span class="soft">in {html.escape(frame_words(frame))}</span>' if frame else ""
    note = f' <span class="soft">– {html.escape(group.note)}</span>' if group.note else ""
    gil = ' <span class="soft">– holds the GIL</span>' if group.owns_gil else ""
    return f"<strong>{html.escape(group.title())}</strong>{where}{note}{gil}"


def _group_body(group: StackGroup) -> str:
    if not group.frames:
        return page.paragraph("No Python frames.", "soft")
    items = []
    for part in fold(group.frames):
        if part.label:
            inner = "".join(f"<li>{_frame_html(frame)}</li>" for frame in part.frames)
            items.append(f"<li><details><summary>{html.escape(part.label)}</summary><ol>{inner}</ol></details></li>")
        else:
            items += [f"<li>{_frame_html(frame)}</li>" for frame in part.frames]
    return f'<ol class="stack">{"".join(items)}</ol>'


def _frame_html(frame: GroupFrame) -> str:
    kind = "mine" if is_users_file(frame.file) else ""
    where = html.escape(f"{short_path(frame.file)}:{frame.line_words}")
    return (
        f'<code class="{kind}" title="{html.escape(frame.file)}">{html.escape(frame.function)} '
        f'<span class="file">{where}</span></code>'
    )


def _skipped(evidence: dict[str, Any]) -> str:
    rows = [
        ("", [str(item.get("path", "")), str(item.get("reason", ""))])
        for item in ev.entries(evidence, "skipped_checkpoints")
    ]
    return page.section("Checkpoints that were not taken", page.table(["Path", "Reason"], rows, ("Path", "Reason")))


def _data(evidence: dict[str, Any]) -> str:
    rest = ev.rest(evidence)
    if not rest:
        return ""
    text = msgspec.json.format(msgspec.json.encode(rest), indent=2).decode(errors="replace")
    if len(text) > MAX_DATA_CHARS:
        text = f"{text[:MAX_DATA_CHARS]}\n… cut; all of it is in incident.json"
    return page.section("Evidence", page.folded("Everything else that was measured", page.preformatted(text)))


def _files(files: Sequence[str]) -> str:
    links = "".join(f'<li><a href="{html.escape(_url(name))}">{html.escape(name)}</a></li>' for name in files[:500])
    more = page.paragraph(f"{len(files) - 500} more are in stacks/", "soft") if len(files) > 500 else ""
    title = f"{len(files)} file{'s' if len(files) != 1 else ''}, as they were taken"
    return page.section("Raw stacks", page.folded(title, f"<ul>{links}</ul>"), more) if links else ""


def _url(name: str) -> str:
    """A relative link; `%`, `?`, `#` and `:` would change its meaning."""
    return "".join(f"%{ord(c):02X}" if c in '%?#:"<> ' else c for c in name)
