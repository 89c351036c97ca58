"""Several guardruns on one host, as --master-addr=127.0.0.1 says: where the head listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from guardrun.launcher.address import loopback_address
from guardrun.supervisor.coordinator.joinfile import JoinError, JoinFile, read_join_file
from tests.support.guardrun_run import GuardrunRun
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCRIPT = "import os\nassert os.environ['WORLD_SIZE'] == '2'\n"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_the_head_listens_where_its_nodes_are_and_they_meet(
    address: str, start_guardrun: Callable[..., GuardrunRun], tmp_path: Path
) -> None:
    path = tmp_path / "join"
    flags = ["--nnodes=2", f"--master-addr={address}", f"--master-port={free_ports(1)[0]}", f"--guard-join={path}"]
    head = start_guardrun([*flags, "--node-rank=0"], script=SCRIPT)

    def read() -> JoinFile | None:
        try:
            return read_join_file(path)
        except JoinError:
            return None

    join = wait_until(read, 60, "the join file")
    assert join is not None
    listening = {
        one.laddr[0]
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr[1] == join.port
    }
    assert listening and listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    node = start_guardrun([*flags, "--node-rank=1"], script=SCRIPT)
    assert [head.wait().returncode, node.wait().returncode] == [0, 0]


@pytest.mark.parametrize("host", ["192.0.2.1", "node-a", "0.0.0.0", "::"])
def test_what_is_no_loopback_address_is_listened_for_everywhere(host: str) -> None:
    assert loopback_address(host) == ""
