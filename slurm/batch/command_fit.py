"""What of guardrun's own flags, behind `guardctl sbatch … --`, doesn't fit the job. Pure."""

from __future__ import annotations

from guardrun.slurm.batch.script import JobWish
from guardrun.slurm.batch.script_command import Given, read_command


def remarks_on_command(wish: JobWish) -> list[str]:
    """One sentence each."""
    given = read_command(wish.command)
    if given.trouble:
        return [f"guardrun would not take what stands behind `--`: {given.trouble}"]
    found = [f"guardrun knows no flag {flag.partition('=')[0]}: the job would end at once" for flag in given.unknown]
    if not given.script:
        found.append("no script: what stands behind `--` is all flags")
    return [*found, *_counts(wish, given), *_ways(wish, given), *_names(wish, given)]


def _counts(wish: JobWish, given: Given) -> list[str]:
    """The script says how many, by the flags of guardctl sbatch; who says it again may mean something else."""
    found: list[str] = []
    most = given.nnodes.rpartition(":")[2]
    if given.nnodes and most != str(wish.nodes):
        found.append(
            f"--nnodes={given.nnodes} behind `--`, and --nodes {wish.nodes} (that train) before it: say --nodes {most}"
        )
    if given.spares and given.spares != str(wish.spares):
        found.append(f"--guard-spares={given.spares} behind `--`, and the job has {wish.spares}: say --spares instead")
    ranks = given.nproc_per_node
    if ranks and wish.ranks not in ("auto", ranks):
        found.append(f"--nproc-per-node={ranks} behind `--` is what counts, not the {wish.ranks} before it")
    return found


def _ways(wish: JobWish, given: Given) -> list[str]:
    """Flags by which several nodes would not be one job."""
    found: list[str] = []
    total = wish.nodes + wish.spares
    if given.is_standalone and total > 1:
        found.append(f"--standalone: each of {total} nodes would train for itself")
    if given.is_off and total > 1:
        found.append(
            "--guard-off: torchrun knows nothing of Slurm or of spares; each node would need a --rdzv-endpoint, and all"
            " would train"
        )
    if given.node_rank:
        found.append(f"--node-rank={given.node_rank} would be said to every node: under srun none is needed")
    return found


def _names(wish: JobWish, given: Given) -> list[str]:
    found: list[str] = []
    if given.run_id and wish.options.get("array"):
        found.append(
            f"--guard-run-id={given.run_id}: all tasks of the array would be one run, and all but the first be refused;"
            " leave it out, and each has a name of its own (slurm-JOB_TASK)"
        )
    found += [
        f"{text}: what stands behind `--` is taken word for word, variables stay as they are"
        for text in (f"--guard-dir={given.run_dir}", f"--guard-run-id={given.run_id}", f"--nnodes={given.nnodes}")
        if "$" in text
    ]
    return found
