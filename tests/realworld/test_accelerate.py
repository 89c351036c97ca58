"""accelerate's own test scripts, as they lie in the package: written for `accelerate launch` and torchrun."""

from __future__ import annotations

import pytest

from tests.realworld.training import ENVIRONMENT
from tests.support.guardrun_run import GuardrunStarter

pytestmark = pytest.mark.real("accelerate")

CPU = {**ENVIRONMENT, "ACCELERATE_USE_CPU": "true"}
SCRIPTS = "accelerate.test_utils.scripts"


@pytest.mark.parametrize("script", ["test_sync", "test_ops"])
def test_own_scripts_run_as_under_torchrun(guardrun_starter: GuardrunStarter, script: str) -> None:
    """Long: accelerate is imported by each rank."""
    done = guardrun_starter.run(["--nproc_per_node=2", "-m", f"{SCRIPTS}.{script}"], env=CPU, timeout_s=90)
    assert done.returncode == 0, done
    assert done.incidents == [] and "guardrun:" not in done.stderr


def test_a_script_that_hangs_under_torchrun_is_found_out(guardrun_starter: GuardrunStarter) -> None:
    """Uneven inputs on gloo: one rank waits in the forward pass, the other in the barrier after the loop, for ever."""
    flags = ["--nproc_per_node=2", "--max-restarts=0", "--guard-hang-data-patience-s=20", "--guard-hang-floor-s=5"]
    done = guardrun_starter.run([*flags, "-m", f"{SCRIPTS}.test_distributed_data_loop"], env=CPU, timeout_s=90)
    assert done.returncode == 1, done
    [incident] = done.incidents
    assert (incident["kind"], incident["cause"]) == ("hang", "collective_mismatch"), incident
    assert incident["culprits"] == [], "two ranks in two collectives: which of them is wrong cannot be told"
    assert any("test_can_join_uneven_inputs" in line for line in incident["evidence"]["stack"])
