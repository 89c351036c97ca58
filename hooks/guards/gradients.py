"""Whether an optimizer's gradients are all finite, and their norm: they are read once, and never written.

The Euclidean norm of all tensors of one type is one fused call, and vectorised on hosts (the maximum's is sixty times
as slow there). A norm that is finite has nothing in it that isn't; one that isn't may have overflowed, so then each
number is looked at. The answer is asked of the device once: that waits for it.
"""

from __future__ import annotations

from math import hypot, inf, isfinite
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class UnreadableError(Exception):
    """A gradient that can't be looked at without knowing more of it; its text says which."""


def find_gradients(optimizer: Any) -> list[Any]:
    """Of all parameters of an optimizer, those that have one."""
    gradients = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradients.append(gradient)
    return gradients


def find_norm(gradients: Iterable[Any], torch: Any) -> float | None:
    """The Euclidean norm of this rank's gradients, infinite where it overflows. Waits for the device.

    gradients: of any shape; of DTensors, this rank's part. None where one of them holds a NaN or an infinity. Raises
    UnreadableError.
    """
    by_type: dict[tuple[Any, Any], list[Any]] = {}
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for gradient in gradients:
            values = read_values(gradient, torch)
            if values is not None:
                by_type.setdefault((values.device, values.dtype), []).append(values)
        # All are launched before the first is waited for.
        norms = [torch.stack(torch._foreach_norm(tensors)).norm() for tensors in by_type.values()]
        values = [norm.item() for norm in norms]
        for value, tensors in zip(values, by_type.values(), strict=True):
            if not isfinite(value):
                finite = torch.stack([torch.isfinite(each).all() for each in tensors])
                if not finite.all().item():
                    return None
    return hypot(*values) if all(map(isfinite, values)) else inf


def read_values(gradient: Any, torch: Any) -> Any:
    """The numbers of a gradient as a plain tensor; None where there is none that could be wrong.

    Raises UnreadableError.
    """
    values = getattr(gradient, "_local_tensor", gradient)
    if type(values) not in (torch.Tensor, torch.nn.Parameter):
        raise UnreadableError(f"gradients of type {type(values).__name__} are not looked into")
    if values.layout is torch.sparse_coo:
        values = values._values()
    elif values.layout is not torch.strided:
        raise UnreadableError(f"gradients of layout {values.layout} are not looked into")
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    elif not values.is_floating_point():
        return None
    if values.is_meta or values.element_size() == 1:
        raise UnreadableError(f"gradients of type {values.dtype} on {values.device} are not looked into")
    return values if values.numel() else None
