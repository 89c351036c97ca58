"""All results as tables: rates and medians for each launcher, each case, and the targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.gym.case import Decoy, Doubt, Fault
from benchmarks.gym.observation import Observation
from benchmarks.gym.score import DecoyScore, FaultScore, score_decoy, score_fault


@dataclass(frozen=True)
class Played:
    """A fault, what was seen of it, and its score."""

    fault: Fault
    seen: Observation
    score: FaultScore


@dataclass(frozen=True)
class PlayedDecoy:
    """The same for a decoy."""

    decoy: Decoy
    seen: Observation
    score: DecoyScore


def score_all(
    faults: Sequence[Fault], decoys: Sequence[Decoy], seen: Sequence[Observation]
) -> tuple[list[Played], list[PlayedDecoy]]:
    """Scores in the order of the tables; results of cases that are no longer there are left out."""
    played = [Played(f, s, score_fault(f, s)) for f in faults for s in seen if s.case == f.name]
    return played, [PlayedDecoy(d, s, score_decoy(d, s)) for d in decoys for s in seen if s.case == d.name]


def share(flags: Sequence[bool]) -> str:
    """So many of so many."""
    return f"{sum(flags)} of {len(flags)}" if flags else "–"


def middle(values: Sequence[float | None], digits: int = 1) -> str:
    """The median of those that are there."""
    there = [value for value in values if value is not None]
    return f"{median(there):.{digits}f}" if there else "–"


def as_markdown(played: Sequence[Played], decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """Everything that stands in docs/gym.md."""
    own = [p for p in played if p.seen.launcher == "guardrun"]
    parts = [
        "### All in all\n\n" + overall(played, decoys, launchers),
        "### guardrun's targets\n\n" + targets(own, decoys),
        "### Told and acted on, by class\n\n" + class_table(own),
        "### What patience costs: seconds to act, by class\n\n" + patience_table(own),
        "### Faults\n\n" + fault_table(played, launchers),
        "### Decoys\n\n" + decoy_table(decoys, launchers),
    ]
    return "\n".join(parts)


def as_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def overall(played: Sequence[Played], decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """One column for each launcher."""
    by = {name: [p.score for p in played if p.seen.launcher == name] for name in launchers}
    unharmed = {name: [d.score for d in decoys if d.seen.launcher == name] for name in launchers}

    def row(title: str, cell: dict[str, str]) -> list[str]:
        return [title, *(cell[name] for name in launchers)]

    rows = [
        row("faults found", {n: share([s.found for s in by[n]]) for n in launchers}),
        row("cause right", {n: share([s.cause_right for s in by[n]]) for n in launchers}),
        row("culprits right", {n: share([s.culprit_right for s in by[n]]) for n in launchers}),
        row("line named, where there is one", {n: share(_lines(n, played)) for n in launchers}),
        row("recovered, where a restart helps", {n: share(_recovered(by[n])) for n in launchers}),
        row("told, hangs found, median s", {n: middle(_verdicts(n, played, False)) for n in launchers}),
        row("told, crashes found, median s", {n: middle(_verdicts(n, played, True), 2) for n in launchers}),
        row("acted on, hangs, median s", {n: middle(_acted(n, played)) for n in launchers}),
        row("acting to the next first line, median s", {n: middle([s.restart_s for s in by[n]], 2) for n in launchers}),
        row("to the first new step, median s", {n: middle([s.recover_s for s in by[n]]) for n in launchers}),
        row("steps lost, median", {n: middle([s.steps_lost for s in by[n]], 0) for n in launchers}),
        row("runs that left processes", {n: share([bool(s.left) for s in by[n]]) for n in launchers}),
        row("decoys killed", {n: share([d.killed for d in unharmed[n]]) for n in launchers}),
        row("decoys called a hang", {n: share([bool(d.incidents) for d in unharmed[n]]) for n in launchers}),
    ]
    return as_table(["", *launchers], rows)


def _lines(launcher: str, played: Sequence[Played]) -> list[bool]:
    """Not found is not named."""
    return [bool(p.score.line_named) for p in played if p.seen.launcher == launcher and p.fault.has_line]


def _recovered(scores: Sequence[FaultScore]) -> list[bool]:
    return [score.recovered for score in scores if score.recovered is not None]


def _verdicts(launcher: str, played: Sequence[Played], crashes: bool) -> list[float | None]:
    return [
        p.score.verdict_s for p in played if p.seen.launcher == launcher and (p.fault.doubt is Doubt.CRASH) is crashes
    ]


def _acted(launcher: str, played: Sequence[Played]) -> list[float | None]:
    return [p.score.acted_s for p in played if p.seen.launcher == launcher and p.fault.doubt is not Doubt.CRASH]


def targets(played: Sequence[Played], decoys: Sequence[PlayedDecoy]) -> str:
    """Each target of guardrun's beside what was measured; misses marked."""
    rows = [
        _target("every fault found", [p.score.found for p in played]),
        _target("with the right cause", [p.score.cause_right for p in played]),
        _target("with the right culprits", [p.score.culprit_right for p in played]),
        _target("no decoy killed", [not d.score.killed for d in decoys if d.seen.launcher == "guardrun"]),
        _target("no decoy called a hang", [not d.score.incidents for d in decoys if d.seen.launcher == "guardrun"]),
        _target("nothing left running", [not p.score.left for p in played]),
    ]
    told = [p.score.verdict_s for p in played if p.score.verdict_s is not None]
    if told:
        middle_s = median(told)
        is_met = middle_s <= TOLD_MEDIAN_S
        rows.append([f"told: median ≤ {TOLD_MEDIAN_S:g} s", f"{middle_s:.1f} s of {len(told)}", _met(is_met)])
    rows += [row for title, wanted, late in _IN_TIME if (row := _in_time(title, wanted, late, played))]
    return as_table(["target", "measured", ""], rows)


