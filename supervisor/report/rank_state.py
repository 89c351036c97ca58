"""What ranks train with, in words, and in what they differ from each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.observation.frames import rank_list

COMPARED = ("optimizers", "models", "loaders", "scalers", "settings", "compiled", "groups", "environment", "at_step")
"""Parts in which ranks are expected to be alike, but for OWN."""
OWN = frozenset(
    {"rank", "initial_seed", "bytes_here", "of", "name", "devices", "gradients", "gradient_norm", "step"}
    | {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "SLURM_NODEID"}
    | {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TORCHELASTIC_ERROR_FILE", "PYTHONHASHSEED"}
)
"""What is each rank's own."""
MAX_DIFFERENCES = 100
MAX_VALUE_CHARS = 120


def differences(told: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """What is not alike on all ranks: where → value, as text, → ranks. Nothing where one rank alone has answered.

    A value that is not there is `-`.
    """
    flat = {rank: flatten({name: one.get(name) for name in COMPARED}) for rank, one in told.items()}
    paths = sorted({path for one in flat.values() for path in one})
    found: dict[str, dict[str, list[int]]] = {}
    for path in paths:
        by_value: dict[str, list[int]] = {}
        for rank, one in sorted(flat.items()):
            by_value.setdefault(one.get(path, "-"), []).append(rank)
        if len(by_value) > 1 and len(found) < MAX_DIFFERENCES:
            found[path] = by_value
    return found


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """`optimizers.0.groups.0.lr` → `0.1`, without what is a rank's own."""
    if isinstance(value, Mapping):
        items = [(str(name), one) for name, one in value.items() if name not in OWN]
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        items = [(str(place), one) for place, one in enumerate(value)]
    else:
        return {} if value is None else {path: text(value)}
    return {key: one for name, each in items for key, one in flatten(each, f"{path}.{name}" if path else name).items()}


def text(value: Any) -> str:
    """A value in a line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"({', '.join(map(text, value))})"
    return str(value)[:MAX_VALUE_CHARS]


def difference_lines(told: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Each in a line: `optimizers.0.groups.0.lr: 0.1 on rank 0-2, 0.2 on rank 3`.

    Ranks go on while they are asked, one may be a step further than another, and a schedule gives it another learning
    rate then. So where they were not at the same step, that of each is told with its value, and a last line says why.
    """
    steps = {rank: one.get("step") for rank, one in told.items()}
    is_at_one = len(set(steps.values())) <= 1
    lines = [
        f"{path}: "
        + "; ".join(
            f"{value} on rank {rank_list(ranks)}{'' if is_at_one else _at_steps([steps[rank] for rank in ranks])}"
            for value, ranks in by_value.items()
        )
        for path, by_value in differences(told).items()
    ]
    if lines and not is_at_one:
        lines.append("They were not all at the same step when they were read: what a schedule changes differs by that.")
    return lines


def _at_steps(steps: Sequence[Any]) -> str:
    known = sorted({step for step in steps if isinstance(step, int)})
    if not known:
        return ""
    return f" (step {known[0]})" if len(known) == 1 else f" (steps {known[0]} to {known[-1]})"


def sections(one: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """One rank's, by heading. Raises KeyError, TypeError, AttributeError, ValueError: it is of another version."""
    found = [
        ("Optimizers", [line for each in one.get("optimizers", []) for line in _optimizer(each)]),
        ("Gradients", _gradients(one)),
        ("Models", [line for each in one.get("models", []) for line in _model(each)]),
        ("Data loaders", [_pairs(f"{each['dataset']}", each, {"dataset"}) for each in one.get("loaders", [])]),
        ("Mixed precision", _precision(one)),
        ("Process groups", [_group(each) for each in one.get("groups", [])]),
        ("Largest tensors", [_tensor(each) for each in one.get("largest", [])]),
        ("torch", [_pairs("", one.get("settings", {})), _pairs("compiled", one.get("compiled", {}))]),
        ("Threads", _threads(one.get("threads", {}))),
        ("Environment", [f"{name}={value}" for name, value in sorted(one.get("environment", {}).items())]),
        ("Not known", [f"{name}: {why}" for name, why in sorted(one.get("troubles", {}).items())]),
    ]
    return [(heading, kept) for heading, lines in found if (kept := [line for line in lines if line])]


def _optimizer(one: Mapping[str, Any]) -> list[str]:
    lines = [
        _pairs(f"{one['type']}, group {place}", group) for place, group in enumerate(one["groups"])
    ]  # its numbers are parameters' too
    left = int(one["group_count"]) - len(lines)
    return [*lines, f"and {left:,} groups more"] if left > 0 else lines


def _gradients(one: Mapping[str, Any]) -> list[str]:
    at_step = one.get("at_step", {})
    if "gradients" not in at_step:
        why = one.get("at_step_trouble") or "the last step has left none"
        return [f"not read: {why}"]
    bad = int(at_step["gradient_nonfinite"])
    lines = [
        f"of step {at_step['step']}, as {at_step['optimizer']} has used them (of sharded ones this rank's part): norm "
        f"{float(at_step['gradient_norm']):.4g}"
        + (f"; {bad:,} tensors have a NaN or an infinity" if bad else "; all are finite")
    ]
    for group in at_step["gradients"]:
        odd = f"  NaN or infinite: {group['nonfinite']:,} of {group['count']:,}" if group["nonfinite"] else ""
        lines.append(f"  {group['group']}: {float(group['norm']):.4g}{odd}")
    left = int(at_step["gradient_groups"]) - len(at_step["gradients"])
    return [*lines, f"  and {left:,} groups with less"] if left > 0 else lines


def _model(one: Mapping[str, Any]) -> list[str]:
    def shares(name: str) -> str:
        return ", ".join(f"{kind} {int(count):,}" for kind, count in one[name].items())

    lines = [
        f"{one['type']}: {int(one['numbers']):,} parameters in {int(one['parameters']):,} tensors, "
        f"{int(one['trained']):,} of them trained; {size(int(one['bytes_here']))} here",
        f"  {shares('dtypes')}; on {shares('devices')}",
        f"  {int(one['modules']):,} modules, {int(one['in_training']):,} of them in training mode",
    ]
    if one["wrapped"]:
        lines.append("  wrapped: " + ", ".join(f"{kind} {int(count):,}" for kind, count in one["wrapped"].items()))
    if one["ddp"]:
        lines.append(_pairs("  DDP", one["ddp"]))
    return lines


def _precision(one: Mapping[str, Any]) -> list[str]:
    at_step = one.get("at_step", {})
    scales = list(at_step.get("scales", []))
    lines = [_pairs(each["type"], each, {"type"}) for each in one.get("scalers", [])]
    if scales:
        lines.append(f"factors now: {', '.join(map(str, scales))}")
    if at_step.get("autocast"):
        lines.append("autocast is on where the optimizer steps")
    return lines


def _group(one: Mapping[str, Any]) -> str:
    members = ", ".join(map(str, one["of"]))
    more = ", …" if int(one["ranks"]) > len(one["of"]) else ""
    return f"{one['name']}: {one['backend']}, {int(one['ranks']):,} ranks ({members}{more})"


def _tensor(one: Mapping[str, Any]) -> str:
    return f"{size(int(one['bytes'])):>9}  {one['owner']}: {one['kind']} on {one['device']}"


def _threads(one: Mapping[str, Any]) -> list[str]:
    if not one:
        return []
    lines = [f"{int(one['python']):,} of Python, {int(one['all']):,} in all"]
    return lines + [f"  {each['name']}{' (daemon)' if each['daemon'] else ''}: {each['where']}" for each in one["of"]]


def _pairs(heading: str, values: Mapping[str, Any], left_out: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    said = []
    for name, value in values.items():
        if name in left_out or value is None:
            continue
        if isinstance(value, dict):
            said.append(_pairs(name, value))
        else:
            said.append(f"{name} {f'{value:,}' if type(value) is int else text(value)}")
    body = ", ".join(said)
    return f"{heading}: {body}" if heading and body else body
