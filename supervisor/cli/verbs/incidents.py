"""`guardctl incidents`: what happened in a run."""

from __future__ import annotations

from guardrun.supervisor.cli.base.runs import find_run, guard_dir, read_run
from guardrun.supervisor.cli.base.verb import OK, Call, Verb, add_run_argument
from guardrun.supervisor.cli.views.incident_view import incidents_view
from guardrun.supervisor.report.run_record import read_incidents, short_incident


def _run(call: Call) -> int:
    run_dir = find_run(call.arguments.run, guard_dir(call.arguments.guard_dir, call.environ, call.cwd), call.cwd)
    run = read_run(run_dir)
    records = [short_incident(record) for record in read_incidents(run_dir)]
    if call.out.is_json:
        call.out.json({"run_id": run.run_id, "run_dir": str(run_dir), "incidents": records})
    elif not records:
        call.out.line(f"no incidents in run {run.run_id}")
    else:
        call.out.print(incidents_view(call.out, records))
        call.out.line(f"times are UTC; guardctl show ID tells more; reports: {run_dir / 'incidents'}", "dim")
    return OK


VERB = Verb("incidents", "what happened in a run", add_run_argument, _run)
