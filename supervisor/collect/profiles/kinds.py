"""Of which kind an operator or a kernel is, by its name. Pure.

Names are those that torch, its inductor, NCCL, RCCL, cuBLAS, CUTLASS, cuDNN, Triton and rocBLAS give; what is not known
is OTHER, which counts as computing.
"""

from __future__ import annotations

import re
from functools import lru_cache

MATMUL, COMMUNICATION, MEMORY, OTHER = "matmul", "communication", "memory", "other"
KINDS = (MATMUL, OTHER, COMMUNICATION, MEMORY)
"""Of what runs at the same time, the first is what it counts as; so computing hides the rest."""
NAMES_KEPT = 4096

_BACKENDS = r"(?:nccl|gloo|mpi|ucc|xccl|hccl|rccl|emu)"
_MOVES = r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv)"
_KERNEL_COMMUNICATION = re.compile(
    # Memcpy of NCCL's are none: they have no name of their own.
    rf"nccl|rccl|msccl|nvshmem|multimem|symm_mem|deep_?ep|{_MOVES}|cross_device_reduce",
    re.IGNORECASE,
)
_KERNEL_MATMUL = re.compile(
    r"gemm|gemv|cutlass|xmma|cublas|mat_?mul|nvjet|splitk|(?:^|[^a-z])b?mm(?:$|[^a-z])|wgmma|hmma|wmma|tensorop"
    r"|conv(?:olution|olve|[123]d|_?f?prop)|[fdw]prop|[wd]grad|winograd|implicit_con"
    r"|flash|fmha|attention|attn|^cijk_|^triton_tem_|ck::.*(?:gemm|conv)",
    re.IGNORECASE,
)
_KERNEL_MEMORY = re.compile(
    r"^mem(?:cpy|set)|direct_copy|(?:^|[^a-z])copy_?kernel|catarraybatchedcopy|fillfunctor|fill_?kernel", re.IGNORECASE
)
_OPERATOR_COMMUNICATION = re.compile(
    rf"^(?:c10d|_c10d_functional|c10d_functional|symm_mem)::|^record_param_comms$|^{_BACKENDS}:[^:]", re.IGNORECASE
)
_OPERATOR_MATMUL = re.compile(
    r"^aten::(?:mm|bmm|addmm|addbmm|baddbmm|addmv|mv|addr|dot|vdot|inner|matmul|linear|einsum|tensordot|_?int_mm"
    r"|_?scaled_(?:grouped_)?mm|_?grouped_mm|_addmm_activation|bilinear|_trilinear"
    r"|_?convolution\w*|conv\d\w*|conv_\w+|mkldnn_(?:convolution|linear|rnn_layer)\w*|_?slow_conv\w*|_?thnn_conv\w*"
    r"|cudnn_convolution\w*|miopen_convolution\w*|_?scaled_dot_product\w*|_?(?:flash|efficient|cudnn)_attention\w*"
    r"|_nnpack\w*|lstm|gru)$"
    r"|^(?:mkldnn|mkl|onednn|quantized)::\w*(?:linear|conv|mm)|flash_attn|xformers|memory_efficient_attention|^triton_tem_"
)
_OPERATOR_MEMORY = re.compile(
    r"^aten::(?:copy_?|_to_copy|to|clone|contiguous|empty\w*|new_empty\w*|zero_?|zeros\w*|new_zeros|fill_|full\w*"
    r"|ones\w*|cat|_cat|stack|split_with_sizes_copy|chunk_cat|_chunk_cat|_foreach_copy_|_foreach_zero_|resize_?"
    r"|_?pin_memory|is_pinned|item|_local_scalar_dense|set_|repeat|pad|constant_pad_nd)$"
    r"|^fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)|^Mem(?:cpy|set)"
)
_CONTAINER = re.compile(
    r"^autograd::engine::|^torch::autograd::|^torch[.:]+distributed[.:]|Backward\d*$|^DataLoader|^enumerate\("
    r"|^Optimizer\.|^guardrun\."
)
"""Around others: what is theirs alone is Python's, autograd's own, or waiting."""
_COMPILED = re.compile(r"^(?:Torch-Compiled Region|## Call CompiledFxGraph|triton_|cpp_|graph_\d+_)")


@lru_cache(maxsize=NAMES_KEPT)
def kernel_kind(name: str) -> str:
    """What ran on a device."""
    if _KERNEL_MEMORY.search(name[:40]):  # of templates' arguments the first matters
        return MEMORY
    if _KERNEL_COMMUNICATION.search(name):
        return COMMUNICATION
    if _KERNEL_MATMUL.search(name):
        return MATMUL
    return MEMORY if _KERNEL_MEMORY.search(name) else OTHER


@lru_cache(maxsize=NAMES_KEPT)
def operator_kind(name: str, is_annotation: bool) -> str:
    """What ran on the host; empty: it is around others, and nothing by itself.

    is_annotation: torch, or the script, has only named a stretch of time.
    """
    if _OPERATOR_COMMUNICATION.search(name):
        return COMMUNICATION
    if is_annotation:
        return OTHER if _COMPILED.search(name) else ""
    if _CONTAINER.search(name):
        return ""
    if _OPERATOR_MATMUL.search(name):
        return MATMUL
    return MEMORY if _OPERATOR_MEMORY.search(name) else OTHER
