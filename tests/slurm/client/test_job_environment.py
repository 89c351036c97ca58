"""What Slurm says by the environment, made up and (in test_steps.py) by the real one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.slurm.client.job_environment import SlurmEnvironmentError, SlurmHere, read_slurm, refusal

STEP = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "n[2-4]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n3",
    "SLURM_TOPOLOGY_ADDR": "s0.s1.n3",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
    "SLURM_PROCID": "2",
    "SLURM_JOB_END_TIME": "1795270000",
}


def here(**changes: str | None) -> SlurmHere:
    environ = {name: value for name, value in {**STEP, **changes}.items() if value is not None}
    found = read_slurm(environ)
    assert found is not None
    return found


def test_outside_of_slurm_there_is_nothing() -> None:
    assert read_slurm({"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURMD_NODENAME": "n1"}) is None


def test_a_step_may_be_smaller_than_its_job() -> None:
    step = here()
    assert (step.nodes, step.node_count, step.node, step.node_id) == (("n2", "n3", "n4"), 3, "n3", 1)
    assert step.is_step and step.job == "41" and step.restarts == 0 and step.topology == "s0.s1.n3"
    assert step.end_wall_s == 1795270000.0


def test_the_task_of_an_array_goes_by_its_own_name() -> None:
    step = here(SLURM_ARRAY_JOB_ID="41", SLURM_ARRAY_TASK_ID="7", SLURM_RESTART_COUNT="2")
    assert (step.job, step.restarts) == ("41_7", 2)


@pytest.mark.parametrize(
    ("address", "pattern", "switches"),
    [
        ("s0.s1.n3", "switch.switch.node", ("s0", "s1")),
        ("s0.s[1-2].n3.example.org", "switch.switch.node", ("s0", "s[1-2]")),
        ("b7.n3", "block.node", ("b7",)),
        ("n3", "node", ()),
        ("n3.example.org", "node", ()),
        ("s0.n3", "switch.switch.node", ()),
        ("s0.n3", None, ()),
        (None, "switch.node", ()),
    ],
)
def test_the_switches_above_a_node(address: str | None, pattern: str | None, switches: tuple[str, ...]) -> None:
    assert here(SLURM_TOPOLOGY_ADDR=address, SLURM_TOPOLOGY_ADDR_PATTERN=pattern).switches == switches


def test_nodes_come_in_slurm_s_order_or_in_the_user_s() -> None:
    assert (here().place, here(SLURM_DISTRIBUTION="cyclic").place) == (1, 1)
    given = here(SLURM_DISTRIBUTION="arbitrary")
    assert (given.place, given.is_order_given) == (2, True)
    assert here(SLURM_DISTRIBUTION="arbitrary", SLURM_PROCID=None).place == 1


@pytest.mark.parametrize("special", ["4294967291", "4294967290", None])
def test_the_batch_script_and_an_interactive_shell_are_no_steps(special: str | None) -> None:
    batch = here(SLURM_STEP_ID=special, SLURM_STEP_NODELIST=None, SLURM_STEP_NUM_NODES=None, SLURM_NODEID="0")
    assert not batch.is_step
    assert (batch.nodes, batch.node_count) == (("n1", "n2", "n3", "n4"), 4)


def test_one_guardrun_a_node() -> None:
    assert refusal(here(), 3) == ""
    text = refusal(here(SLURM_STEP_TASKS_PER_NODE="1,8(x2)", SLURM_STEP_NUM_TASKS="17", SLURM_LOCALID="3"), 3)
    assert "8 guardrun on n3" in text and "--ntasks-per-node=1" in text and "--nproc_per_node=8" in text


def test_nodes_that_are_not_there() -> None:
    text = refusal(here(), 4)
    assert "this step has 3 nodes, and the command line asks for 4" in text and "--nodes=4" in text


def test_srun_is_missed_where_several_nodes_are_wanted() -> None:
    batch = here(SLURM_STEP_ID=None, SLURMD_NODENAME="n1")
    assert refusal(batch, 1) == ""
    assert "srun is missing: job 41 has 4 nodes, but guardrun was started only on n1" in refusal(batch, 2)
    assert "on none of the job's nodes" in refusal(here(SLURM_STEP_ID=None, SLURMD_NODENAME=None), 2)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SLURM_NODEID", "x", "SLURM_NODEID=x: expected a number"),
        ("SLURM_NODEID", "²", "SLURM_NODEID=²: expected a number"),
        ("SLURM_NODEID", "3", "SLURM_NODEID=3: expected a number below the step's nodes, 3"),
        ("SLURM_STEP_NUM_NODES", "-1", "SLURM_STEP_NUM_NODES=-1: expected a number"),
        ("SLURM_STEP_NODELIST", "n[2-", "SLURM_STEP_NODELIST: node list 'n[2-': a '[' without its ']'"),
        ("SLURM_RESTART_COUNT", "9" * 30, "SLURM_RESTART_COUNT=999"),
    ],
)
def test_a_variable_that_cannot_be_understood_is_named(name: str, value: str, says: str) -> None:
    with pytest.raises(SlurmEnvironmentError) as caught:
        here(**{name: value})
    assert says in str(caught.value)


@given(st.dictionaries(st.sampled_from([*STEP, "SLURM_ARRAY_TASK_ID", "SLURM_HET_SIZE"]), st.text(max_size=12)))
def test_nothing_else_comes_of_it(changes: dict[str, str]) -> None:
    try:
        found = read_slurm({**STEP, **changes})
    except SlurmEnvironmentError:
        return
    assert found is None or refusal(found, 1) is not None
