"""guardctl: what a person, or a program, operates guardrun with.

Exit codes: 0 done, 1 the question's answer is no or it failed, 2 the command line is wrong;
diagnose's, beside them: 3 something holds the job up, 4 it has fallen.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from guardrun import __version__
from guardrun.supervisor.cli.assistants import verb as assistants
from guardrun.supervisor.cli.base.output import Output, silence_stdout
from guardrun.supervisor.cli.base.verb import NO, Call, CtlError, Verb
from guardrun.supervisor.cli.verbs import (
    check,
    compare,
    config,
    diagnose,
    evaluate,
    flame,
    incidents,
    inspect,
    memory,
    node,
    node_agent,
    order,
    profile,
    query,
    rates,
    replay,
    report,
    sbatch,
    slurm,
    status,
    top,
    trace,
)
from guardrun.supervisor.cli.web import verb as web

VERBS: tuple[Verb, ...] = (
    status.VERB,
    top.VERB,
    web.VERB,
    incidents.INCIDENTS,
    incidents.SHOW,
    report.VERB,
    compare.VERB,
    diagnose.VERB,
    order.STACKS,
    memory.VERB,
    flame.VERB,
    profile.VERB,
    query.VERB,
    trace.VERB,
    inspect.VERB,
    evaluate.VERB,
    rates.SET_VERB,
    rates.SCALE_VERB,
    node.VERB,
    check.VERB,
    node_agent.VERB,
    sbatch.VERB,
    slurm.VERB,
    config.VERB,
    replay.VERB,
    order.HOLD,
    order.UNHOLD,
    order.RESTART,
    order.CHECKPOINT,
    assistants.VERB,
)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Where the answer goes, or what a verb writes, there is no room for it."""


class _JsonParser(argparse.ArgumentParser):
    """Says on stdout, too, what is wrong with a command line: there a program looks."""

    def error(self, message: str) -> NoReturn:
        Output(True, os.environ).json({"error": message})
        super().error(message)


def make_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The command line; argv: as it is."""
    kind = _JsonParser if "--json" in argv else argparse.ArgumentParser
    parser = kind(prog="guardctl", description="Look at, and steer, runs of guardrun.")
    parser.add_argument("--version", action="version", version=f"guardctl {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        own = verbs.add_parser(verb.name, help=verb.help, description=f"{verb.help[0].upper()}{verb.help[1:]}.")
        verb.add_arguments(own)
        own.add_argument("--guard-dir", metavar="DIR", help="where runs are (default: GUARDRUN_DIR, ./guardrun-runs)")
        own.add_argument("--json", action="store_true", help="for programs")
        own.set_defaults(run_verb=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run guardctl and answer its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = make_parser(argv).parse_args(argv)
    out = Output(arguments.json, os.environ)
    try:
        code: int = arguments.run_verb(Call(arguments, os.environ, Path.cwd(), out))
        sys.stdout.flush()
        return code
    except CtlError as error:
        out.error(str(error))
        return NO
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence_stdout()
        return NO
    except PermissionError as error:  # another user's run, or a folder above it, wherever it was come across
        out.error(f"{error.filename or 'a file'}: {error.strerror or error}")
        return NO
    except OSError as error:
        if error.errno not in FULL:
            raise
        silence_stdout()
        out.error(f"the answer can't be written: {error.strerror}")
        return NO


if __name__ == "__main__":
    sys.exit(main())
