"""Where on a command line the script stands: what follows it is the script's, whatever it looks like.

argparse looks at every argument before it hands the rest to the script, and stumbles (up to Python 3.11) over those
that could abbreviate its own flags. So the script is found first, by argparse's rules, and the rest is never shown.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
"""As argparse has it."""


def find_script(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int | None:
    """The index of the first positional argument; None where there is none."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return index + 1 if index + 1 < len(arguments) else None
        if not _is_option(parser, argument):
            return index
        index += 2 if _wants_next(parser, argument) else 1
    return None


def _is_option(parser: argparse.ArgumentParser, argument: str) -> bool:
    if not argument.startswith("-") or argument == "-":
        return False
    if argument in parser._option_string_actions or argument.partition("=")[0] in parser._option_string_actions:
        return True
    return not _NEGATIVE_NUMBER.match(argument) and (" " not in argument or bool(_find(parser, argument)))


def _wants_next(parser: argparse.ArgumentParser, argument: str) -> bool:
    """Say whether an option takes the next argument as its value. An unknown option takes none."""
    if argument.startswith("--"):
        action = _find(parser, argument)
        return action is not None and "=" not in argument and action.nargs != 0
    for position, letter in enumerate(argument[1:], start=2):
        action = parser._option_string_actions.get(f"-{letter}")
        if action is None:
            return False
        if action.nargs != 0:
            return position == len(argument)
    return False


def _find(parser: argparse.ArgumentParser, argument: str) -> argparse.Action | None:
    """The action of a long option, by its name or an abbreviation that can mean no other."""
    known = parser._option_string_actions
    name = argument.partition("=")[0]
    if name in known:
        return known[name]
    actions = {id(action): action for option, action in known.items() if option.startswith(name)}
    return next(iter(actions.values())) if len(actions) == 1 and name.startswith("--") else None
