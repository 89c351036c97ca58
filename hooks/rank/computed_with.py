"""What a rank computes with, as the interpreter and torch tell it: versions, precision, determinism, the seed.

Nothing is imported or initialised for it, no device is asked, and nothing that a script may have put in torch's place
is called but for the getters of FLAGS.
"""

from __future__ import annotations

import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_CHARS = 1000
"""Of a value, or a path."""
PREFIXES = (
    "ACCELERATE_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DS_",
    "FI_",
    "FLASH_",
    "FSDP_",
    "GLOO_",
    "GOMP_",
    "HF_",
    "HIP_",
    "HSA_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "NUMEXPR_",
    "NVIDIA_",
    "NVTE_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "RCCL_",
    "ROCBLAS_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRANSFORMERS_",
    "TRITON_",
    "UCX_",
    "XLA_",
)
"""Of variables that change what is computed, in which precision, or how ranks speak with each other."""

FLAGS: Mapping[str, str] = {
    "float32_matmul_precision": "get_float32_matmul_precision",
    "default_dtype": "get_default_dtype",
    "deterministic_algorithms": "are_deterministic_algorithms_enabled",
    "num_threads": "get_num_threads",
}
"""What they are called, and the functions of torch that tell them."""
INNER_FLAGS: Mapping[str, str] = {
    "cudnn_allow_tf32": "_get_cudnn_allow_tf32",
    "cudnn_benchmark": "_get_cudnn_benchmark",
    "cudnn_deterministic": "_get_cudnn_deterministic",
    "fp16_reduced_precision_reduction": "_get_cublas_allow_fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction": "_get_cublas_allow_bf16_reduced_precision_reduction",
    "flash_attention": "_get_flash_sdp_enabled",
    "memory_efficient_attention": "_get_mem_efficient_sdp_enabled",
}
"""Likewise of torch._C, which may know none of them: then it is not told."""
WARNING_VERSIONS = ("2.9.", "2.10.", "2.11.", "2.12.")
"""Of torch. 2.9 warns the script, once, of whoever asks for these (aten/src/ATen/Context.cpp); 2.13 no more. …"""
WARNED_OF = frozenset({"float32_matmul_precision", "cudnn_allow_tf32"})
PRECISIONS = ("matmul", "conv", "rnn")
"""… What is asked there instead: of each kind of operation."""


def read_runtime(torch: Any) -> dict[str, str]:
    """Versions, as the interpreter and torch tell them."""
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    if torch is not None:
        version = getattr(torch, "version", None)
        found["torch"] = getattr(torch, "__version__", None)
        found["cuda"] = getattr(version, "cuda", None)
        found["hip"] = getattr(version, "hip", None)
        if hasattr(getattr(torch, "_C", None), "_nccl_version"):
            found["nccl"] = attempt(lambda: ".".join(str(part) for part in torch.cuda.nccl.version()))
    return {name: str(value)[:MAX_CHARS] for name, value in found.items() if value}


def read_flags(torch: Any) -> dict[str, str]:
    """What torch is set to."""
    if torch is None:
        return {}
    inner: Any = getattr(torch, "_C", None)
    asked = {name: (torch, function) for name, function in FLAGS.items()}
    asked |= {name: (inner, function) for name, function in INNER_FLAGS.items()}
    found: dict[str, Any] = {}
    if str(getattr(torch, "__version__", "")).startswith(WARNING_VERSIONS):
        asked = {name: one for name, one in asked.items() if name not in WARNED_OF}
        precision: Any = getattr(inner, "_get_fp32_precision_getter", None)
        for kind in PRECISIONS if precision is not None else ():
            found[f"fp32_precision_{kind}"] = attempt(partial(precision, "cuda", kind))
    found |= {name: attempt(getattr(where, function, None)) for name, (where, function) in asked.items()}
    return {name: str(value)[:MAX_CHARS] for name, value in found.items() if value is not None}


def read_seed(torch: Any) -> int | None:
    """Of torch's default generator: by what torch.initial_seed calls, which a script may have replaced."""
    seed: int | None = attempt(lambda: int(torch.default_generator.initial_seed()))
    return seed


def attempt(ask: Callable[[], Any] | None) -> Any:
    """What it answers; None where there is nothing to ask, or it raises, as flags do where old and new are mixed."""
    try:
        return None if ask is None else ask()
    except Exception:
        return None
