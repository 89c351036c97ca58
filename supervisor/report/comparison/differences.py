"""What differs between two runs, most telling first: of what may have changed the result. Pure.

The order is KINDS': what a person would look for first. Within a kind things stand in the order of their rules.
What one of both does not know is no difference: it is told apart, as not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from statistics import median

import msgspec

from guardrun.supervisor.report.comparison.arguments import ABSENT, diff_arguments, split_script
from guardrun.supervisor.report.comparison.curve_words import rate_words, value_words
from guardrun.supervisor.report.comparison.curves import CurveComparison, compare_rates, compare_values
from guardrun.supervisor.report.comparison.environment_differences import Found, compare_environments
from guardrun.supervisor.report.comparison.run_facts import CURVES, Curve, RunFacts, Trouble

KINDS = {
    "code": "code",
    "arguments": "arguments",
    "seed": "seed",
    "start": "beginning",
    "data": "data",
    "learning_rate": "learning rate",
    "left_out": "steps left out",
    "size": "ranks and devices",
    "precision": "precision",
    "packages": "versions",
    "guards": "guardrun's guards",
    "restarts": "restarts",
    "variables": "variables",
    "length": "length",
    "place": "place",
    "settings": "guardrun's settings",
    "throughput": "throughput",
}
"""Most telling first, with their words."""
ACTING = ("guards.", "checkpoint.resume", "checkpoint.exact_data", "gc.")
"""Settings of guardrun's that change what is trained, or when."""
THROUGHPUT_SHARE = 0.05
MAX_INCIDENTS = 4


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same."""

    kind: str
    """Of KINDS."""
    what: str
    a: str
    b: str
    note: str = ""
    """What else there is to say of it."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs side by side."""

    outcome: list[str]
    """What came out: a sentence, without its full stop, for the loss and for the norm of gradients."""
    differences: list[Difference]
    """Most telling first."""
    same: list[str]
    unknown: list[str]
    """What one of both, or neither, has recorded."""
    curves: dict[str, CurveComparison]


def compare_runs(a: RunFacts, b: RunFacts) -> Comparison:
    """Everything. a and b are two runs; that one of them has no end, or no record of something, is no error."""
    found = Found()
    curves = _curves(a, b)
    for rule in RULES:
        rule(a, b, found)
    _rate(a, b, curves, found)
    order = list(KINDS)
    differences = [
        Difference(kind=kind, what=what, a=one, b=other, note=note)
        for kind, what, one, other, note in found.differences
    ]
    unknown = [*found.unknown, *_unknown_curves(a, b, curves)]
    return Comparison(
        outcome=[f"{CURVES[name]}: {value_words(one)}" for name, one in curves.items() if name != "learning_rate"],
        differences=sorted(differences, key=lambda one: order.index(one.kind)),
        same=found.same,
        unknown=list(dict.fromkeys(unknown)),
        curves=curves,
    )


# Curves -------------------------------------------------------------------------------------------------------------


def _curves(a: RunFacts, b: RunFacts) -> dict[str, CurveComparison]:
    found = {}
    for name in CURVES:
        compare = compare_rates if name == "learning_rate" else compare_values
        one = compare(a.curves.get(name, Curve([])), b.curves.get(name, Curve([])))
        if one is not None:
            found[name] = one
    return found


def _unknown_curves(a: RunFacts, b: RunFacts, curves: Mapping[str, CurveComparison]) -> list[str]:
    said = []
    for name, words in CURVES.items():
        lacks = [run.run_id for run in (a, b) if not (curve := run.curves.get(name)) or not curve.points]
        if len(lacks) == 1:
            said.append(f"{words}: {lacks[0]} has none")
        elif lacks:
            said.append(f"{words}: neither has one")
        elif name not in curves:
            said.append(f"{words}: there is no step that both have come to")
    return said


def _rate(a: RunFacts, b: RunFacts, curves: Mapping[str, CurveComparison], found: Found) -> None:
    one = curves.get("learning_rate")
    if one is None:
        return
    if one.differs_from is None:
        is_one = one.first_step == one.last_step
        steps = f"at step {one.last_step}" if is_one else f"from step {one.first_step} to {one.last_step}"
        found.same.append(f"the learning rate, {steps}")
        return
    at_a, at_b = (_at(run.curves["learning_rate"], one.differs_from) for run in (a, b))
    found.add("learning_rate", f"from step {one.differs_from} on", at_a, at_b, rate_words(one))


def _at(curve: Curve, step: int) -> str:
    """A curve's value at a step, or the last one before it."""
    known = [value for at, value in curve.points if at <= step]
    return f"{known[-1] if known else curve.points[0][1]:.6g}"


