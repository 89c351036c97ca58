"""Which tools there are, and what each may be given. A tool's JSON schema is made of its arguments' struct."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

LATEST = "latest"
MAX_NAME = 4096

Run = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="a run's id (`runs` lists them), or latest")]
NamedRun = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="a run's id (`runs` lists them)")]
Rank = Annotated[int, Meta(ge=0, le=10_000_000, description="a global rank")]
Ranks = Annotated[list[Rank], Meta(max_length=64, description="global ranks; empty: all")]
MAX_SECONDS = 30.0


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a tool is given."""


class RunsArguments(Arguments):
    """Of `runs`."""

    limit: Annotated[int, Meta(ge=1, le=200, description="how many, newest first")] = 20


class RunArguments(Arguments):
    """Of tools that look at a run."""

    run: Run = LATEST


class NamedRunArguments(Arguments):
    """Of tools that change a run: it has to be named."""

    run: NamedRun


class ShowArguments(Arguments):
    """Of `show`."""

    incident: Annotated[
        str, Meta(pattern=r"^(last|[0-9]{1,6})$", description="its number, as `incidents` has it, or last")
    ] = "last"
    run: Run = LATEST
    full: Annotated[bool, Meta(description="library frames of stacks, too")] = False


class DiagnoseArguments(Arguments):
    """Of `diagnose`."""

    run: Run = LATEST
    gap: Annotated[float, Meta(ge=0.5, le=20.0, description="seconds between the two looks at its ranks")] = 3.0
    full: Annotated[bool, Meta(description="library frames of stacks, too")] = False


class StacksArguments(Arguments):
    """Of `stacks`."""

    run: Run = LATEST
    rank: Annotated[int | None, Meta(description="one global rank; null: all, equal stacks once")] = None
    full: Annotated[bool, Meta(description="library frames, too")] = False


class QueryArguments(Arguments):
    """Of `query`."""

    sql: Annotated[str, Meta(min_length=1, max_length=20_000, description="one SELECT of SQLite's dialect")]
    run: Run = LATEST
    rows: Annotated[int, Meta(ge=1, le=2000, description="at most; LIMIT and aggregates are better")] = 200
    seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS, description="how long it may take")] = 10.0


class TablesArguments(Arguments):
    """Of `tables`."""

    table: Annotated[str, Meta(max_length=64, description="one table, with what each column is; empty: all, short")] = (
        ""
    )


class CompareArguments(Arguments):
    """Of `compare`."""

    a: NamedRun
    b: NamedRun


class InspectArguments(Arguments):
    """Of `inspect`."""

    run: Run = LATEST
    ranks: Ranks = []
    seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS, description="wait for a step's end")] = 10.0


class TraceShowArguments(Arguments):
    """Of `trace_show`."""

    run: Run = LATEST
    ranks: Ranks = []
    top: Annotated[int, Meta(ge=1, le=200, description="modules of each rank, longest first")] = 15


class TraceOnArguments(Arguments):
    """Of `trace_on`."""

    run: NamedRun
    ranks: Ranks = []
    steps: Annotated[int, Meta(ge=1, le=50, description="how many steps")] = 5
    seconds: Annotated[float, Meta(ge=1.0, le=MAX_SECONDS, description="the longest that it takes")] = 20.0
    top: Annotated[int, Meta(ge=1, le=200, description="modules of each rank, longest first")] = 15


class MoreArguments(Arguments):
    """Of `more`."""

    answer: Annotated[int, Meta(ge=1, description="the answer's number, as it told it")]
    line: Annotated[int, Meta(ge=1, description="the first line to show")]


