"""The emulated device's tables: each case beside torchrun, with what torch's watchdog says and after how long."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.gym.case import Doubt
from benchmarks.gym.emu.launchers import NCCL_TIMEOUT_S, WORDS, device_environment
from benchmarks.gym.observation import Observation
from benchmarks.gym.summary import (
    Played,
    PlayedDecoy,
    as_table,
    class_table,
    decoy_cell,
    misses,
    seconds_text,
    share,
    targets,
)
from guardrun.supervisor.engine.observation.frames import ranks_text


def as_markdown(played: Sequence[Played], decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """All that stands in docs/gym.md of it."""
    own = [p for p in played if p.seen.launcher == "guardrun"]
    parts = [
        scaling(own, decoys),
        "#### In short\n\n" + in_short(played, decoys, launchers),
        "#### guardrun's targets\n\n" + targets(own, decoys),
        "#### Told and acted on, by class\n\n" + class_table(own),
        "#### Faults\n\n" + fault_table(played, launchers),
        "#### Decoys\n\n" + decoy_table(decoys, launchers),
    ]
    return "\n".join(parts)


def scaling(own: Sequence[Played], decoys: Sequence[PlayedDecoy]) -> str:
    """How much shorter all was than in earnest."""
    seen = [p.seen for p in own] + [d.seen for d in decoys]
    scale = next((one.patience.scale for one in seen if one.patience is not None), 0.1)
    torchs = ", ".join(f"`{name}={value}`" for name, value in device_environment(scale).items() if name[:5] == "TORCH")
    return (
        f"Everything but `hang.tell_s`, `hang.floor_s` and the times with proof is {scale:g} of what it is by default: "
        f"guardrun's patience, the decoys (four minutes last {240 * scale:g} s, a first collective of 100 s "
        f"{100 * scale:g} s), and torch's own times: timeout {NCCL_TIMEOUT_S * scale:g} s in place of "
        f"{NCCL_TIMEOUT_S} s, {torchs}.\n"
    )


def in_short(played: Sequence[Played], decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """A column for each launcher."""
    rows = []
    for title, flags in {
        "faults noticed": {n: [p.score.found for p in played if p.seen.launcher == n] for n in launchers},
        "hangs noticed": {
            n: [p.score.found for p in played if p.seen.launcher == n and p.fault.doubt is not Doubt.CRASH]
            for n in launchers
        },
        "culprits right, or rightly nobody": {
            n: [p.score.culprit_right for p in played if p.seen.launcher == n] for n in launchers
        },
        "cause right": {n: [p.score.cause_right for p in played if p.seen.launcher == n] for n in launchers},
        "decoys harmed": {n: [not d.score.is_clean for d in decoys if d.seen.launcher == n] for n in launchers},
    }.items():
        rows.append([title, *(share(flags[name]) for name in launchers)])
    return as_table(["", *launchers], rows)


def fault_table(played: Sequence[Played], launchers: Sequence[str]) -> str:
    """A line for each fault."""
    headings = ["fault", "what", "class", "guardrun: cause", "of whom", "told", "acted on", "new step", "falls short"]
    headings += [f"{name}'s ranks say" for name in launchers if name != "guardrun"]
    rows = []
    for fault in {p.fault.name: p.fault for p in played}.values():
        mine = [p for p in played if p.fault is fault and p.seen.launcher == "guardrun"]
        scores = [p.score for p in mine]
        digits = 2 if fault.doubt is Doubt.CRASH else 1
        short = [f"**{text}**" for text in dict.fromkeys(text for p in mine for text in misses(p))]
        rows.append(
            [
                f"`{fault.name}`",
                f"{fault.what} ({fault.workload.value})",
                fault.doubt.label,
                ", ".join(dict.fromkeys(s.cause for s in scores if s.found)) or "–",
                ", ".join(dict.fromkeys(_whom(s.culprits) for s in scores if s.found)) or "–",
                seconds_text([s.verdict_s for s in scores], digits),
                "reported only" if fault.is_only_told else seconds_text([s.acted_s for s in scores], digits),
                seconds_text([s.recover_s for s in scores]),
                ", ".join(short) or ("" if mine else "not played"),
                *(
                    torchs_cell([p for p in played if p.fault is fault and p.seen.launcher == name])
                    for name in launchers
                    if name != "guardrun"
                ),
            ]
        )
    return as_table(headings, rows)


def _whom(culprits: Sequence[int]) -> str:
    return ranks_text(culprits) if culprits else "nobody"


def torchs_cell(there: Sequence[Played]) -> str:
    """`66.1 s: rank 0: timeout in ALLREDUCE`."""
    if not there:
        return "not played"
    one = there[0]
    if not one.score.found:
        return f"nothing within {one.seen.cap_s:g} s" if one.seen.returncode is None else "nothing"
    after = seconds_text([p.score.verdict_s for p in there])
    return f"{after}: {ranks_text(one.score.culprits)}: {words_of(one.seen)}"


def words_of(seen: Observation) -> str:
    """What it said first, in a few words; the words themselves are in the results file."""
    said = seen.told[0].summary
    for pattern, words in WORDS.items():
        if match := re.search(pattern, said):
            return words.format(**match.groupdict())
    return said


def decoy_table(decoys: Sequence[PlayedDecoy], launchers: Sequence[str]) -> str:
    """A line for each decoy; what guardrun reported meanwhile is no harm, and is told."""
    rows = []
    for decoy in {d.decoy.name: d.decoy for d in decoys}.values():
        cells = []
        for name in launchers:
            there = [d for d in decoys if d.decoy is decoy and d.seen.launcher == name]
            reported = list(dict.fromkeys(stall for d in there for stall in d.seen.stalls))
            cells.append(decoy_cell(there) + (", reported" if reported else ""))
        rows.append([f"`{decoy.name}`", f"{decoy.what} ({decoy.workload.value})", f"{decoy.seconds:g} s", *cells])
    return as_table(["decoy", "what", "lasts", *launchers], rows)
