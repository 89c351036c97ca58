"""One self-contained HTML page: its style, and the few elements that reports are made of. All text is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from guardrun.supervisor.report.elements.quantities import escape

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1b1f24;--soft:#5d6673;--line:#dde1e7;--code:#f1f3f6;
--accent:#0b6bcb;--bad:#b3261e;--bad-page:#fdeceb;--good:#1b7a3d;--good-page:#e7f5ec;--warn:#8a5a00;--warn-page:#fdf3dd;
--train:#8fb8e8;--eval:#8ad0c0;--data:#f0c27b;--save:#c3a6e0;--idle:#d5dae1;--gc:#a86a00;--silent:#f4d4d1;--hatch:#b3261e;
--stopped:#b3261e;--cross:#fff;--step:#0b4a8f}
@media(prefers-color-scheme:dark){:root{--page:#111418;--card:#1a1f25;--text:#e4e8ed;--soft:#98a2af;--line:#2d343d;
--code:#12161b;--accent:#6cb2ff;--bad:#ff8a80;--bad-page:#3a1a19;--good:#7ddc9c;--good-page:#14301f;--warn:#f2c063;
--warn-page:#352a12;
--train:#2f5f94;--eval:#1f6f60;--data:#8a5f16;--save:#6a4a8c;--idle:#3a434e;--gc:#f2c063;--silent:#4a2523;--hatch:#ff8a80;
--stopped:#ff8a80;--cross:#1a1f25;--step:#b9d7fb}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%;overflow-wrap:break-word}
main{max-width:62rem;margin:0 auto;padding:1rem}
.where{color:var(--soft);font-size:.875rem;margin:.25rem 0}
h1{font-size:1.375rem;line-height:1.35;margin:.25rem 0 .75rem;font-weight:650;text-wrap:pretty}
h2{font-size:1.0625rem;margin:0 0 .625rem;font-weight:650}
section{background:var(--card);border:1px solid var(--line);border-radius:.625rem;padding:.875rem 1rem;margin:.875rem 0}
p{margin:.375rem 0}
.tags{display:flex;flex-wrap:wrap;gap:.375rem;margin:0 0 .25rem;padding:0;list-style:none}
.tags li{font-size:.8125rem;border-radius:1rem;padding:.0625rem .625rem;border:1px solid var(--line);color:var(--soft)}
.tags .bad{color:var(--bad);background:var(--bad-page);border-color:transparent}
.tags .good{color:var(--good);background:var(--good-page);border-color:transparent}
.tags .warn{color:var(--warn);background:var(--warn-page);border-color:transparent}
dl{display:grid;grid-template-columns:minmax(6.5rem,max-content) 1fr;gap:.25rem 1rem;margin:0}
dt{color:var(--soft)}dd{margin:0;min-width:0}
.scroll{overflow-x:auto;margin:0 -.25rem}
table{border-collapse:collapse;width:100%;font-size:.9375rem}
th{font-weight:600;color:var(--soft);font-size:.8125rem;white-space:nowrap}
th,td{text-align:left;vertical-align:top;padding:.375rem .5rem;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
tr.culprit td{background:var(--bad-page)}tr.culprit td:first-child{font-weight:650;color:var(--bad)}
td.narrow{white-space:nowrap}td.wide{min-width:8rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.875em}
pre{background:var(--code);border-radius:.375rem;padding:.625rem .75rem;margin:.5rem 0;overflow-x:auto;line-height:1.45;
font-size:.8125rem}
details{border-top:1px solid var(--line);padding:.375rem 0}
details:first-of-type{border-top:0}
summary{cursor:pointer;padding:.1875rem 0}
summary .soft,.soft{color:var(--soft)}
ol.stack{list-style:none;margin:.375rem 0 .625rem;padding:.5rem .75rem;background:var(--code);border-radius:.375rem;
overflow-x:auto;font-size:.8125rem;line-height:1.6}
ol.stack li{white-space:nowrap}
ol.stack ol{padding:0 0 0 1rem;margin:0}
ol.stack details{border:0;padding:0}ol.stack summary{padding:0;color:var(--soft)}
ol.stack .mine{font-weight:650}ol.stack .file{color:var(--soft);font-weight:400}
a{color:var(--accent)}
footer{color:var(--soft);font-size:.8125rem;margin:1rem 0 2rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(7rem,1fr));gap:.5rem;margin:.5rem 0 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:.625rem;padding:.5rem .75rem;
display:flex;flex-direction:column}
.figures dd{font-size:1.25rem;font-weight:650;margin:0;white-space:nowrap}.figures dt{font-size:.8125rem}
ul.plain{list-style:none;margin:0;padding:0}ul.plain li{padding:.25rem 0}
.u-training{fill:var(--train)}.u-detecting{fill:var(--bad)}.u-stopping{fill:var(--save)}.u-starting{fill:var(--idle)}
.u-redoing{fill:var(--data)}.u-other{fill:var(--soft)}.bar{display:block}
.notice{background:var(--warn-page);color:var(--warn);border-radius:.375rem;padding:.375rem .625rem}
.bad{color:var(--bad)}
tr.odd td{background:var(--warn-page)}tr.odd td:first-child{font-weight:650;color:var(--warn)}
.graph{overflow-x:auto;text-align:center}.graph svg{max-width:none}
svg{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;display:inline-block}
svg text{fill:var(--text)}
.box{fill:var(--code);stroke:var(--line)}.box.culprit{fill:var(--bad-page);stroke:var(--bad);stroke-width:2}
.box-title{font-size:13px;font-weight:650}.box-text{fill:var(--soft)}
.arrow{fill:none;stroke:var(--soft);stroke-width:1.5}.arrow-head{fill:var(--soft)}
.on-arrow{paint-order:stroke;stroke:var(--card);stroke-width:6px;stroke-linejoin:round}
.chart{display:flex;margin:.25rem 0}.chart .side{flex:none}.chart .middle{flex:1 1 0;min-width:0;overflow:hidden}
.row-label.culprit{fill:var(--bad);font-weight:650}.chart .tick{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);stroke-width:1}
.sign{stroke:var(--soft);stroke-width:1.5}.sign.bad{stroke:var(--bad)}.sign.good{stroke:var(--good)}
.sign.soft{stroke-dasharray:2 3;stroke-width:1}
.sign-text{font-size:11px;font-weight:650;paint-order:stroke;stroke:var(--card);stroke-width:4px}
.sign-text.bad{fill:var(--bad)}.sign-text.good{fill:var(--good)}.sign-text.soft{fill:var(--soft);font-weight:400}
.in-bar{font-size:10px;pointer-events:none}
.step{stroke:var(--step);stroke-width:1;vector-effect:non-scaling-stroke;fill:none}
.curve{stroke:var(--accent);stroke-width:1.75;vector-effect:non-scaling-stroke;fill:none;stroke-linejoin:round}
.k-train{fill:var(--train)}.k-eval{fill:var(--eval)}.k-data{fill:var(--data)}.k-save,.k-saving{fill:var(--save)}
.k-start,.k-init,.k-load,.k-compile,.k-other{fill:var(--idle)}.k-gc{fill:var(--gc)}
.k-silent{fill:url(#hatch)}.k-stopped{fill:url(#cross)}
.silent-under{fill:var(--silent)}.hatch{stroke:var(--hatch);stroke-width:1}
.stopped-under{fill:var(--stopped)}.cross{stroke:var(--cross);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:.125rem .875rem;list-style:none;padding:0;margin:.25rem 0;font-size:.8125rem;
color:var(--soft)}
.thin{max-height:70vh;overflow-y:auto}.thin svg{display:block}
pre.source{margin:.125rem 0 .375rem;padding:.25rem .375rem;background:var(--card);line-height:1.4}
pre.source span{display:block}pre.source .number{display:inline;color:var(--soft);user-select:none}
pre.source .near{color:var(--soft)}pre.source .at{font-weight:650}
@media(max-width:34rem){.every-other{display:none}.figures{grid-template-columns:1fr 1fr}
main{padding:.625rem}section{padding:.75rem .75rem}
h1{font-size:1.1875rem}dl{grid-template-columns:1fr;gap:0}dd{margin:0 0 .5rem}
.scroll{margin:0}thead{display:none}table,tbody{display:block}tr{display:block;padding:.375rem .5rem;
border-radius:.375rem;border-bottom:1px solid var(--line)}tr:last-child{border:0}tr.culprit{background:var(--bad-page)}
td,td.narrow{display:grid;grid-template-columns:4.5rem 1fr;gap:.5rem;border:0;padding:.0625rem 0;white-space:normal}
td:empty{display:none}td::before{content:attr(data-name);color:var(--soft);font-weight:400}}
@media print{.chart,.graph,tr{break-inside:avoid}body{background:#fff}
.scroll,.graph,.thin,pre,ol.stack{overflow:visible;max-height:none}
ol.stack li,pre{white-space:pre-wrap}*{print-color-adjust:exact}}
"""


