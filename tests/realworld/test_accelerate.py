"""accelerate's own test scripts, as they lie in the package: written for `accelerate launch` and torchrun."""

from __future__ import annotations

import pytest

from tests.realworld.training import ENVIRONMENT
from tests.realworld.training import SCRIPTS as OWN
from tests.support.guardrun_run import GuardrunStarter

pytestmark = pytest.mark.real("accelerate")

CPU = {**ENVIRONMENT, "ACCELERATE_USE_CPU": "true"}
SCRIPTS = "accelerate.test_utils.scripts"


def test_an_own_script_runs_as_under_torchrun(guardrun_starter: GuardrunStarter) -> None:
    """Long: accelerate is imported by each rank.

    Not its test_ops: on a CPU it does not a single collective after init_process_group, so that a rank may have ended
    before the other is connected to it, under torchrun as well.
    """
    done = guardrun_starter.run(["--nproc_per_node=2", str(OWN / "seeded_sync.py")], env=CPU, timeout_s=90)
    assert done.returncode == 0, done
    assert done.incidents == [] and "guardrun:" not in done.stderr


def test_a_script_that_hangs_under_torchrun_is_found_out(guardrun_starter: GuardrunStarter) -> None:
    """Uneven inputs on gloo: one rank waits in the forward pass, the other in the barrier after the loop, for ever."""
    flags = ["--nproc_per_node=2", "--max-restarts=0", "--guard-hang-floor-s=5"]
    flags += ["--guard-hang-sensitivity=eager", "--guard-hang-scale=0.3"]
    done = guardrun_starter.run([*flags, "-m", f"{SCRIPTS}.test_distributed_data_loop"], env=CPU, timeout_s=200)
    assert done.returncode == 1, done
    [incident] = done.incidents
    assert (incident["kind"], incident["cause"]) == ("hang", "collective_mismatch"), incident
    assert incident["culprits"] == [], "two ranks in two collectives: which of them is wrong cannot be told"
    assert any("test_can_join_uneven_inputs" in line for line in incident["evidence"]["stack"])
