"""The time around an incident, or of a whole run, as a page shows it: which window, which signs, what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.report.timeline.step_plot import lay_out_gauge, lay_out_plot, step_times, summary
from guardrun.supervisor.report.timeline.timeline import FrontPoint, Mark, Timeline, View
from guardrun.supervisor.report.timeline.timeline_strips import (
    MAX_EACH,
    MAX_THIN,
    Scale,
    Sign,
    lay_out_strips,
    lay_out_thin,
    legend,
    make_lines,
)

BEFORE_S = (20.0, 120.0)
"""At least and at most this much is shown of the time before the onset."""
AFTER_S = 600.0
MAX_CHANGES = 3
"""Of those that people have made by hand."""
MAX_SIGNS = 8
STEPS_BEFORE_S = 900.0
"""How far back the steps' times go."""


class Story(msgspec.Struct, kw_only=True):
    """What a page draws of a run's time. Seconds are the engine's."""

    view: View
    front: list[FrontPoint]
    front_from_s: float
    zero_s: float
    """What the ticks count from: the onset, or the run's beginning."""
    signs: list[Sign]
    gauges: dict[tuple[str, str], list[tuple[float, float]]] = {}
    """Per (part of a node, name) its readings, over the time of `front`."""


class RunIncident(NamedTuple):
    """An incident as a sign in a run's time; seconds are the engine's."""

    id: str
    cause: str
    onset_s: float
    recovered_s: float | None


def incident_story(
    timeline: Timeline, *, onset_s: float, detected_s: float, recovered_s: float | None, now_s: float | None = None
) -> Story:
    """The time around one incident."""
    last_s = timeline.last_s if now_s is None else now_s
    before_s = min(max(2 * (detected_s - onset_s), BEFORE_S[0]), BEFORE_S[1])
    until_s = min(max(detected_s, recovered_s or last_s), detected_s + AFTER_S)
    from_s = max(onset_s - before_s, 0.0)
    to_s = until_s + 0.04 * (until_s - from_s)
    view = timeline.view(from_s, to_s)
    signs = [Sign(onset_s, "began", "bad"), Sign(detected_s, "found", "bad")]
    signs += [Sign(recovered_s, "past it again", "good")] if recovered_s is not None else []
    signs += [Sign(a.started_s, f"attempt {a.number} started", "soft") for a in view.attempts if a.started_s > from_s]
    signs += [Sign(mark.at_s, f"saved {mark.text}", "soft") for mark in view.marks if _is_saved_before(mark, onset_s)][
        -1:
    ]
    signs += [Sign(mark.at_s, mark.text, "soft") for mark in view.marks if mark.kind == "changed"][-MAX_CHANGES:]
    front_from_s = max(onset_s - STEPS_BEFORE_S, 0.0)
    front = timeline.view(front_from_s, to_s).front
    if front:
        front_from_s = max(front_from_s, min(front[0].at_s, from_s))
    gauges = timeline.gauges(front_from_s, to_s)
    return Story(view=view, front=front, front_from_s=front_from_s, zero_s=onset_s, signs=signs, gauges=gauges)


def _is_saved_before(mark: Mark, onset_s: float) -> bool:
    return mark.kind == "saved" and mark.at_s <= onset_s


def run_story(timeline: Timeline, incidents: Sequence[RunIncident]) -> Story:
    """A whole run's time, its incidents marked."""
    view = timeline.view(0.0, timeline.last_s)
    signs: list[Sign] = []
    for number, incident in enumerate(incidents):
        # Each sign with words takes a line of its own.
        words = f"{incident.id} {incident.cause}" if number < MAX_SIGNS else ""
        signs.append(Sign(incident.onset_s, words, "bad"))
        if incident.recovered_s is not None:
            signs.append(Sign(incident.recovered_s, "", "good"))
    gauges = timeline.gauges(0.0, timeline.last_s)
    return Story(view=view, front=view.front, front_from_s=0.0, zero_s=0.0, signs=signs, gauges=gauges)


def lay_out_ranks(story: Story, culprits: Sequence[int]) -> dict[str, Any] | None:
    """Every rank's strip, the legend, and what is not shown; None where there are no ranks."""
    view = story.view
    if not view.rows:
        return None
    scale = Scale(view.from_s, view.to_s, story.zero_s)
    lines, left_out = make_lines(view, culprits)
    label = (
        f"Timeline of {len(view.rows)} rank{'s' if len(view.rows) != 1 else ''}, {duration(view.to_s - view.from_s)}"
    )
    notes = []
    if len(view.rows) > MAX_THIN:
        notes.append(f"The last {len(view.rows) - MAX_THIN} ranks are left out.")
    if view.known_from_s > view.from_s + 1.0:
        notes.append(f"Nothing is known of the first {duration(view.known_from_s - view.from_s)} of this window.")
    return {
        "chart": lay_out_strips(lines, scale, story.signs, label),
        "legend": legend(lines),
        "left_out": left_out,
        "thin": lay_out_thin(view, scale) if len(view.rows) > MAX_EACH else None,
        "notes": notes,
    }


def lay_out_steps(story: Story) -> list[tuple[str, dict[str, Any] | None]]:
    """Seconds a step, and below it, on the same axis, what a node's parts showed: each in words and as a drawing."""
    series = step_times(story.front)
    scale = Scale(story.front_from_s, story.view.to_s, story.zero_s)
    signs = [sign for sign in story.signs if sign.kind != "soft"]
    plot = [(summary(series), lay_out_plot(series, scale, signs))] if len(series) > 1 else []
    return [*plot, *(lay_out_gauge(key, points, scale, signs) for key, points in story.gauges.items())]
