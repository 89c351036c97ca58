"""Ranks told by their environment, whatever started them: made-up processes, no real ones."""

from __future__ import annotations

import pytest

from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import Stat
from guardrun.supervisor.diagnose.rank_processes import NoRanks, View, find_jobs, find_ranks

FIRST = 5_000_000
"""Above what a kernel gives out (pid_max is 4,194,304 at most): none of these can be real."""


class MadeUp(View):
    """Processes by number: parent and environment."""

    def __init__(self, processes: dict[int, tuple[int, dict[str, str]]]) -> None:
        stats = [
            Stat(pid=FIRST + n, comm="python", state="S", ppid=FIRST + parent, cpu_s=0.0, start=n)
            for n, (parent, _) in processes.items()
        ]
        super().__init__(ProcessTable(stats))
        self._environs = {FIRST + n: environ for n, (_, environ) in processes.items()}


def found(view: MadeUp, *pids: int) -> dict[int, int]:
    """Rank → process."""
    ranks = find_ranks([FIRST + pid for pid in pids], "n", view=view)
    return {each.rank.global_rank: each.rank.pid - FIRST for each in ranks.found}


def torchrun(rank: int, *, size: int = 2, local: int | None = None, local_size: int | None = None) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank if local is None else local),
        "LOCAL_WORLD_SIZE": str(local_size or size),
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "none",
    }


def test_the_ranks_of_a_launcher_and_none_of_their_children() -> None:
    view = MadeUp({1: (0, {}), 2: (1, torchrun(0)), 3: (1, torchrun(1)), 4: (2, torchrun(0)), 5: (4, torchrun(0))})
    assert found(view, 1) == {0: 2, 1: 3}
    assert found(view, 5) == {0: 2, 1: 3}, "a worker of rank 0 is enough"


def test_a_launcher_that_bears_a_rank_itself() -> None:
    """Kubeflow numbers nodes by RANK, and torchrun overrides it for its ranks."""
    node = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    view = MadeUp({1: (0, node), 2: (1, torchrun(0)), 3: (1, torchrun(1))})
    assert found(view, 1) == {0: 2, 1: 3}


@pytest.mark.parametrize(("rank", "size"), [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")])
def test_ranks_of_mpirun(rank: str, size: str) -> None:
    view = MadeUp({1: (0, {}), **{n + 2: (1, {rank: str(n), size: "3"}) for n in range(3)}})
    assert found(view, 1) == {0: 2, 1: 3, 2: 4}


def test_ranks_of_srun() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    ranks = {n + 2: (1, {**step, "SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)}) for n in range(2)}
    assert found(MadeUp({1: (0, {}), **ranks}), 1) == {0: 2, 1: 3}


def test_torchrun_below_srun_counts_torchrun_s_ranks() -> None:
    step = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    view = MadeUp({1: (0, step), 2: (1, step | torchrun(0)), 3: (1, step | torchrun(1))})
    assert found(view, 1) == {0: 2, 1: 3}


def test_who_is_elsewhere_and_who_is_dead() -> None:
    """Two nodes of three ranks; of the second one, whose ranks are 3 to 5, rank 4 is missing."""
    ranks = {n: (1, torchrun(n, size=6, local=n - 3, local_size=3)) for n in (3, 5)}
    told = find_ranks([FIRST + 1], "n", view=MadeUp({1: (0, {}), **ranks}))
    assert (told.world_size, told.not_alive, told.elsewhere) == (6, [4], [0, 1, 2])


def test_peers_of_another_job_are_none() -> None:
    other = torchrun(1) | {"MASTER_PORT": "2"}
    view = MadeUp({1: (0, {}), 2: (1, torchrun(0)), 3: (1, other)})
    assert found(view, 2) == {0: 2}
    with pytest.raises(NoRanks, match="2 jobs"):
        found(view, 1)


def test_jobs_of_nobody() -> None:
    """Made-up processes have no owner, so none of them is this user's."""
    assert find_jobs(MadeUp({1: (0, {}), 2: (1, torchrun(0))})) == []
