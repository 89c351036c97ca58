"""All results as tables: rates and medians for each launcher, each case, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
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
    parts = [
        "### All in all\n\n" + overall(played, decoys, launchers),
        "### guardrun's targets\n\n" + targets([p for p in played if p.seen.launcher == "guardrun"], decoys),
        "### Faults\n\n" + fault_table(played, launchers),
        "### Decoys\n\n" + decoy_table(decoys, launchers),
    ]
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
        row("verdict, hangs found, median s", {n: middle(_verdicts(n, played, False)) for n in launchers}),
        row("verdict, crashes found, median s", {n: middle(_verdicts(n, played, True), 2) for n in launchers}),
        row(
            "verdict to the next first line, median s", {n: middle([s.restart_s for s in by[n]], 2) for n in launchers}
        ),
        row("to the first new step, median s", {n: middle([s.recover_s for s in by[n]]) for n in launchers}),
        row("steps lost, median", {n: middle([s.steps_lost for s in by[n]], 0) for n in launchers}),
        row("runs that left processes", {n: share([bool(s.left) for s in by[n]]) for n in launchers}),
        row("decoys killed", {n: share([d.killed for d in unharmed[n]]) for n in launchers}),
        row("decoys called a hang", {n: share([bool(d.incidents) for d in unharmed[n]]) for n in launchers}),
    ]
    return _table(["", *launchers], rows)


def _lines(launcher: str, played: Sequence[Played]) -> list[bool]:
    """Not found is not named."""
    return [bool(p.score.line_named) for p in played if p.seen.launcher == launcher and p.fault.has_line]


def _recovered(scores: Sequence[FaultScore]) -> list[bool]:
    return [score.recovered for score in scores if score.recovered is not None]


def _verdicts(launcher: str, played: Sequence[Played], crashes: bool) -> list[float | None]:
    return [
        p.score.verdict_s for p in played if p.seen.launcher == launcher and (p.fault.doubt is Doubt.CRASH) is crashes
    ]


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
    for doubt in Doubt:
        times = [p.score.verdict_s for p in played if p.fault.doubt is doubt and p.score.verdict_s is not None]
        missed = sum(not p.score.found for p in played if p.fault.doubt is doubt and not p.fault.every_attempt)
        if times or missed:
            met = not missed and max(times) <= doubt.limit_s
            late = sum(time > doubt.limit_s for time in times)
            told = f"median {median(times):.1f} s, longest {max(times):.1f} s" if times else "none found"
            told += f"; {late} of {len(times)} later" if late else ""
            told += f"; {missed} not found" if missed else ""
            title = f"verdict where there is {_WORDS[doubt]}: ≤ {doubt.limit_s:g} s"
            rows.append([title, told, "met" if met else "**MISSED**"])
    return _table(["target", "measured", ""], rows)


_WORDS = {
    Doubt.CRASH: "a crash",
    Doubt.PROOF: "proof",
    Doubt.IDLE: "an idle rank",
    Doubt.SILENT: "silent data, a held GIL, or nobody who waits",
    Doubt.SPINNING: "a rank that spins",
}


def _target(title: str, flags: Sequence[bool]) -> list[str]:
    return [title, share(flags), "met" if flags and all(flags) else "**MISSED**" if flags else "not measured"]


def fault_table(played: Sequence[Played], launchers: Sequence[str]) -> str:
    """A line for each fault; what falls short in words, for guardrun."""
    faults = list({p.fault.name: p.fault for p in played}.values())
    headings = ["fault", "what", "limit", "guardrun: verdict", "new step", "lost", "falls short"]
    others = [name for name in launchers if name != "guardrun"]
    headings += [f"{name}: noticed / new step" for name in others]
    rows = []
    for fault in faults:
        mine = [p for p in played if p.fault is fault and p.seen.launcher == "guardrun"]
        scores = [p.score for p in mine]
        short = [f"**{text}**" for text in dict.fromkeys(text for p in mine for text in _misses(p))]
        row = [
            f"`{fault.name}`",
            f"{fault.what} ({fault.workload.value})",
            f"{fault.doubt.limit_s:g} s",
            _seconds([score.verdict_s for score in scores], 2 if fault.doubt is Doubt.CRASH else 1),
            _seconds([score.recover_s for score in scores]),
            middle([score.steps_lost for score in scores], 0),
            ", ".join(short) or ("" if mine else "not played"),
        ]
        by_other = [[p for p in played if p.fault is fault and p.seen.launcher == name] for name in others]
        rows.append(row + [_other(there) for there in by_other])
    return _table(headings, rows)


def _misses(played: Played) -> list[str]:
    if played.seen.trouble:
        return [played.seen.trouble]
    if not played.score.found:
        return [f"not found within {played.seen.cap_s:g} s"]
    return played.score.misses(played.fault)


def _seconds(values: Sequence[float | None], digits: int = 1) -> str:
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
    noticed = _seconds([p.score.verdict_s for p in there])
    again = [p for p in there if p.score.recovered]
    new = _seconds([p.score.recover_s for p in again]) if again else "never" if there[0].fault.recovers else "–"
    return f"{noticed} / {new}" + (f" ({lost} of {len(there)} not noticed)" if lost else "")


def decoy_table(decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """A line for each decoy."""
    rows = []
    for decoy in {d.decoy.name: d.decoy for d in decoys}.values():
        cells = []
        for name in launchers:
            there = [d for d in decoys if d.decoy is decoy and d.seen.launcher == name]
            cells.append(_decoy_cell(there))
        rows.append([f"`{decoy.name}`", f"{decoy.what} ({decoy.workload.value})", f"{decoy.seconds:g} s", *cells])
    return _table(["decoy", "what", "lasts", *launchers], rows)


def _decoy_cell(there: Sequence[PlayedDecoy]) -> str:
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
