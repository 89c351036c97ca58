"""`guardctl web`: a folder of runs as a page, for a browser of this machine, or one that comes by ssh."""

from __future__ import annotations

import argparse
from pathlib import Path

from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, guard_dir, this_node

PORT = 8760


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, not {text!r}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", help="a folder of runs, in place of --guard-dir")
    parser.add_argument(
        "--port", metavar="N", type=_port, help=f"of loopback (default: {PORT}, or any where that is taken)"
    )


def _run(call: Call) -> int:
    given = call.arguments
    folder = call.cwd / given.folder if given.folder else guard_dir(given.guard_dir, call.environ, call.cwd)
    if (folder / "run.json").exists():
        raise CtlError(f"{folder} is one run: name the folder that it lies in")
    if given.folder and not folder.is_dir():
        raise CtlError(f"{folder} is no folder of runs")
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise CtlError(f"the page needs uvicorn ({error.name or error}): pip install 'guardrun[web]'") from None
    from guardrun.supervisor.cli.web.server import bind, serve

    folder, node = folder.resolve(), this_node(call.environ)
    bound = bind(given.port, PORT)
    host, port = bound.getsockname()[:2]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def announce(token: str, path: Path) -> None:
        address = f"{base}/#token={token}"
        if call.out.is_json:
            call.out.json({"address": address, "folder": str(folder), "port": port, "token_file": str(path)}, True)
            return
        call.out.aside(f"runs of {folder}, until Ctrl-C:")
        call.out.line(address)
        target = f"[{host}]" if ":" in host else host
        call.out.aside(f"from another machine: ssh -L {port}:{target}:{port} {node}, then the same address there")
        call.out.aside(f"the token is in {path}, which you alone can read")

    serve(bound, folder, node, call.environ, announce)
    return OK


VERB = Verb("web", "a folder of runs as a page in a browser: curves, ranks, stacks, incidents", _add_arguments, _run)
