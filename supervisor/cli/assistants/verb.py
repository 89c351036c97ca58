"""`guardctl mcp`: runs for an assistant, over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import argparse
import os
import sys

from guardrun.supervisor.cli.assistants.answers import CHARS
from guardrun.supervisor.cli.assistants.tools import TOOLS
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, guard_dir

MIN_CHARS, MAX_CHARS = 1000, 100_000


def _chars(text: str) -> int:
    if not text.isdecimal() or not MIN_CHARS <= int(text) <= MAX_CHARS:
        raise argparse.ArgumentTypeError(f"expected a number from {MIN_CHARS:,} to {MAX_CHARS:,}, not {text!r}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="DIR", nargs="*", help="folders of runs, in place of --guard-dir")
    parser.add_argument(
        "--allow-act", action="store_true", help="with tools that change a run: hold, restart, checkpoint, trace_on"
    )
    parser.add_argument(
        "--chars", metavar="N", type=_chars, default=CHARS, help=f"of an answer, at most (default: {CHARS:,})"
    )
    parser.add_argument("--tools", action="store_true", help="print which tools there are, and start nothing")


def _run(call: Call) -> int:
    given = call.arguments
    if given.tools:
        _print_tools(call)
        return OK
    folders = tuple(call.cwd / folder for folder in given.folders)
    folders = folders or (guard_dir(given.guard_dir, call.environ, call.cwd),)
    for folder in folders:
        if not folder.is_dir():
            if os.path.lexists(folder):
                raise CtlError(f"{folder} is no folder of runs")
            call.out.aside(f"{folder} does not exist yet: a run makes it; guardctl mcp DIR names another")
        if (folder / "run.json").exists():
            raise CtlError(f"{folder} is one run: name the folder that it lies in")
    try:
        import mcp.server.lowlevel  # noqa: F401
    except ImportError as error:
        raise CtlError(
            f"the Model Context Protocol's package is not installed ({error.name or error}): "
            "pip install 'guardrun[mcp]'"
        ) from None
    from guardrun.supervisor.cli.assistants.server import serve

    if sys.stdin.isatty():
        call.out.aside("waits for a client's messages on standard input: an assistant starts this. Ctrl-D ends it")
    serve(tuple(folder.resolve() for folder in folders), call.cwd, given.allow_act, given.chars)
    return OK


def _print_tools(call: Call) -> None:
    wanted = [tool for tool in TOOLS if call.arguments.allow_act or not tool.is_acting]
    if call.out.is_json:
        schemas = [{"name": one.name, "description": one.description, "input_schema": one.schema()} for one in wanted]
        call.out.json({"tools": schemas})
        return
    call.out.table(["Tool", "Takes", "What"], [[t.name, _takes(t.schema()), t.description] for t in wanted])


def _takes(schema: dict[str, object]) -> str:
    """`run, sql*`."""
    required, properties = schema.get("required", []), schema.get("properties", {})
    assert isinstance(required, list) and isinstance(properties, dict)
    return ", ".join(f"{name}*" if name in required else name for name in properties)


VERB = Verb(
    "mcp", "runs for an assistant: tools by the Model Context Protocol, on stdin and stdout", _add_arguments, _run
)
