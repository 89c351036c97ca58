"""Which device is a rank's: what names one, and the many things that seem to."""

from __future__ import annotations

import pytest

from guardrun.supervisor.health.gpu.rank_device import (
    INITIAL_PID_NAMESPACE,
    Gpu,
    Inventory,
    TorchDevice,
    find_device,
    trusts_pids,
)

A, B, C = "gpu:GPU-aaaa1111-0", "gpu:GPU-aaaa2222-0", "gpu:GPU-cccc3333-0"
GPUS = (Gpu(A, 0, "0000:3b:00"), Gpu(B, 1, "0000:5e:00"), Gpu(C, 2, "0000:18:00"))
"""By PCI address, C comes first."""
HERE = Inventory(GPUS)
AGENTS = Inventory(GPUS, is_ranks_view=False)
ONE = Inventory(GPUS[:1])
DIVIDED = Inventory((GPUS[0], Gpu(B, 1, "0000:5e:00", is_mig=True, instances=("MIG-11aa", "MIG-22bb"))))
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
NOBODY = TorchDevice()


def visible(text: str, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text, **more}


def on(index: int) -> TorchDevice:
    """Of a torch that cannot tell more."""
    return TorchDevice("cuda", index)


@pytest.mark.parametrize(
    ("told", "environ", "inventory", "device"),
    [
        # What torch says of the device itself counts, whatever the numbers are.
        (TorchDevice("cuda", 0, uuid="aaaa2222-0"), visible("1", LOCAL_RANK="0"), HERE, B),
        (TorchDevice("cuda", 0, uuid="GPU-AAAA2222-0"), {}, AGENTS, B),
        (TorchDevice("cuda", 5, bus="00000000:5E:00.0"), {}, HERE, B),
        (TorchDevice("cuda", 5, uuid="aaaa2222-0", bus="0000:5e:00.0"), visible("0"), HERE, B),
        (TorchDevice("cuda", 0, uuid="22bb"), {}, DIVIDED, B),
        (TorchDevice("cuda", 0, uuid="MIG-22bb", bus="0000:5e:00"), {}, DIVIDED, B),
        (TorchDevice("cuda", 0, uuid="an-instance-not-listed", bus="0000:5e:00"), {}, DIVIDED, B),
        # … and where it says two things, or something that nobody knows, nothing does.
        (TorchDevice("cuda", 0, uuid="aaaa2222-0", bus="0000:3b:00"), visible("GPU-aaaa1111-0"), HERE, ""),
        (TorchDevice("cuda", 0, uuid="ffff"), visible("GPU-aaaa1111-0"), HERE, ""),
        (TorchDevice("cuda", 0, uuid="ffff", bus="0000:3b:00"), {}, HERE, ""),
        (TorchDevice("cuda", 0, bus="0000:99:00"), {}, HERE, ""),
        (TorchDevice("cuda", 0, uuid="aaaa2222-0", is_alone=False), {}, HERE, ""),
        (TorchDevice("xpu", 0, uuid="aaaa2222-0"), {}, HERE, ""),
        (TorchDevice("hip", 0), visible("0"), ONE, ""),
        # A UUID in the environment.
        (NOBODY, visible("GPU-aaaa2222-0"), AGENTS, B),
        (NOBODY, visible("GPU-c"), AGENTS, C),
        (on(1), visible("GPU-cccc,GPU-aaaa1"), AGENTS, A),
        (on(0), visible("GPU-cccc,GPU-unheard-of"), AGENTS, C),
        (NOBODY, visible("GPU-cccc,1"), AGENTS, C),
        (NOBODY, visible("GPU-cccc,GPU-unheard-of"), AGENTS, ""),
        (on(1), visible("GPU-cccc,GPU-unheard-of,GPU-aaaa1"), AGENTS, ""),
        (NOBODY, visible("GPU-aaaa"), HERE, ""),
        (NOBODY, visible("GPU-cccc,GPU-cccc3"), HERE, ""),
        (NOBODY, visible("GPU-cccc,GPU-aaaa1"), HERE, ""),
        (on(2), visible("GPU-cccc,GPU-aaaa1"), HERE, ""),
        (NOBODY, visible("cccc3333-0"), HERE, ""),
        (NOBODY, visible("MIG-22bb"), DIVIDED, B),
        (NOBODY, visible("MIG-2"), DIVIDED, B),
        (NOBODY, visible("MIG-GPU-aaaa2222-0/1/0"), AGENTS, B),
        (NOBODY, visible("MIG-22bb,MIG-11aa"), DIVIDED, ""),
        (NOBODY, visible("MIG-33cc"), DIVIDED, ""),
        (NOBODY, visible("GPU-aaaa2222-0"), DIVIDED, ""),
        # Numbers: only in a known order, counted by whoever sees the same devices.
        (NOBODY, visible("0", **PCI), HERE, C),
        (NOBODY, visible("2", **PCI), HERE, B),
        (on(1), visible("2,1", **PCI), HERE, A),
        (on(1), PCI, HERE, A),
        (NOBODY, visible("1gpu", **PCI), HERE, A),
        (NOBODY, visible("+1", **PCI), HERE, A),
        (NOBODY, visible(" 1 ,-1, 0", **PCI), HERE, A),
        (NOBODY, visible("1,7,0", **PCI), HERE, A),
        (NOBODY, visible("0"), ONE, A),
        (NOBODY, {}, ONE, A),
        (on(0), {}, ONE, A),
        (NOBODY, visible("0", LOCAL_RANK="0"), HERE, ""),
        (on(0), {"LOCAL_RANK": "0"}, HERE, ""),
        (NOBODY, visible("0", CUDA_DEVICE_ORDER="FASTEST_FIRST"), HERE, ""),
        (NOBODY, visible("0", **PCI), AGENTS, ""),
        (NOBODY, visible("0", **PCI), HERE._replace(is_complete=False), ""),
        (NOBODY, visible("0", **PCI), DIVIDED, ""),
        (NOBODY, visible("0"), ONE._replace(is_complete=False), ""),
        (on(1), {}, ONE, ""),
        (on(3), PCI, HERE, ""),
        (NOBODY, PCI, HERE, ""),
        (NOBODY, visible("3", **PCI), HERE, ""),
        (NOBODY, visible("-1", **PCI), HERE, ""),
        (NOBODY, visible("-1"), ONE, ""),
        (NOBODY, visible(""), ONE, ""),
        (on(0), visible(""), ONE, ""),
        (NOBODY, visible("1,1", **PCI), HERE, ""),
        (NOBODY, visible("NoDevFiles"), ONE, ""),
        (NOBODY, visible("1,GPU-cccc", **PCI), HERE, A),
        # A container that was given one device by its UUID, seen from outside.
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "GPU-cccc3333-0"}, AGENTS, C),
        (NOBODY, visible("0", NVIDIA_VISIBLE_DEVICES="GPU-cccc3333-0"), AGENTS, C),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "MIG-22bb"}, DIVIDED._replace(is_ranks_view=False), B),
        (NOBODY, visible("1", NVIDIA_VISIBLE_DEVICES="GPU-cccc3333-0"), AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "GPU-cccc3333-0,GPU-aaaa1111-0"}, AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "GPU-cccc"}, AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "2"}, AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "all"}, AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": "void"}, AGENTS, ""),
        (NOBODY, {"NVIDIA_VISIBLE_DEVICES": ""}, AGENTS, ""),
        (NOBODY, {}, Inventory(), ""),
    ],
)
def test_the_device_or_nothing(told: TorchDevice, environ: dict[str, str], inventory: Inventory, device: str) -> None:
    found = find_device(told, environ, inventory)
    assert found.subject == device
    assert device or found.why, "what is unknown has a reason"