class Tool(NamedTuple):
    """One tool."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    seconds: float
    """How long a call may take; then it is ended."""
    is_acting: bool = False
    """It changes the run, or what a step of it costs."""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        _, components = msgspec.json.schema_components([self.arguments])
        found: dict[str, Any] = components[self.arguments.__name__]
        return {key: value for key, value in found.items() if key not in ("title", "description")}


_ASKED_S, _EXAMINED_S = 60.0, 150.0

TOOLS: tuple[Tool, ...] = (
    Tool("runs", "Runs", "Which training runs there are: state, outcome, incidents.", RunsArguments, _ASKED_S),
    Tool(
        "status",
        "Status",
        "How a run is doing now, or how it ended: state, step, step time, loss, each rank, incidents. Start here.",
        RunArguments,
        _ASKED_S,
    ),
    Tool(
        "incidents",
        "Incidents",
        "What guardrun has found in a run: hangs, crashes, slowdowns, NaN losses, leaks, bad nodes; a line each.",
        RunArguments,
        _ASKED_S,
    ),
    Tool(
        "show",
        "One incident",
        "One incident whole: the sentence, culprits, what each rank did, tracebacks, stacks, evidence, advice.",
        ShowArguments,
        _ASKED_S,
    ),
    Tool(
        "diagnose",
        "Diagnose",
        "What holds a run up at this moment, or how it ended: looks at its ranks twice, and judges. Changes nothing.",
        DiagnoseArguments,
        _ASKED_S,
    ),
    Tool(
        "stacks",
        "Stacks",
        "Python stacks of all ranks of a living run at this moment, equal ones once, odd ones first.",
        StacksArguments,
        _ASKED_S,
    ),
    Tool(
        "query",
        "Query",
        "SQL over a run, live or over, read-only: ranks, steps (where time went), metrics (loss, gradient norm, "
        "learning rate), memory, collectives, threads, workers, batches, gpu, node_findings, incidents, events, "
        "checkpoints, attempts, python.backtrace, python.torch_trace. `tables` has their columns.",
        QueryArguments,
        2 * MAX_SECONDS + 35.0,  # reading its files, the query, and a look at the ranks
    ),
    Tool("tables", "Tables of query", "Which tables and columns `query` has.", TablesArguments, _ASKED_S),
    Tool(
        "compare",
        "Compare two runs",
        "What differs between two runs (code, arguments, versions, data, learning rates, loss), most telling first.",
        CompareArguments,
        _ASKED_S,
    ),
    Tool(
        "inspect",
        "Inspect a rank",
        "What ranks of a living run train with: optimizers and learning rates, gradient norms by module, model, data "
        "loaders, process groups; and in what ranks differ. Read in the rank, and nothing changed.",
        InspectArguments,
        _EXAMINED_S,
    ),
    Tool(
        "trace_show",
        "Show a trace",
        "Which modules the steps of ranks went to, by the last trace that somebody asked for.",
        TraceShowArguments,
        _ASKED_S,
    ),
    Tool("more", "More of an answer", "The rest of an answer that was cut.", MoreArguments, _ASKED_S),
    Tool(
        "trace_on",
        "Trace modules",
        "Measure which modules the next steps go to, forward and backward. Each call of a module takes some 30 µs more "
        "meanwhile; it ends by itself.",
        TraceOnArguments,
        _EXAMINED_S,
        is_acting=True,
    ),
    Tool("trace_off", "Stop a trace", "End a trace before its steps are over.", NamedRunArguments, _EXAMINED_S, True),
    Tool(
        "hold",
        "Hold",
        "Hands off: guardrun watches and explains, but stops and restarts nothing, until unhold.",
        NamedRunArguments,
        _ASKED_S,
        is_acting=True,
    ),
    Tool("unhold", "Unhold", "Let guardrun act again.", NamedRunArguments, _ASKED_S, is_acting=True),
    Tool(
        "restart",
        "Restart",
        "End this attempt now and go on from the newest checkpoint: what was computed since then is lost.",
        NamedRunArguments,
        _ASKED_S,
        is_acting=True,
    ),
    Tool(
        "checkpoint",
        "Checkpoint",
        "Ask the ranks to save at their next should_checkpoint(); stops nothing.",
        NamedRunArguments,
        _ASKED_S,
        is_acting=True,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
