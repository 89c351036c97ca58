"""`guardctl replay`: does the engine, given a run's events again, decide the same?"""

from __future__ import annotations

from guardrun.supervisor.cli.base.verb import NO, OK, Call, CtlError, Verb, add_run_argument, named_run


def _run(call: Call) -> int:
    from guardrun.supervisor.rundir.journal import NAME, describe_versions, replay

    run_dir = named_run(call)
    try:
        result = replay(run_dir)
    except OSError as error:
        raise CtlError(f"{error.filename or run_dir}: {error.strerror}") from None
    if result.last_number < 0:
        raise CtlError(f"{run_dir / NAME}: not one line can be read as an event of guardrun's")
    if result.left_out and not result.events:
        said = f"{run_dir / NAME}: {describe_versions(result.other_version)}"
        raise CtlError(f"{said}: replay it with the guardrun that wrote it")
    if call.out.is_json:
        call.out.json(
            {
                "run_dir": str(run_dir),
                "events": result.events,
                "decisions": result.decisions,
                "mismatches": result.mismatches,
                "set_aside": result.set_aside,
                "left_out": result.left_out,
            }
        )
        return NO if result.mismatches else OK
    aside = f", {result.set_aside} lines set aside" if result.set_aside else ""
    call.out.line(f"{result.events} events replayed, {result.decisions} decisions reached again{aside}")
    if result.left_out:
        call.out.line(f"{describe_versions(result.other_version)}: {result.left_out} lines are left out")
    for mismatch in result.mismatches:
        call.out.line(f"differs: {mismatch}", "red")
    return NO if result.mismatches else OK


VERB = Verb("replay", "run a journal through the engine again: are its decisions the same?", add_run_argument, _run)
