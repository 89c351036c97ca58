"""The figures as a table: for the terminal, and in Markdown."""

from __future__ import annotations

from statistics import median

from rich.table import Table

from benchmarks.item import Figure
from benchmarks.report import Report

HEADINGS = ("measurement", "guardrun", "torchrun", "ratio", "target", "")
MET, MISSED = "met", "MISSED"


def number(value: float) -> str:
    """Three significant digits, and whole numbers from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def spread(samples: tuple[float, ...], unit: str) -> str:
    """The median, its unit, and from where to where the samples go."""
    text = f"{number(median(samples))} {unit}".rstrip()
    low, high = number(min(samples)), number(max(samples))
    return text if low == high else f"{text} ({low} … {high})"


def row(figure: Figure) -> tuple[str, ...]:
    """One figure's cells, as HEADINGS names them."""
    name = f"{figure.name} [{figure.note}]" if figure.note else figure.name
    return (
        name,
        spread(figure.samples, figure.unit),
        spread(figure.torchrun, figure.unit) if figure.torchrun else "–",
        f"{figure.ratio:.3f}" if figure.ratio is not None else "–",
        f"{figure.target} {figure.unit}".rstrip() if figure.target else "–",
        "" if figure.target is None else MISSED if figure.is_missed else MET,
    )


def as_rich(report: Report) -> Table:
    """For the terminal."""
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for figure in report.figures:
        style = "bold red" if figure.is_missed else None
        table.add_row(*(cell.replace("[", r"\[") for cell in row(figure)), style=style)
    return table


def as_markdown(report: Report) -> str:
    """For docs/benchmarks.md."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * (len(HEADINGS) - 1)]
    for figure in report.figures:
        cells = [cell.replace("|", r"\|") for cell in row(figure)]
        if figure.is_missed:
            cells[-1] = f"**{cells[-1]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