@pytest.mark.parametrize(
    ("told", "environ", "held", "own", "device"),
    [
        (NOBODY, {}, [B], [B], B),
        (NOBODY, {}, [A], [], A),  # its own device, of which others hold a context by mistake
        (NOBODY, {}, [A, B], [B], B),  # the other way round
        (NOBODY, {}, [A, B], [], ""),  # peers' buffers everywhere
        (NOBODY, {}, [A, B], [A, B], ""),
        (TorchDevice("cuda", 0, uuid="aaaa2222-0"), {}, [A, B], [], B),
        (TorchDevice("cuda", 0, uuid="aaaa2222-0"), {}, [A], [A], ""),
        (NOBODY, visible("GPU-cccc"), [C], [], C),
        (NOBODY, visible("GPU-cccc"), [A], [A], ""),
        (TorchDevice("xpu", 0), {}, [A], [A], ""),
    ],
)
def test_memory_decides_where_nothing_else_does_and_contradicts(
    told: TorchDevice, environ: dict[str, str], held: list[str], own: list[str], device: str
) -> None:
    assert find_device(told, environ, HERE, held, own).subject == device


def test_two_ranks_may_share_a_device() -> None:
    told = TorchDevice("cuda", 0, uuid="cccc3333-0")
    assert find_device(told, {}, HERE, [C], []).subject == find_device(told, {}, HERE).subject == C


@pytest.mark.parametrize(
    ("namespace", "here", "holders", "is_trusted"),
    [
        (INITIAL_PID_NAMESPACE, INITIAL_PID_NAMESPACE, [10, 99], True),
        (INITIAL_PID_NAMESPACE, INITIAL_PID_NAMESPACE, [], True),
        (INITIAL_PID_NAMESPACE, 4026532000, [10, 99], False),  # the agent's, of ranks in a container
        (4026532000, 4026532000, [10, 99], False),  # the host's ids, one of which a rank has, too
        (4026532000, 4026532000, [10, 11], True),  # a driver that translates
        (4026532000, 4026532000, [], False),
        (None, INITIAL_PID_NAMESPACE, [10, 99], False),
        (None, INITIAL_PID_NAMESPACE, [10], True),
    ],
)
def test_process_ids_of_another_namespace_are_nobodys(
    namespace: int | None, here: int, holders: list[int], is_trusted: bool
) -> None:
    assert trusts_pids(namespace, here, holders, [10, 11]) == is_trusted