def page(title: str, body: Iterable[str]) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing is fetched and nothing runs, whatever a stack or a message holds.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A card with a heading; nothing where there is nothing to show."""
    inner = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{inner}\n</section>" if inner else ""


def guarded(heading: str, make: Callable[[], str]) -> str:
    """A section, whatever goes wrong in it: a part that cannot be drawn must not cost the page."""
    try:
        return section(heading, make())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return section(heading, paragraph(f"This part could not be drawn: {said[:500]}", "soft"))


def guarded_plain(make: Callable[[], str]) -> str:
    """Likewise, without a section; nothing where it fails."""
    try:
        return make()
    except Exception:
        return ""


def figures(cards: Sequence[tuple[str, str]]) -> str:
    """(name, figure) each, large."""
    items = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(name)}</dt></div>" for name, value in cards)
    return f'<dl class="figures">{items}</dl>' if items else ""


def paragraph(text: str, kind: str = "") -> str:
    """Nothing for no text."""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>" if text else ""


def tags(labels: Sequence[tuple[str, str]]) -> str:
    """(text, kind) each; kind: bad, good, warn or nothing."""
    items = "".join(f'<li class="{escape(kind)}">{escape(text)}</li>' for text, kind in labels if text)
    return f'<ul class="tags">{items}</ul>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """(term, description as HTML) each; those without a description are left out."""
    items = "\n".join(f"<dt>{escape(term)}</dt><dd>{html}</dd>" for term, html in pairs if html)
    return f"<dl>\n{items}\n</dl>" if items else ""


def table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], wide: Sequence[str] = ()) -> str:
    """Rows of (class, cells); columns named in `wide` may wrap, others stay on one line; empty ones are left out."""
    if not rows:
        return ""
    used = [n for n in range(len(headings)) if any(cells[n] for _, cells in rows)]
    headings, rows = [headings[n] for n in used], [(kind, [cells[n] for n in used]) for kind, cells in rows]
    kinds = ["wide" if heading in wide else "narrow" for heading in headings]
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr class="{escape(kind)}">'
        + "".join(
            f'<td class="{width}" data-name="{escape(heading)}">{escape(cell)}</td>'
            for heading, width, cell in zip(headings, kinds, cells, strict=True)
        )
        + "</tr>"
        for kind, cells in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def folded(title_html: str, inner_html: str, is_open: bool = False) -> str:
    """A part that opens when asked."""
    return f"<details{' open' if is_open else ''}><summary>{title_html}</summary>\n{inner_html}\n</details>"


def preformatted(text: str) -> str:
    """A block that keeps its line breaks and blanks."""
    return f"<pre>{escape(text)}</pre>"


def code(text: str) -> str:
    """A name or path within a line."""
    return f"<code>{escape(text)}</code>"
