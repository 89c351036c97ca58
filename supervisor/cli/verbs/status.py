"""`guardctl status`: how a run is doing, from its supervisor, else from its directory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from guardrun.supervisor.cli.base.output import Output, clean
from guardrun.supervisor.cli.base.status_reader import OVER, read_status
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, add_run_argument, named_run, this_node
from guardrun.supervisor.cli.views.diagnosis_view import incidents_view
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.elements.quantities import duration, place_words
from guardrun.supervisor.watch.run_status import state_words

MAX_RANK_ROWS = 64
"""With more ranks, those that look the same share a row."""
SHOWN_AGE_S = 1.0
HEARD_S = 0.5
"""A Ctrl-C that comes right before a sleep begins is heard after it."""
_STYLES = {
    "training": "green",
    "ended": "green",
    "suspicious": "yellow",
    "stalled": "yellow",
    "held": "yellow",
    "unreachable": "red",
    "unfinished": "red",
}
_NODE_HEADINGS = ("Node", "Part", "Standing", "Since", "Group rank", "Why")
_HEADINGS = ("Rank", "State", "Step", "Step time", "Phase", "Data", "GC", "Beat", "Progress", "PID", "Hooks")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--watch", action="store_true", help="go on until the run ends; with --json a line each time")
    parser.add_argument("--every", metavar="SECONDS", type=float, default=2.0, help="with --watch (default: 2)")


def _run(call: Call) -> int:
    arguments, out = call.arguments, call.out
    if arguments.every <= 0:
        raise CtlError("--every: expected more than 0 seconds")
    node = this_node(call.environ)
    run_dir = named_run(call)
    if arguments.watch:
        return watch(out, run_dir, node, arguments.every)
    status = read_status(run_dir, node)
    if out.is_json:
        out.json(status)
    else:
        out.print(render_status(out, status))
    return OK


def watch(out: Output, run_dir: Path, node: str, every_s: float) -> int:
    """Print how a run is doing until it ends, or somebody presses Ctrl-C. Answers the exit code."""
    # On a terminal that can't move its cursor rich shows nothing of it before the end.
    is_live = out.is_terminal and not out.is_json and not out.console.is_dumb_terminal
    live = Live(console=out.console, auto_refresh=False) if is_live else None
    try:
        if live is not None:
            live.start()
        while True:
            status = read_status(run_dir, node)
            if live is not None:
                live.update(render_status(out, status), refresh=True)
            elif out.is_json:
                out.json(status, is_line=True)
            else:
                out.print(render_status(out, status))
            if status["state"] in OVER:
                return OK
            until_s = time.monotonic() + every_s
            while (left_s := until_s - time.monotonic()) > 0:
                time.sleep(min(left_s, HEARD_S))
    except KeyboardInterrupt:
        return OK
    finally:
        if live is not None:
            live.stop()


def render_status(out: Output, status: dict[str, Any]) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [_head(status)]
    nodes = status.get("nodes") or []
    if nodes:
        parts += [Text(), out.make_table(_NODE_HEADINGS, *_node_rows(nodes))]
    rows = _rank_rows(status["ranks"], len({rank["node"] for rank in status["ranks"]}) > 1)
    if rows:
        headings = _HEADINGS if len(rows[0][0]) == len(_HEADINGS) else (_HEADINGS[0], "Node", *_HEADINGS[1:])
        parts += [Text(), out.make_table(headings, [row for row, _ in rows], [style for _, style in rows])]
    if status["incidents"]:
        parts += [Text(), incidents_view(out, status["incidents"][-8:])]
    return Group(*parts)


def _head(status: dict[str, Any]) -> Text:
    state = str(status["state"])
    text = Text()
    text.append(clean(str(status["run_id"])), "bold")
    text.append(" · ")
    text.append(state, f"bold {_STYLES.get(state, '')}".strip())
    summary = status.get("summary") or {}
    facts = [
        f"{summary.get('outcome')}, exit code {summary.get('exit_code')}" if summary else "",
        "" if status["attempt"] is None else f"attempt {status['attempt']}",
        f"{status['world_size']} rank{'s' if status['world_size'] != 1 else ''} on {_place(status)}",
        f"{'took' if summary else 'up'} {duration(status['uptime_s'])}",
        f"{status['restarts']} restart{'s' if status['restarts'] != 1 else ''}" if status["restarts"] else "",
        "" if status["goodput"] is None else f"goodput {status['goodput']:.0%}",
        "held: guardrun changes nothing" if status["held"] else "",
    ]
    text.append("".join(f" · {clean(fact)}" for fact in facts if fact))
    stall = status.get("stall")
    if stall:
        text.append(f"\n{clean(str(stall['summary']))}", "bold yellow")
        text.append(f"\n{clean(str(stall['outlook']))}")
    if numbers := _numbers(status["ranks"]):
        text.append(f"\n{numbers}")
    checkpoint = status["checkpoint"]
    if checkpoint:
        text.append(f"\ncheckpoint: step {checkpoint['step']}, {clean(checkpoint['path'])}")
    if words := _warm_words(status.get("warm")):
        text.append(f"\n{clean(words)}")
    if summary.get("reason"):
        text.append(f"\n{clean(str(summary['reason']))}")
    for note in _notes(status):
        text.append(f"\n{clean(note)}", "dim")
    if status["source"] != "supervisor":
        text.append(f"\nfrom {clean(status['run_dir'])}: {clean(status['why'])}", "dim")
    return text


def _warm_words(warm: dict[str, Any] | None) -> str:
    """Empty where it is switched off."""
    if not warm:
        return ""
    state = warm.get("state")
    if state == "ready":
        return f"warm ranks: ready, {warm.get('modules', 0)} modules, {warm.get('memory_mb', 0)} MB"
    return f"warm ranks: {state}{', ' if warm.get('why') else ''}{warm.get('why', '')}"


def _numbers(ranks: list[dict[str, Any]]) -> str:
    """What training computes, as the median of the ranks that tell: `loss 2.31 · gradient norm 0.83 · …`."""
    words = []
    for key, name in (("loss", "loss"), ("grad_norm", "gradient norm"), ("learning_rate", "learning rate")):
        known = [float(rank[key]) for rank in ranks if isinstance(rank.get(key), (int, float))]
        if known:
            words.append(f"{name} {median(known):.3g}")
    if left_out := max((int(rank.get("left_out") or 0) for rank in ranks), default=0):
        words.append(f"{left_out} step{'s' if left_out > 1 else ''} left out")
    return " · ".join(words)


def _place(status: dict[str, Any]) -> str:
    nodes = status.get("nodes") or []
    if not nodes:
        return place_words(str(status["node"]), (str(rank["node"]) for rank in status["ranks"]))
    spares = sum(node["role"] == "spare" for node in nodes)
    waiting = f" ({spares} spare{'s' if spares != 1 else ''} waiting)" if spares else ""
    return f"{sum(node['role'] == 'trains' for node in nodes)} nodes{waiting}, head {status['node']}"


def _node_rows(nodes: list[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Cells and style of each row: all of a small job, of a large one those that are not as they should be."""
    shown = nodes if len(nodes) <= MAX_RANK_ROWS else [n for n in nodes if n["why"] or n["standing"] != "ready"]
    rows = [
        [
            str(node["node"]),
            "trains" if node["role"] == "trains" else "waits" if node["role"] == "spare" else "takes no part",
            str(node["standing"]),
            duration(node["since_s"]),
            "" if node["group_rank"] is None else str(node["group_rank"]),
            clean(str(node["why"])),
        ]
        for node in shown
    ]
    return rows, ["" if node["standing"] == "ready" else "yellow" for node in shown]