TOLD_MEDIAN_S = 20.0


def _is_told_late(one: Played) -> bool:
    patience, told_s = one.seen.patience, one.score.verdict_s
    return patience is None or told_s is None or told_s > patience.told_within_s(one.fault.doubt)


def _is_acted_on_late(one: Played) -> bool:
    patience, acted_s = one.seen.patience, one.score.acted_s
    if one.fault.is_only_told:
        return False
    return patience is None or acted_s is None or acted_s > patience.acts_within_s(one.fault.doubt)


def _is_acted_on_badly(one: Played) -> bool:
    patience, acted_s = one.seen.patience, one.score.acted_s
    too_soon = patience is not None and acted_s is not None and patience.is_too_soon(one.fault.doubt, acted_s)
    return too_soon or _is_acted_on_late(one)


_IN_TIME: tuple[tuple[str, Callable[[Doubt], bool], Callable[[Played], bool]], ...] = (
    ("each told in its time", lambda doubt: True, _is_told_late),
    (f"a crash acted on: ≤ {Doubt.CRASH.limit_s:g} s", lambda doubt: doubt is Doubt.CRASH, _is_acted_on_late),
    (
        f"acted on, with proof: ≤ {Doubt.STANDSTILL.limit_s:g} s",
        lambda doubt: doubt in (Doubt.STOPPED, Doubt.MISMATCH, Doubt.STANDSTILL),
        _is_acted_on_late,
    ),
    (
        "acted on, without: when patience is over, not before",
        lambda doubt: doubt.needs_patience,
        _is_acted_on_badly,
    ),
)


def _in_time(
    title: str, is_wanted: Callable[[Doubt], bool], is_missed: Callable[[Played], bool], played: Sequence[Played]
) -> list[str] | None:
    """A row for those that have a time; None where there are none. Not found, or not acted on, is late."""
    own = [p for p in played if is_wanted(p.fault.doubt) and not p.fault.every_attempt]
    flags = [not is_missed(p) for p in own]
    return _target(title, flags) if flags else None


def _met(is_met: bool) -> str:
    return "met" if is_met else "**MISSED**"


def _target(title: str, flags: Sequence[bool]) -> list[str]:
    return [title, share(flags), _met(all(flags)) if flags else "not measured"]


def class_table(played: Sequence[Played]) -> str:
    """guardrun's two moments for each class of faults, as played. What comes again in each attempt has no times."""
    rows = []
    for doubt in Doubt:
        own = [p for p in played if p.fault.doubt is doubt and not p.fault.every_attempt]
        if own:
            told = [p.score.verdict_s for p in own]
            acted = [p.score.acted_s for p in own]
            digits = 2 if doubt is Doubt.CRASH else 1
            told_cells = [seconds_text(told, digits), _longest(told, digits)]
            acted_cells = [seconds_text(acted, digits), _longest(acted, digits)]
            rows.append([doubt.label, str(len(own)), *told_cells, *acted_cells, _why_acted(own[-1])])
    headings = ["class", "faults", "told, median", "longest", "acted on, median", "longest", "acted on by"]
    return as_table(headings, rows)


def _why_acted(one: Played) -> str:
    doubt, patience = one.fault.doubt, one.seen.patience
    if doubt is Doubt.CRASH:
        return "its end"
    if doubt is Doubt.PASSING:
        return "nothing: it ends by itself"
    if patience is None:
        return ""
    return f"{'patience' if doubt.needs_patience else 'proof'}, {patience.acts_s(doubt):g} s"


