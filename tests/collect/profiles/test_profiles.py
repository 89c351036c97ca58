"""What a trace comes to: intervals, names, files of any kind, and what steps went to."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.hooks.wire.examinations import STEP_MARK
from guardrun.supervisor.collect.profiles import reader_process
from guardrun.supervisor.collect.profiles.breakdown import Reading, own_times
from guardrun.supervisor.collect.profiles.chrome_trace import ChromeTrace
from guardrun.supervisor.collect.profiles.intervals import Interval, clip, subtract, total, unite
from guardrun.supervisor.collect.profiles.kinds import kernel_kind, operator_kind
from guardrun.supervisor.collect.profiles.trace_reader import TraceReader
from guardrun.supervisor.rundir.profiles import Breakdown
from tests.collect.profiles.device_trace import ADD, ALL_REDUCE, COPY, GEMM, DeviceTrace, two_steps
from tests.support.waiting import wait_until

# Intervals -----------------------------------------------------------------------------------------------------------

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def covered(found: list[Interval]) -> set[int]:
    """The unit stretches that they cover, one by one."""
    return {at for start, end in found for at in range(int(start), int(end))}


@given(intervals, intervals)
def test_what_intervals_cover_is_what_their_points_do(these: list[Interval], those: list[Interval]) -> None:
    one, other = unite(these), unite(those)
    assert covered(one) == covered(these) and total(one) == len(covered(these))
    assert all(first[1] < second[0] for first, second in pairwise(one))
    left = subtract(one, other)
    assert covered(left) == covered(one) - covered(other) and unite(left) == left
    assert covered(clip(one, 5, 20)) == covered(one) & set(range(5, 20))


nested = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=10)


@given(nested)
def test_own_times_cover_what_the_events_do_once(found: list[tuple[int, int]]) -> None:
    events = [(float(start), float(start + lasts), name) for name, (start, lasts) in enumerate(found)]
    own = own_times(events)
    assert total((start, end) for start, end, _ in own) == len(covered([(start, end) for start, end, _ in own]))
    assert covered([(start, end) for start, end, _ in own]) <= covered([(start, end) for start, end, _ in events])
    for start, end, name in own:
        assert events[name][0] <= start < end <= events[name][1]


def test_an_operator_s_own_time_is_without_what_it_called() -> None:
    assert own_times([(0, 10, 1), (2, 5, 2), (3, 4, 3), (6, 7, 2), (20, 21, 1)]) == [
        (0, 2, 1), (2, 3, 2), (3, 4, 3), (4, 5, 2), (5, 6, 1), (6, 7, 2), (7, 10, 1), (20, 21, 1),
    ]  # fmt: skip


# Names ---------------------------------------------------------------------------------------------------------------

KERNELS = {
    "matmul": [
        GEMM, "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>(T1::Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasLt::cublasSplitKParams<float>)",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t>>(Flash_fwd_params)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN", "triton_tem_fused_mm_0",
        "sm80_xmma_wgrad_implicit_gemm_indexed",
        "implicit_convolve_sgemm", "void gemv2T_kernel_val<int, int, float>", "sm90_xmma_fprop_implicit_gemm_bf16",
    ],
    "communication": [
        ALL_REDUCE, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
    ],
    "memory": [
        COPY, "Memcpy DtoD (Device -> Device)", "Memset (Device)",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#3}::operator()() const>", "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >",
    ],
    "other": [
        ADD, "triton_poi_fused_add_mul_0", "triton_red_fused__to_copy_convert_element_type_mean_3",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>",
        "void at::native::vectorized_elementwise_kernel<8, at::native::convert_element<c10::BFloat16>>", "", "\x00",
    ],
}  # fmt: skip
OPERATORS = {
    "matmul": ["aten::mm", "aten::addmm", "aten::bmm", "aten::convolution_backward", "aten::mkldnn_convolution",
               "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_mm", "mkldnn::_linear_pointwise"],
    "communication": ["c10d::allreduce_", "_c10d_functional::wait_tensor", "record_param_comms"],
    "memory": ["aten::copy_", "aten::empty_strided", "aten::_to_copy", "aten::zeros_like", "aten::cat"],
    "other": ["aten::add_", "aten::threshold_backward", "aten::as_strided", "aten::toeplitz", "aten::_fused_adamw_",
              "mylib::kernel"],
    "": ["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "torch::autograd::AccumulateGrad"],
}  # fmt: skip


def test_names_of_kernels_and_operators() -> None:
    for kind, names in KERNELS.items():
        assert {name: kernel_kind(name) for name in names} == dict.fromkeys(names, kind)
    for kind, names in OPERATORS.items():
        assert {name: operator_kind(name, False) for name in names} == dict.fromkeys(names, kind)
    annotations = {"gloo:all_reduce": "communication", "nccl:_all_gather_base": "communication", "epoch": "",
                   "Optimizer.step#AdamW.step": "", "Torch-Compiled Region: 0/0": "other", "gloo::x": ""}  # fmt: skip
    assert {name: operator_kind(name, True) for name in annotations} == annotations


# Files ---------------------------------------------------------------------------------------------------------------


def read(text: str | bytes, chunk: int = 1 << 20, limit: int = 1000) -> tuple[list[dict[str, Any]], ChromeTrace]:
    data = BytesIO(text if isinstance(text, bytes) else text.encode())
    trace = ChromeTrace(lambda size: data.read(min(size, chunk)), limit)
    return list(trace.events()), trace


def test_a_trace_is_read_whatever_the_chunks() -> None:
    whole = two_steps()
    for chunk in (17, 4096, 1 << 20):
        events, trace = read(whole.text(), chunk)
        assert events == whole.events and trace.trouble == "" and trace.device_name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("text", "trouble", "count"),
    [
        ("", "it has no events", 0),
        ("[]", "it has no events", 0),
        ('{"traceEvents": 7}', "it has no events", 0),
        ('{"traceEvents": []}', "", 0),
        ('{"traceEvents": [1, null, {"a": 1}, "x"]}', "", 1),
        ('{"traceEvents": [{"a": 1}, {"b"', "it breaks off", 1),
        ('{"traceEvents": [{"a": 1}', "it breaks off", 1),
        ('{"traceEvents": [{"a": 1}, ' + "[" * 100_000, "an event nests without end", 1),
        ('{"traceEvents": [{"a": 1}, {"b": "' + "x" * 5_000_000, "an event is broken, or has no end", 1),
        ('{"traceEvents": [{"a": 1}, {oops}, ' + "x" * 5_000_000, "an event is broken, or has no end", 1),
        ("x" * 9_000_000, "it has no events", 0),
        ('{"traceEvents": [' + "{}," * 2000, "it has more than 1,000 events", 1000),
        (b'{"traceEvents": [{"a": "\xff\x00\xfe"}, {"b": 1}]}'.replace(b"\x00", b""), "", 2),
        (
            '{"traceEvents": [\n  {\n"a": 1},\n  {\n"a": "b"c"},\n  {\n"a": 2}]}',
            "1 of its events are no JSON (torch does not escape quotes in names)",
            2,
        ),
        ('{"traceEvents": [{"ts": ' + "9" * 5000 + "}]}", "it breaks off", 0),
    ],
)
def test_what_is_no_trace_ends_and_says_why(text: str | bytes, trouble: str, count: int) -> None:
    events, trace = read(text)
    assert (trace.trouble, len(events)) == (trouble, count)


# What steps went to --------------------------------------------------------------------------------------------------


def come_to(events: list[dict[str, Any]]) -> Breakdown | None:
    reading = Reading()
    for event in events:
        reading.add(event)
    return reading.breakdown("a device")


def parts(found: Breakdown) -> dict[str, int]:
    """In microseconds."""
    return {name: round(seconds * 1e6) for name, seconds in found.parts.items()}


def test_steps_on_a_device_with_nccl() -> None:
    found = come_to(two_steps().events)
    assert found is not None and (found.where, found.device) == ("device", "a device")
    # What is launched in two steps, each of 1,000 µs: the device is a step or two behind the host.
    assert round(found.window_s * 1e6) == 2000
    assert parts(found) == {"matmul": 1200, "other": 220, "communication": 200, "memory": 100, "idle": 280}
    assert round(found.communication_s * 1e6) == 600 and round(found.hidden_s * 1e6) == 400
    first, second = found.operators[:2]
    assert (first.name, first.kind, first.calls, first.under) == (GEMM, "matmul", 2, "aten::mm")
    assert (second.kind, second.under) == ("communication", "nccl:all_reduce")


def test_a_host_s_steps_of_gloo() -> None:
    def event(name: str, at: float, lasts: float, tid: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": 5000 + at, "dur": lasts, "tid": tid, "args": {}}

    events = [
        event(f"{STEP_MARK}1", 0, 0.1, cat="user_annotation"),
        event("aten::linear", 0, 100),
        event("aten::addmm", 10, 80),
        event("gloo:all_reduce", 50, 150, tid=2, cat="user_annotation"),
        event("autograd::engine::evaluate_function: AddmmBackward0", 110, 60),
        event("aten::mm", 120, 20),
        event(f"{STEP_MARK}2", 300, 0.1, cat="user_annotation"),
        event("aten::mm", 310, 1000),
    ]
    found = come_to(events)
    assert found is not None and found.where == "host"
    assert parts(found) == {"matmul": 120, "other": 0, "communication": 80, "memory": 0, "idle": 100}
    assert round(found.hidden_s * 1e6) == 70
    assert sorted((one.name, one.calls, round(one.total_s * 1e6)) for one in found.operators) == [
        ("aten::addmm", 1, 80), ("aten::linear", 1, 20), ("aten::mm", 1, 20), ("gloo:all_reduce", 1, 150),
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from([GEMM, ALL_REDUCE, ADD, COPY]), st.integers(0, 500), st.integers(1, 90)), min_size=1
    )
)
def test_parts_are_the_window_and_no_more(kernels: list[tuple[str, int, int]]) -> None:
    trace = DeviceTrace()
    for name, begins, lasts in kernels:
        trace.launch(name, begins, lasts, at=begins)
    found = come_to(trace.events)
    assert found is not None
    assert sum(found.parts.values()) == pytest.approx(found.window_s) and min(found.parts.values()) >= 0
    assert 0 <= found.hidden_s <= found.communication_s <= found.window_s * (1 + 1e-9)
    assert found.parts["communication"] <= found.communication_s - found.hidden_s + 1e-9


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
hostile = st.fixed_dictionaries(
    {"ph": st.just("X")},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "cuda_runtime", "gpu_memcpy"]) | json_values,
        "name": st.sampled_from([GEMM, f"{STEP_MARK}1", "aten::mm"]) | json_values,
        "ts": st.floats(0, 1e6) | json_values,
        "dur": st.floats(0, 1e6) | json_values,
        "tid": json_values,
        "args": st.dictionaries(st.sampled_from(["External id", "correlation", "device"]), json_values) | json_values,
    },
)


@given(st.lists(hostile, max_size=8))
def test_events_of_any_kind_are_added_up_or_passed_over(events: list[dict[str, Any]]) -> None:
    found = come_to(events)
    if found is not None:
        assert sum(found.parts.values()) == pytest.approx(found.window_s) and found.window_s > 0


def test_names_without_end_are_one() -> None:
    reading = Reading()
    for number in range(60_000):
        reading.add({"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": number * 2, "dur": 1, "args": {}})
    found = reading.breakdown()
    assert found is not None and found.operators[0].name == "(others)" and found.operators[0].calls == 10_000
    assert len(found.operators) == 30 and found.operators_left_out == 50_001 - 30


# The process ---------------------------------------------------------------------------------------------------------


def read_in_process(trace: Path, compressed: Path) -> TraceReader:
    reader = TraceReader(trace, compressed)
    wait_until(lambda: reader.poll() is not None, 60, "the reader's end")
    return reader


def test_a_process_reads_and_compresses(tmp_path: Path) -> None:
    trace, compressed = tmp_path / "profile-0-1.json", tmp_path / "profiles" / "001" / "rank-1.json.gz"
    trace.write_text(two_steps().text())
    reader = read_in_process(trace, compressed)
    found, size, trouble = reader.read()
    assert parts(found)["matmul"] == 1200 and found.device == "NVIDIA H100 80GB HBM3" and trouble == ""
    assert size == compressed.stat().st_size and compressed.stat().st_mode & 0o777 == 0o600
    assert gzip.decompress(compressed.read_bytes()) == trace.read_bytes()
    reader.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profiles"]


def test_where_there_is_no_room_for_the_trace_it_is_added_up_all_the_same(tmp_path: Path) -> None:
    trace = tmp_path / "profile-0-1.json"
    trace.write_text(two_steps().text())
    reader = read_in_process(trace, Path("/proc/self/rank-1.json.gz"))
    found, size, trouble = reader.read()
    assert parts(found)["matmul"] == 1200 and size == 0 and trouble
    reader.end()


def test_a_full_disk_leaves_no_half_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, compressed = tmp_path / "t.json", tmp_path / "c.json.gz"
    trace.write_text(two_steps().text())
    full = OSError(28, "No space left on device")

    def write(fd: int, data: bytes) -> int:
        raise full

    with trace.open("rb") as file:
        monkeypatch.setattr(reader_process.os, "write", write)
        answer = reader_process.read_trace(file.fileno(), str(compressed))
        monkeypatch.undo()
    assert answer.trace_trouble == "No space left on device" and answer.breakdown is not None
    assert answer.trace_bytes == 0 and not compressed.exists()


@pytest.mark.parametrize(("text", "why"), [("{}", "no operators, and no kernels"), (None, "can't be read")])
def test_what_is_no_trace_says_so(tmp_path: Path, text: str | None, why: str) -> None:
    trace = tmp_path / "profile-0-1.json"
    if text is not None:
        trace.write_text(text)
    reader = read_in_process(trace, tmp_path / "c.json.gz")
    with pytest.raises(ValueError, match=why):
        reader.read()
    reader.end()


LIMITED = """
import sys
from guardrun.supervisor.collect.profiles import reader_process
def read_trace(source, compressed):
    {}
reader_process.CPU_S, reader_process.MEMORY_BYTES, reader_process.read_trace = 1, 1 << 30, read_trace
sys.argv += ["/dev/null", ""]
reader_process.main()
"""


@pytest.mark.parametrize(("does", "status"), [("while True: pass", -9), ("bytearray(2 << 30)", 1)])
def test_the_process_has_limits(does: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED.format(does)], capture_output=True, timeout=240, check=False)
    assert done.returncode == status


def test_thousands_of_events_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "profile-0-1.json"
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1.5, "args": {"External id": 1, "Ev Idx": 2}}
    with trace.open("w") as file:
        file.write('{"traceEvents": [')
        for number in range(50_000):
            file.write(json.dumps({**event, "name": f"aten::op{number % 500}", "ts": 2.0 * number}, indent=4) + ",\n")
        file.write("{}]}")
    reader = read_in_process(trace, tmp_path / "c.json.gz")
    found, _, trouble = reader.read()
    assert found.events == 50_000 and not trouble and found.trouble == ""
    reader.end()