def _notes(status: dict[str, Any]) -> list[str]:
    """What the ranks' hooks say, each thing once, with how many ranks say it."""
    said: dict[str, set[str]] = {}
    for line in status.get("notes") or []:
        who, _, text = str(line).partition(": ")
        said.setdefault(text, set()).add(who)
    return [f"{text} ({next(iter(who)) if len(who) == 1 else f'{len(who)} ranks'})" for text, who in said.items()][-3:]


def _rank_rows(ranks: list[dict[str, Any]], has_nodes: bool) -> list[tuple[list[str], str]]:
    """Cells and style of each row. has_nodes: with the node's name after the rank's number."""
    is_merged = len(ranks) > MAX_RANK_ROWS
    merged: dict[Any, list[dict[str, Any]]] = {}
    for rank in ranks:
        same = (_state_words(rank), rank["phase"], rank["step"], rank["hooks"], rank["node"] if has_nodes else "")
        merged.setdefault(same if is_merged else rank["global_rank"], []).append(rank)
    groups = sorted(merged.values(), key=lambda group: (len(group) if is_merged else 0, group[0]["global_rank"]))
    return [_rank_row(group, has_nodes) for group in groups]


def _rank_row(group: list[dict[str, Any]], has_nodes: bool) -> tuple[list[str], str]:
    first = group[0]
    state = _state_words(first)
    cells = [
        rank_list([rank["global_rank"] for rank in group]),
        *([str(first["node"])] if has_nodes else []),
        state,
        _step(group),
        _longest(group, "step_time_s"),
        str(first["phase"] or ""),
        _share(group, "data_share"),
        _share(group, "gc_share"),
        _longest(group, "last_beat_s"),
        _longest(group, "last_progress_s"),
        str(first["pid"]) if len(group) == 1 else "",
        "" if first["hooks"] is not False else "none",
    ]
    is_odd = bool(first.get("exitcode")) or first["state"] in ("T", "t", "D")
    return cells, "red" if is_odd else ""


def _step(group: list[dict[str, Any]]) -> str:
    """`60`; `60, 12 s ago` of a rank whose node has not been heard since."""
    step, known = group[0]["step"], [rank["age_s"] for rank in group if rank.get("age_s") is not None]
    age_s = max(known, default=0.0)
    return "" if step is None else f"{step}, {duration(age_s)} ago" if age_s >= SHOWN_AGE_S else str(step)


def _state_words(rank: dict[str, Any]) -> str:
    return state_words(str(rank["state"]), rank.get("exitcode"))


def _share(group: list[dict[str, Any]], key: str) -> str:
    """Of the attempt's time: waiting for data, in garbage collections. The largest of the group."""
    known = [rank[key] for rank in group if isinstance(rank.get(key), (int, float))]
    return f"{max(known):.0%}" if known else ""


def _longest(group: list[dict[str, Any]], key: str) -> str:
    known = [rank[key] for rank in group if isinstance(rank.get(key), (int, float))]
    if not known:
        return ""
    longest = max(known)
    return f"{longest * 1000:.0f} ms" if longest < 1 and key == "step_time_s" else duration(longest)


VERB = Verb("status", "how a run is doing", _add_arguments, _run)