# Rules --------------------------------------------------------------------------------------------------------------


def _arguments(a: RunFacts, b: RunFacts, found: Found) -> None:
    if not a.script or not b.script:
        found.unknown.append("what each rank runs")
        return
    (program_a, own_a), (program_b, own_b) = split_script(a.script), split_script(b.script)
    differing = diff_arguments(own_a, own_b)
    for name, one, other in differing:
        found.add("arguments", name, one, other)
    if own_a == own_b:
        found.same.append("the script's arguments" if own_a else "the script's arguments (there are none)")
    elif not differing:
        found.add("arguments", "order of the arguments", " ".join(own_a), " ".join(own_b))
    if program_a[1:] != program_b[1:]:
        # Where the contents are known, they tell whether it is another script.
        is_read = all(run.environment is not None and run.environment.files for run in (a, b))
        names = {PurePath(program[-1]).name for program in (program_a, program_b)}
        kind = "place" if is_read and len(names) == 1 else "code"
        found.add(kind, "script", *_without_common_flags(program_a[1:], program_b[1:]))
    elif program_a[:1] != program_b[:1]:
        found.add("place", "interpreter", program_a[0], program_b[0])


def _without_common_flags(a: list[str], b: list[str]) -> tuple[str, str]:
    """What two interpreters are given, without the flags that both begin with, such as guardrun's own `-u`."""
    place = 0
    while place < min(len(a), len(b)) - 1 and a[place] == b[place] and a[place] not in ("-m", "-c"):
        place += 1
    return " ".join(a[place:]), " ".join(b[place:])


def _start(a: RunFacts, b: RunFacts, found: Found) -> None:
    if a.first is None or b.first is None:
        found.unknown.append(f"how {' and '.join(run.run_id for run in (a, b) if run.first is None)} began")
        return
    one, other = a.first.resumed_from, b.first.resumed_from
    if (one is None) != (other is None) or (one and other and (one.path, one.step) != (other.path, other.step)):
        words = [f"{from_.path} (step {from_.step})" if from_ else "the beginning" for from_ in (one, other)]
        found.add("start", "checkpoint", *words)
    else:
        found.same.append(f"they began from {one.path}" if one else "they began from the beginning")


def _data(a: RunFacts, b: RunFacts, found: Found) -> None:
    both = a.orders.keys() & b.orders.keys()
    if not both:
        lacking = [run.run_id for run in (a, b) if not run.orders]
        if lacking:
            who = "neither" if len(lacking) == 2 else lacking[0]
            found.unknown.append(f"which samples were trained on, and in which order: {who} has told it")
        else:
            found.unknown.append("which samples were trained on: there is no pass that both have told")
        return
    compared = {key: (a.orders[key], b.orders[key]) for key in sorted(both, key=lambda key: (key[2], key[1], key[0]))}
    lengths = [(key, one, other) for key, (one, other) in compared.items() if one.length != other.length]
    if lengths and min(lengths[0][1].length, lengths[0][2].length) >= 0:
        (_, loader, _), one, other = lengths[0]
        found.add("data", f"batches of a pass over loader {loader}", str(one.length), str(other.length))
    differing = [
        key for key, (one, other) in compared.items() if (one.batches, one.order) != (other.batches, other.order)
    ]
    if differing:
        rank, loader, turn = differing[0]
        one, other = compared[differing[0]]
        ranks = len({key[0] for key in differing})
        what = f"samples of the first {min(one.batches, other.batches)} batches of pass {turn} over loader {loader}"
        note = f"on {ranks} of the {len({key[0] for key in both})} ranks that both tell of"
        if a.first and b.first and a.first.world_size != b.first.world_size:
            note += "; the ranks share them otherwise, being not as many"
        found.add("data", what, f"{one.order} (rank {rank})", f"{other.order} (rank {rank})", note)
    else:
        turns = max(key[2] for key in both) + 1
        batches = min(one.batches for one, _ in compared.values())
        passes = "pass" if turns == 1 else f"{turns} passes"
        found.same.append(f"the samples of the first {batches} batches of the first {passes}, in order")


def _left_out(a: RunFacts, b: RunFacts, found: Found) -> None:
    if a.left_out != b.left_out:
        found.add("left_out", "by guardrun, as not finite", str(a.left_out), str(b.left_out))
    if a.skipped != b.skipped:
        found.add("left_out", "by a GradScaler", str(a.skipped), str(b.skipped))


