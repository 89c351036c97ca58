"""What a stack says: modules that are being imported are not the functions that they hold."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.frames import communication, waits_for_data, waits_in_init

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
USER = [Frame("main", "/home/user/train.py", 40), Frame("<module>", "/home/user/train.py", 90)]
IMPORT = [
    Frame("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241),
    Frame("_find_and_load", "<frozen importlib._bootstrap>", 1176),
]


def test_a_call_of_a_collective_waits() -> None:
    assert communication([Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2800), *USER])


@pytest.mark.parametrize(
    "file",
    ["distributed/_functional_collectives.py", "distributed/rendezvous.py", "utils/data/dataloader.py"],
)
def test_a_module_that_is_being_imported_does_not(file: str) -> None:
    stack = [Frame("custom_op", f"{TORCH}/_library/custom_ops.py", 268), Frame("<module>", f"{TORCH}/{file}", 9)]
    stack += [*IMPORT, Frame("<module>", f"{TORCH}/__init__.py", 445), *IMPORT, *USER]
    assert not communication(stack)
    assert not waits_in_init(stack)
    assert not waits_for_data(stack)


def test_an_import_within_a_collective_is_no_wait_either() -> None:
    stack = [Frame("<module>", f"{TORCH}/_inductor/config.py", 7), *IMPORT]
    assert not communication([*stack, Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2), *USER])


def test_a_rendezvous_is_a_wait_in_process_group_creation() -> None:
    assert waits_in_init([Frame("rendezvous", f"{TORCH}/distributed/rendezvous.py", 260), *USER])


def at(function: str, file: str) -> Frame:
    return Frame(function, f"{TORCH}/{file}", 1)


MODULE = at("_call_impl", "nn/modules/module.py")
DDP = [at("_run_ddp_forward", "nn/parallel/distributed.py"), at("forward", "nn/parallel/distributed.py"), MODULE]
FSDP = [at("forward", "distributed/fsdp/fully_sharded_data_parallel.py"), MODULE]
PACKAGED = Frame("forward", "/opt/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", 300)
WAIT_TENSOR = [
    at("OpOverload.redispatch", "_ops.py"),
    at("autograd_impl", "_library/autograd.py"),
    at("OpOverloadPacket.__call__", "_ops.py"),
    at("wait_tensor", "distributed/_functional_collectives.py"),
    at("redistribute_local_tensor", "distributed/tensor/_redistribute.py"),
]


@pytest.mark.parametrize(
    "inner",
    [
        [PACKAGED, MODULE, *DDP],
        [PACKAGED, MODULE, *FSDP],
        [MODULE, *DDP],
        [at("compile", "_inductor/compile_fx.py"), at("_fn", "_dynamo/eval_frame.py"), MODULE, *FSDP],
        [Frame("getstate", "/home/user/data.py", 7), at("all_gather_object", "distributed/distributed_c10d.py")],
    ],
    ids=["package, DDP", "package, FSDP", "a module in C++", "compiling", "the user's code"],
)
def test_what_is_called_from_below_a_wrapper_waits_for_nobody(inner: list[Frame]) -> None:
    assert not communication([*inner, *USER])


@pytest.mark.parametrize(
    ("inner", "names"),
    [
        ([*DDP], ["_run_ddp_forward", "forward"]),
        (
            [at("_sync_module_states", "distributed/utils.py"), *DDP],
            ["_sync_module_states", "_run_ddp_forward", "forward"],
        ),
        ([at("synchronize", "cuda/streams.py"), *FSDP], ["forward"]),
        ([at("all_reduce", "distributed/distributed_c10d.py"), PACKAGED, MODULE, *DDP], ["all_reduce"]),
        ([*WAIT_TENSOR, *USER], ["wait_tensor"]),
    ],
    ids=["DDP itself", "DDP's buffers", "a device's event", "a package's own", "functional"],
)
def test_where_the_innermost_frames_are_torchs_communication_it_waits(inner: list[Frame], names: list[str]) -> None:
    assert [frame.function for frame in communication([*inner, *USER])] == names
