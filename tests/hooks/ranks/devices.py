"""A rank on a GPU, without one: torch's own Python code over a driver that this script plays.

Every call of the driver is printed, so that a test sees what the hooks add to them: nothing.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch

calls: list[str] = []
current = 0
tells_uuid = "no-uuid" not in sys.argv


def called(name: str, answer: Any) -> Any:
    def call(*arguments: Any) -> Any:
        calls.append(f"{name}{arguments}")
        return answer(*arguments) if callable(answer) else answer

    return call


def set_current(index: int) -> None:
    global current
    torch.cuda._initialized = True  # as the binding does, by _lazy_init
    current = index


def properties(index: int) -> Any:
    identity = {"uuid": f"uuid-{index}", "pci_domain_id": 0, "pci_bus_id": 0x3B + index, "pci_device_id": 0}
    return SimpleNamespace(name="a GPU", **(identity if tells_uuid else {}))


class OnDevice(torch.nn.Parameter):
    """A parameter that says it lies on a device."""

    where = torch.device("cuda:0")

    @property
    def device(self) -> torch.device:
        return self.where


def optimizer(*places: str) -> torch.optim.Optimizer:
    parameters = []
    for place in places:
        kind = type("Parameter", (OnDevice,), {"where": torch.device(place)})
        parameter = kind(torch.zeros(1))
        parameter.grad = torch.ones(1)
        parameters.append(parameter)
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


torch._C._cuda_setDevice = called("set_device", set_current)  # type: ignore[attr-defined]
torch._C._cuda_getDevice = called("get_device", lambda: current)  # type: ignore[attr-defined]
torch.cuda._get_device_properties = properties  # type: ignore[attr-defined]  # kept by torch: no call
torch.cuda.device_count = lambda: 8  # type: ignore[assignment]

for word in sys.argv[1:]:
    what, _, place = word.partition("=")
    if what == "set":
        torch.cuda.set_device(int(place))
    elif what == "step":
        optimizer(*place.split("+")).step()
print(" ".join(calls))
