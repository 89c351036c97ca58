"""What torch's own analyser says of a job's dumps: which ranks a collective lacks, and which calls don't match.

`torch.distributed.flight_recorder`, as `torchfrtrace` runs it over the dumps that NCCL's watchdog leaves; those are
pickles of what the JSON has, with frames besides. Sends and receives are left out: the analyser takes the entry that
closes a batch for a collective of its own.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

from tests.support.recorder_dumps import Job


class Problem(NamedTuple):
    """The first that is wrong with a group; what follows on it is not compared any more."""

    group: str
    """torch's name."""
    seq: int
    missing: tuple[int, ...] = ()
    """Ranks that have not issued it; empty where calls of one number don't match."""


def analyse(job: Job, read: set[int]) -> list[Problem] | str:
    """Problems by group, or why the analyser gave up. read: ranks whose dumps there are.

    That some have completed what others have pending is none: those are not done yet.
    """
    from torch.distributed.flight_recorder.components import builder, utils

    # It lays its tables by a package that it can do without, but for this one name.
    utils.tabulate = getattr(utils, "tabulate", lambda rows, **_: "")
    details: dict[str, dict[str, Any]] = {}
    for rank in sorted(read):
        dump = job.raw_dump(rank)
        told = {key: dump[key] for key in ("version", "pg_config")}
        details[f"trace_{rank}"] = {"host_name": f"host_rank{rank}", "rank": rank, "entries": dump.get("entries", [])}
        details[f"trace_{rank}"] |= told
    arguments = Namespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10, selected_ranks=None
    )
    try:
        found = builder.build_db(details, arguments, job.release.version)
    except (AssertionError, KeyError, IndexError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    problems: dict[str, Problem] = {}
    for each in found.collectives:
        kinds = {one.type_of_mismatch.state.name for one in (each.mismatch_collectives or {}).values()}
        if each.group_id in problems:
            continue
        if each.missing_ranks:
            problems[each.group_id] = Problem(each.group_id, each.collective_seq_id, tuple(sorted(each.missing_ranks)))
        elif kinds - {"COLLECTIVE_STATE_MISMATCH"}:
            problems[each.group_id] = Problem(each.group_id, each.collective_seq_id)
    return sorted(problems.values())