def patience_table(played: Sequence[Played]) -> str:
    """What is measured, and when the same class is acted on where nothing is scaled: by the policy's table."""
    rows = []
    for doubt in Doubt:
        own = [p for p in played if p.fault.doubt is doubt and not p.fault.every_attempt]
        patience = own[-1].seen.patience if own else None
        if patience is None or doubt is Doubt.PASSING:
            continue
        told_s = _median([p.score.verdict_s for p in own])
        acted_s = _median([p.score.acted_s for p in own])
        # What is not scaled takes as long as it took.
        full_s = patience.in_full().acts_s(doubt) if doubt.needs_patience else acted_s
        waits_s = None if full_s is None or told_s is None else max(0.0, full_s - told_s)
        scaled = f"{patience.acts_s(doubt):g} s" if doubt.needs_patience else "–"
        rows.append([doubt.label, _whole(told_s), scaled, _whole(acted_s), _whole(full_s), _whole(waits_s)])
    headings = ["class", "told", "patience as played", "acted on", "acted on without scaling", "of it after telling"]
    return as_table(headings, rows)


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"


def _longest(values: Sequence[float | None], digits: int) -> str:
    there = [value for value in values if value is not None]
    return f"{max(there):.{digits}f} s" if there else "–"


def fault_table(played: Sequence[Played], launchers: Sequence[str]) -> str:
    """A line for each fault; what falls short in words, for guardrun."""
    faults = list({p.fault.name: p.fault for p in played}.values())
    headings = ["fault", "what", "class", "guardrun: told", "acted on", "new step", "lost", "falls short"]
    others = [name for name in launchers if name != "guardrun"]
    headings += [f"{name}: noticed / new step" for name in others]
    rows = []
    for fault in faults:
        mine = [p for p in played if p.fault is fault and p.seen.launcher == "guardrun"]
        scores = [p.score for p in mine]
        short = [f"**{text}**" for text in dict.fromkeys(text for p in mine for text in misses(p))]
        digits = 2 if fault.doubt is Doubt.CRASH else 1
        row = [
            f"`{fault.name}`",
            f"{fault.what} ({fault.workload.value})",
            fault.doubt.label,
            seconds_text([score.verdict_s for score in scores], digits),
            seconds_text([score.acted_s for score in scores], digits),
            seconds_text([score.recover_s for score in scores]),
            middle([score.steps_lost for score in scores], 0),
            ", ".join(short) or ("" if mine else "not played"),
        ]
        by_other = [[p for p in played if p.fault is fault and p.seen.launcher == name] for name in others]
        rows.append(row + [_other(there) for there in by_other])
    return as_table(headings, rows)


def misses(played: Played) -> list[str]:
    """What falls short, in words."""
    if played.seen.trouble:
        return [played.seen.trouble]
    if not played.score.found:
        return [f"not found within {played.seen.cap_s:g} s"]
    return played.score.misses(played.fault, played.seen.patience)


def seconds_text(values: Sequence[float | None], digits: int = 1) -> str:
    text = middle(values, digits)
    return text if text == "–" else f"{text} s"


def _other(there: Sequence[Played]) -> str:
    """One of the other launchers, in a cell: when it noticed, and when training got further than before."""
    if not there:
        return "not played"
    lost = sum(not p.score.found for p in there)
    if lost == len(there):
        cap_s = max(p.seen.cap_s for p in there)
        ended = all(p.seen.returncode is not None for p in there)
        return "not noticed" if ended else f"not within {cap_s:g} s"
    noticed = seconds_text([p.score.verdict_s for p in there])
    again = [p for p in there if p.score.recovered]
    new = seconds_text([p.score.recover_s for p in again]) if again else "never" if there[0].fault.recovers else "–"
    return f"{noticed} / {new}" + (f" ({lost} of {len(there)} not noticed)" if lost else "")


def decoy_table(decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """A line for each decoy."""
    rows = []
    for decoy in {d.decoy.name: d.decoy for d in decoys}.values():
        cells = []
        for name in launchers:
            there = [d for d in decoys if d.decoy is decoy and d.seen.launcher == name]
            cells.append(decoy_cell(there))
        rows.append([f"`{decoy.name}`", f"{decoy.what} ({decoy.workload.value})", f"{decoy.seconds:g} s", *cells])
    return as_table(["decoy", "what", "lasts", *launchers], rows)


def decoy_cell(there: Sequence[PlayedDecoy]) -> str:
    """What was done to one decoy."""
    if not there:
        return "not played"
    bad = [d for d in there if not d.score.is_clean]
    if not bad:
        return "left alone"
    seen, score = bad[0].seen, bad[0].score
    what = "killed" if seen.attempts > 1 else "not ended" if seen.returncode is None else "not killed, but called"
    if not (score.killed or score.incidents):
        what = f"ended with {seen.returncode}" if seen.returncode else f"{score.left} left running"
    return f"**{what} {', '.join(score.incidents)}** ({len(bad)} of {len(there)})".replace(" **", "**")
