"""What optimizers are set to (learning rates, decay, …), before and after something that may have changed it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    Group: TypeAlias = dict[str, Any]
    Change: TypeAlias = tuple[str, int, int, str, Any, Any]

MAX_GROUPS = 1000
MAX_SENTENCES = 8
MAX_CHARS = 160
NAMES = {"lr": "learning rate", "weight_decay": "weight decay"}


class Kept:
    """A tensor among settings: as it was. It may lie on a device, which is asked only where the tensor has changed."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.version = tensor, tensor._version
        self.copy = tensor.detach().clone()


class Settings:
    """Those of optimizers at some moment, for the thread that trains."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._kept: list[tuple[str, int, int, Group, dict[str, Any]]] = []
        seen: set[int] = set()
        for optimizer in optimizers:
            groups: list[Group] = list(optimizer.param_groups)
            for place, group in enumerate(groups):
                if id(group) in seen or len(self._kept) >= MAX_GROUPS:  # a wrapper has those of what it wraps
                    continue
                seen.add(id(group))
                values = {str(name): _keep(value) for name, value in group.items() if name != "params"}
                self._kept.append((type(optimizer).__name__, place, len(groups), group, values))

    def changes(self) -> list[Change]:
        """What is another value now: (optimizer, group, of how many, name, before, after)."""
        found: list[Change] = []
        for kind, place, count, group, values in self._kept:
            for name, value in list(group.items()):
                was, now = _compare(values.get(str(name)), value) if name != "params" else (None, None)
                if was is not None and was != now:
                    found.append((kind, place, count, str(name), was, now))
        return found


def _keep(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple) and len(value) <= 4:
        return tuple(each if isinstance(each, int | float) else None for each in value)
    if hasattr(value, "_version") and getattr(value, "numel", lambda: 0)() == 1:
        return Kept(value)
    return None


def _compare(kept: Any, value: Any) -> tuple[Any, Any]:
    """Before and after, as numbers; None before: it is not known, or not another one."""
    if isinstance(kept, Kept):
        if value is kept.tensor and value._version == kept.version:
            return None, None
        return float(kept.copy), float(value) if _keep(value) is not None else str(type(value).__name__)
    now = _keep(value)
    if isinstance(now, Kept):
        return kept, float(now.copy)
    return (kept, now) if now is not None else (None, None)


def describe_changes(changes: Iterable[Change]) -> list[str]:
    """In words: `learning rate × 0.1 (0.01 → 0.001) in AdamW`; groups that were changed alike once."""
    alike: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        kind, _, _, name, was, now = change
        alike.setdefault((kind, name, _factor(was, now) or f"{was} → {now}"), []).append(change)
    sentences = []
    for (kind, name, how), each in alike.items():
        values = sorted({f"{_number(one[4])} → {_number(one[5])}" for one in each})
        shown = ", ".join(values[:3]) + (", …" if len(values) > 3 else "")
        places = list(dict.fromkeys(one[1] for one in each))  # of several optimizers, it may be
        where = "" if len(places) == each[0][2] else f", group {', '.join(map(str, places[:8]))}"
        what = f"{how} ({shown})" if how.startswith("×") else shown
        sentences.append(f"{NAMES.get(name, name)} {what} in {kind}{where}"[:MAX_CHARS])
    return sentences[:MAX_SENTENCES]


def _factor(was: Any, now: Any) -> str:
    numbers = [one for one in (was, now) if isinstance(one, int | float) and not isinstance(one, bool)]
    return f"× {now / was:.4g}" if len(numbers) == 2 and was and now else ""


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]
