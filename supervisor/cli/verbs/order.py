"""`guardctl hold`, `unhold`, `restart`, `checkpoint`: asking a run's supervisor to do something."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from guardrun.supervisor.cli.base.runs import find_run, guard_dir, is_alive, read_run
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, add_run_argument
from guardrun.supervisor.client.supervisor_client import TIMEOUT_S, Unreachable, ask


def ask_run(call: Call, verb: str, arguments: dict[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Ask the supervisor of the run that the command line names. Raises CtlError where it is over, or says no."""
    run_dir = find_run(call.arguments.run, guard_dir(call.arguments.guard_dir, call.environ, call.cwd), call.cwd)
    run = read_run(run_dir)
    if is_alive(run, call.environ.get("SLURMD_NODENAME") or socket.gethostname()) is False:
        raise CtlError(f"run {run.run_id} is over: nobody is there to ask")
    try:
        answer = ask(run, run_dir, verb, arguments, timeout_s)
    except Unreachable as error:
        raise CtlError(f"run {run.run_id}: {error}") from None
    if not answer.is_ok:
        raise CtlError(f"run {run.run_id}: {answer.error}")
    return answer.data


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number, as in many containers
        return "unknown"


def _order(verb: str, done: str) -> Verb:
    def run(call: Call) -> int:
        data = ask_run(call, verb, {"who": _who()})
        if call.out.is_json:
            call.out.json({"ok": True, **data})
        else:
            call.out.line(str(data.get("text") or done))
        return OK

    return Verb(verb, _HELP[verb], add_run_argument, run)


_HELP = {
    "hold": "hands off: watch and explain, but stop and restart nothing, until unhold",
    "unhold": "act again",
    "restart": "end this attempt now and go on from the newest checkpoint",
    "checkpoint": "ask the ranks to save at their next should_checkpoint()",
}

HOLD = _order("hold", "held: guardrun watches and changes nothing until guardctl unhold")
UNHOLD = _order("unhold", "no longer held: guardrun acts again")
RESTART = _order("restart", "asked: this attempt ends, and the next goes on from the newest checkpoint")
CHECKPOINT = _order("checkpoint", "asked: each rank's next should_checkpoint() says yes")
