"""What a stack says: modules that are being imported are not the functions that they hold."""

from __future__ import annotations

import pytest

from guardrun.supervisor.core.frames import waits_for_data, waits_in_collective, waits_in_init
from guardrun.supervisor.core.looks import Frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
USER = [Frame("main", "/home/user/train.py", 40), Frame("<module>", "/home/user/train.py", 90)]
IMPORT = [
    Frame("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241),
    Frame("_find_and_load", "<frozen importlib._bootstrap>", 1176),
]


def test_a_call_of_a_collective_waits() -> None:
    assert waits_in_collective([Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2800), *USER])


@pytest.mark.parametrize(
    "file",
    ["distributed/_functional_collectives.py", "distributed/rendezvous.py", "utils/data/dataloader.py"],
)
def test_a_module_that_is_being_imported_does_not(file: str) -> None:
    stack = [Frame("custom_op", f"{TORCH}/_library/custom_ops.py", 268), Frame("<module>", f"{TORCH}/{file}", 9)]
    stack += [*IMPORT, Frame("<module>", f"{TORCH}/__init__.py", 445), *IMPORT, *USER]
    assert not waits_in_collective(stack)
    assert not waits_in_init(stack)
    assert not waits_for_data(stack)


def test_an_import_within_a_collective_is_no_wait_either() -> None:
    stack = [Frame("<module>", f"{TORCH}/_inductor/config.py", 7), *IMPORT]
    assert not waits_in_collective([*stack, Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2), *USER])


def test_a_rendezvous_is_a_wait_in_process_group_creation() -> None:
    assert waits_in_init([Frame("rendezvous", f"{TORCH}/distributed/rendezvous.py", 260), *USER])
