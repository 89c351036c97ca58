"""torchrun's own agent: several nodes, elastic ones, `agent = "torchrun"`, and no guardrun at all (--guard-off)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.torchrun.beside import (
    RESTARTS,
    Beside,
    Seen,
    check_ended_well,
    check_same,
    ranks_words,
    read_logs,
    wait_for_probes,
)

AGENT = ["--guard-launcher-agent=torchrun"]


def check_environments(beside: Beside, ranks: set[str], is_agent: bool = True) -> Seen:
    """As under torchrun, but under its agent for a store of the ranks' own, which c10d's rendezvous gives them then."""
    pair = beside.seen()
    our_ranks: Seen = pair.ours
    their_ranks: Seen = pair.theirs
    assert set(our_ranks) == ranks
    for who, seen in our_ranks.items() if is_agent else ():
        environment = seen["environment"]
        assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        assert environment["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        environment["TORCHELASTIC_USE_AGENT_STORE"] = their_ranks[who]["environment"]["TORCHELASTIC_USE_AGENT_STORE"]
    check_same(our_ranks, their_ranks)
    return our_ranks


def test_torchruns_agent_on_one_node(beside: Beside) -> None:
    """Configured or by flag: torchrun's log layout, prefixes and restarts, under supervision."""
    flags = ["--nproc-per-node=2", "--max-restarts=1", "--redirects=3", "--tee=1:1", "--log-dir=logs", "--rdzv-id=job"]
    flags += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    wishes = '{"print": "lines", "exit": 4, "rank": 0, "attempts": 1, "others_stay": true}'
    config = '[launcher]\nagent = "torchrun"\n'
    ours, theirs = check_ended_well(beside.run([*flags, "probe.py", wishes], config=config))
    check_environments(beside, {"0-0", "1-0", "0-1", "1-1"})
    logs = [read_logs(starter.folder / "logs") for starter in beside.starters.values()]
    assert logs[0] == logs[1]
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)
    [incident] = ours.incidents
    assert (incident["cause"], incident["action"], incident["attempt"]) == ("exit_code", "restart", 0)


def test_torchruns_agent_gives_up(beside: Beside) -> None:
    """No restart left: the rank's own status, and the cause."""
    result = beside.starters["ours"].run([*AGENT, "--nproc-per-node=2", RESTARTS, "probe.py", '{"exit": 4, "rank": 1}'])
    assert result.returncode == 4, result
    assert [incident["cause"] for incident in result.incidents] == ["exit_code"]


def test_torchruns_agent_ends_for_a_rank_that_nobody_saw(beside: Beside) -> None:
    """A rank that ends at once is over before it is found below the agent: the agent's own word names it."""
    shell = ["--no-python", "sh", "-c", "exit $((4 * RANK))"]
    result = beside.starters["ours"].run([*AGENT, "--nproc-per-node=2", "--max-restarts=0", *shell])
    assert result.returncode == 4, result
    [incident] = result.incidents
    assert (incident["cause"], [culprit["rank"] for culprit in incident["culprits"]]) == ("exit_code", [1])
    assert f"pid: {incident['culprits'][0]['pid']}" in result.stderr


def test_torchruns_agent_is_signalled(beside: Beside) -> None:
    run = beside.starters["ours"].start([*AGENT, "--nproc-per-node=2", "probe.py", '{"wait": ["SIGTERM"]}'])
    wait_for_probes(run, world_size=2)
    run.send(signal.SIGTERM)
    assert run.wait(30).returncode == 143, run.result()
    assert [(run.folder / f"heard-{rank}-0").read_text() for rank in range(2)] == ["SIGTERM"] * 2
    assert run.alive() == []


def start_nodes(starter: GuardrunStarter, arguments: list[list[str]], script: list[str]) -> list[GuardrunRun]:
    environment: dict[str, str | None] = {"TMPDIR": str(starter.folder / "t")}
    return [starter.start([*flags, *script], env=environment) for flags in arguments]


def finish(runs: list[GuardrunRun]) -> list[Finished]:
    return [run.wait(60) for run in runs]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [(("trainer", "trainer"), [["0", "4"], ["2", "4"]]), (("trainer", "evaluator"), [["0", "2"], ["0", "2"]])],
    ids=["alike", "of two roles"],
)
def test_two_nodes_of_a_fixed_size(
    beside: Beside, free_ports: list[int], roles: tuple[str, str], expected: list[list[str]]
) -> None:
    """Two launchers on loopback, static rendezvous, each with two ranks: one world of four."""
    for starter, port in zip(beside.starters.values(), free_ports, strict=True):
        nodes = [
            [
                "--nnodes=2",
                RESTARTS,
                f"--node-rank={node}",
                "--nproc-per-node=2",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                f"--role={role}",
            ]
            for node, role in enumerate(roles)
        ]
        for result in finish(start_nodes(starter, nodes, ["probe.py"])):
            assert result.returncode == 0, result
    ranks = check_environments(beside, {f"{rank}-0" for rank in range(4)}, is_agent=False)
    assert [ranks[f"{rank}-0"]["environment"]["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert {seen["environment"]["WORLD_SIZE"] for seen in ranks.values()} == {"4"}
    first = [ranks[f"{rank}-0"]["environment"] for rank in (0, 2)]
    assert [[one["ROLE_RANK"], one["ROLE_WORLD_SIZE"]] for one in first] == expected


ELASTIC = ["--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=elastic"]


def test_an_elastic_job_of_two(beside: Beside, free_ports: list[int]) -> None:
    """Once the greatest number of nodes is there nobody waits for the last call."""
    flags = [*ELASTIC, "--rdzv-conf=last_call_timeout=30", f"--rdzv-endpoint=localhost:{free_ports[0]}"]
    for result in finish(start_nodes(beside.starters["ours"], [flags, flags], ["probe.py"])):
        assert result.returncode == 0, result
    ours = beside.seen().ours
    assert set(ours) == {f"{rank}-0" for rank in range(4)}
    assert {seen["environment"]["WORLD_SIZE"] for seen in ours.values()} == {"4"}


def test_alone_in_an_elastic_job(beside: Beside, free_ports: list[int]) -> None:
    flags = [*ELASTIC, RESTARTS, "--rdzv-conf=last_call_timeout=1"]
    for run in beside.start_each([[*flags, f"--rdzv-endpoint=localhost:{port}", "probe.py"] for port in free_ports]):
        assert run.wait(60).returncode == 0, run.result()
    ranks = check_environments(beside, {"0-0", "1-0"}, is_agent=False)
    assert ranks["0-0"]["environment"]["GROUP_WORLD_SIZE"] == "1"


def test_guard_off_is_torchrun(beside: Beside) -> None:
    """Environment, output, status and files: not a trace of guardrun."""
    flags = ["--nproc-per-node=2", "--max-restarts=1", "--tee=3", "--log-dir=logs"]
    wishes = '{"print": "lines", "exit": 6, "rank": 1}'
    ours, theirs = beside.run([*flags, "probe.py", wishes], own=["--guard-off"])
    assert ours.returncode == theirs.returncode == 1
    our_ranks, their_ranks = beside.seen()
    assert our_ranks == their_ranks
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)
    assert "ChildFailedError" in ours.stderr and "exitcode  : 6 (pid: " in ours.stderr
    assert "guardrun:" not in ours.stderr
    assert files(beside.starters["ours"].folder) == files(beside.starters["theirs"].folder)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(("stdout-", "stderr-"))}
