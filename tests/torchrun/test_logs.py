"""What ranks write, where, and with which prefix: the same bytes in the same files under both launchers."""

from __future__ import annotations

import pytest

from tests.torchrun.beside import RESTARTS, Beside, check_ended_well, ranks_words, read_logs

PRINT = '{"print": "lines"}'
RAGGED = '{"print": "ragged"}'

PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"

TWO_RANKS = ["--nproc-per-node=2", RESTARTS]

CHOICES: dict[str, tuple[list[str], dict[str, str | None]]] = {
    "redirect-all": (
        ["--redirect=3", "--log-dir=logs", "--rdzv-id=job", "--rdzv-backend=c10d", "--rdzv-e=localhost:0"],
        {},
    ),
    "redirect-and-tee-by-rank": (["-r", "0:1,1:3", "-t", "1:3", "--log_dir", "logs", "--role=trainer"], {}),
    "tee-all": (["--tee=3", "--log-dir=logs/deep/er"], {}),
    "filter": (["--redirects=1", "--tee=2", "--log-dir=logs", "--local-ranks-filter=1"], {}),
    "filter-without-logs": (["--local_ranks_filter", "0"], {}),
    "variables": ([], {"PET_TEE": "0:3", "PET_REDIRECTS": "3", "PET_LOG_DIR": "logs", "PET_LOCAL_RANKS_FILTER": "0,1"}),
    "prefix": (
        ["--tee=3", "--log-dir=logs", "--role=r"],
        {PREFIX: "[${role_name} rank ${rank} local ${local_rank}]: "},
    ),
    "duplicates": (
        ["--duplicate-stdout-filters=line 1,line 2", "--duplicate_stderr_filters", "error 0", "-r=3", "--log-dir=logs"],
        {},
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_output_and_log_folders(beside: Beside, choice: str) -> None:
    flags, environment = CHOICES[choice]
    ours, theirs = check_ended_well(
        beside.run([*TWO_RANKS, *flags, "probe.py", RAGGED if "redirect-all" in choice else PRINT], env=environment)
    )
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)
    assert ranks_words(ours.stderr) == ranks_words(theirs.stderr)
    logs = [read_logs(starter.folder / "logs") for starter in beside.starters.values()]
    assert logs[0] == logs[1]
    assert bool(logs[0]) == ("logs" in " ".join([*flags, *map(str, environment.values())]))
    everything = ours.stdout + ours.stderr + "".join(logs[0].values())
    for rank in range(2):
        assert f"line 2 of rank {rank} in attempt 0\n" in everything or choice.startswith("filter"), ours


def test_attempts_have_log_folders_of_their_own(beside: Beside) -> None:
    """One restart: attempt_0 and attempt_1, RESTART_COUNT and MAX_RESTARTS as torchrun has them, exit status 0."""
    wishes = '{"print": "lines", "exit": 5, "rank": 1, "attempts": 1, "others_stay": true}'
    flags = ["--nproc-per-node=2", "--max-restarts=2", "--redirects=3", "--tee=0:3", "--log-dir=logs"]
    ours, theirs = check_ended_well(beside.run([*flags, "probe.py", wishes]))
    our_ranks, their_ranks = beside.seen()
    assert set(our_ranks) == set(their_ranks) == {"0-0", "1-0", "0-1", "1-1"}
    for ranks in (our_ranks, their_ranks):
        for who, seen in ranks.items():
            environment = seen["environment"]
            assert environment["TORCHELASTIC_RESTART_COUNT"] == who[-1]
            assert environment["TORCHELASTIC_MAX_RESTARTS"] == "2"
            assert f"/attempt_{who[-1]}/{who[0]}/error.json" in environment["TORCHELASTIC_ERROR_FILE"]
    logs = [read_logs(starter.folder / "logs") for starter in beside.starters.values()]
    for log in logs:
        for name in [name for name in log if name.endswith("error.json")]:
            del log[name]  # guardrun's ranks leave one without @record, too: test_failures
    assert logs[0] == logs[1]
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)


SPECS = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs


class Specs(DefaultLogsSpecs):
    def reify(self, envs):
        print("reified for", sorted(envs), flush=True)
        return super().reify(envs)
"""


def test_logs_specs_by_entry_point(beside: Beside) -> None:
    """--logs-specs names an entry point of any installed distribution."""
    beside.write("site/own_specs.py", SPECS)
    beside.write("site/own_specs-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: own-specs\nVersion: 1.0\n")
    beside.write("site/own_specs-1.0.dist-info/entry_points.txt", "[torchrun.logs_specs]\nown = own_specs:Specs\n")
    flags = [*TWO_RANKS, "--tee=3", "--log-dir=logs"]
    ours, theirs = check_ended_well(
        beside.run([*flags, "--logs_specs=own", "probe.py", PRINT], env={"PYTHONPATH": "site"})
    )
    assert "reified for [0, 1]" in ours.stdout
    assert ranks_words(ours.stdout) == ranks_words(theirs.stdout)
