"""How two curves compare, in words. Pure."""

from __future__ import annotations

from guardrun.supervisor.report.comparison.curves import CurveComparison


def value_words(one: CurveComparison) -> str:
    """Of losses and norms: a sentence without its full stop."""
    parts = [bit_words(one), _noise(one), _final(one)]
    return "; ".join(part for part in parts if part)


def bit_words(one: CurveComparison) -> str:
    """Up to where they are equal to the last bit, and of how many steps that is known."""
    if one.equal is None:
        return "medians over some steps each, which are not compared bit by bit"
    of = f" (steps {one.first_step} to {one.last_step}: {one.common} of them are recorded in both)"
    if one.common > one.last_step - one.first_step:
        of = ""
    if one.is_equal:
        return f"equal to the last bit at all {one.common} steps that both have{of}"
    if not one.equal:
        return f"different from the first step that both have on ({one.unequal_from}){of}"
    steps = "1 step" if one.equal == 1 else f"{one.equal} steps"
    return f"equal to the last bit for {steps}; from step {one.unequal_from} on they differ{of}"


def _noise(one: CurveComparison) -> str:
    if one.is_equal:
        return ""
    if one.differs_from is not None:
        return f"by more than noise from step {one.differs_from} on"
    if not one.is_noise_known:
        return "too few values to tell noise from more"
    return f"by no more than noise up to step {one.last_step}"


def _final(one: CurveComparison) -> str:
    if one.is_equal or one.final is None:
        return ""
    a, b = one.final
    share = f" ({(b - a) / abs(a):+.2%})" if a else ""
    return f"around step {one.last_step}: {a:.6g} and {b:.6g}{share}"


def rate_words(one: CurveComparison) -> str:
    """Of learning rates, where they differ."""
    if one.final is None:
        return ""
    a, b = one.final
    return f"at step {one.last_step}: {a:.6g} and {b:.6g}"