def _size(a: RunFacts, b: RunFacts, found: Found) -> None:
    if a.first is None or b.first is None:
        return
    if a.first.world_size != b.first.world_size:
        note = "unless the script divides it, a batch of all ranks together is another size"
        found.add("size", "world size", str(a.first.world_size), str(b.first.world_size), note)
    else:
        found.same.append(f"the world size ({a.first.world_size})")
    if len(a.first.nodes) != len(b.first.nodes):
        found.add("size", "nodes", str(len(a.first.nodes)), str(len(b.first.nodes)))
    for run in (a, b):
        sizes = list(dict.fromkeys(attempt.world_size for attempt in run.attempts))
        if len(sizes) > 1:
            words = " → ".join(map(str, sizes))
            one, other = (words, "one size") if run is a else ("one size", words)
            found.add("size", f"world size within {run.run_id}", one, other)


def _restarts(a: RunFacts, b: RunFacts, found: Found) -> None:
    for what, one, other in (
        ("attempts", len(a.attempts), len(b.attempts)),
        ("sessions of guardrun", a.sessions, b.sessions),
        ("steps done again", a.steps_redone or 0, b.steps_redone or 0),
    ):
        if one != other:
            found.add("restarts", what, str(one), str(other))
    of_a, of_b = (_troubles(run.incidents) for run in (a, b))
    if [(each.cause, each.action) for each in a.incidents] != [(each.cause, each.action) for each in b.incidents]:
        found.add("restarts", "incidents", of_a or "none", of_b or "none")
    elif not a.incidents and len(a.attempts) == len(b.attempts) == 1:
        found.same.append("no incident and no restart")


def _troubles(incidents: list[Trouble]) -> str:
    words = [
        " ".join(
            part
            for part in (one.cause, f"at step {one.step}" if one.step is not None else "", f"({one.action})")
            if part not in ("(none)", "()")
        )
        for one in incidents[:MAX_INCIDENTS]
    ]
    more = f" and {len(incidents) - MAX_INCIDENTS} more" if len(incidents) > MAX_INCIDENTS else ""
    return ", ".join(words) + more


def _length(a: RunFacts, b: RunFacts, found: Found) -> None:
    if a.last_step is not None and b.last_step is not None and a.last_step != b.last_step:
        found.add("length", "last step", str(a.last_step), str(b.last_step), "curves are compared as far as both go")
    one, other = (run.outcome.replace("_", " ") or run.state for run in (a, b))
    if one != other:
        found.add("length", "how it ended", one, other)


def _settings(a: RunFacts, b: RunFacts, found: Found) -> None:
    of_a, of_b = flatten(a.config), flatten(b.config)
    if not of_a or not of_b:
        return
    differing = [name for name in sorted({*of_a, *of_b}) if of_a.get(name, ABSENT) != of_b.get(name, ABSENT)]
    for name in differing:
        kind = "guards" if name.startswith(ACTING) else "settings"
        found.add(
            kind, f"[{name.partition('.')[0]}] {name.partition('.')[2]}", of_a.get(name, ABSENT), of_b.get(name, ABSENT)
        )
    if not differing:
        found.same.append("guardrun's settings")


def flatten(table: Mapping[str, object], before: str = "") -> dict[str, str]:
    """Nested tables as `table.key` → value as text."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found


def _place(a: RunFacts, b: RunFacts, found: Found) -> None:
    nodes = [", ".join(run.first.nodes) if run.first else run.node for run in (a, b)]
    for what, one, other in (
        ("node", *nodes),
        ("working folder", a.cwd, b.cwd),
        ("user", a.user, b.user),
    ):
        if one and other and one != other:
            found.add("place", what, one, other)


def _throughput(a: RunFacts, b: RunFacts, found: Found) -> None:
    if not a.step_times or not b.step_times:
        short = [run.run_id for run in (a, b) if not run.step_times]
        found.unknown.append(f"time a step: too short to tell in {' and '.join(short)}")
        return
    one, other = median(a.step_times), median(b.step_times)
    if min(one, other) > 0 and (ratio := max(one, other) / min(one, other)) > 1 + THROUGHPUT_SHARE:
        how = f"{ratio - 1:.0%} slower" if ratio < 2 else f"{ratio:.3g} times as slow"
        words = f"{how}: {a.run_id if one > other else b.run_id}"
        found.add("throughput", "seconds a step, as a rule", f"{one:.4g}", f"{other:.4g}", words)
    else:
        found.same.append(f"the time a step, to {THROUGHPUT_SHARE:.0%}")


RULES: tuple[Callable[[RunFacts, RunFacts, Found], None], ...] = (
    compare_environments,
    _arguments,
    _start,
    _data,
    _left_out,
    _size,
    _restarts,
    _length,
    _settings,
    _place,
    _throughput,
)
