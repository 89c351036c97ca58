"""The full pre-flight: every device computes, remembers, copies and sums; without GPUs, cores of the CPU do.

Bandwidths are kept, and judged against those of earlier ones.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.node_state import write_durably
from guardrun.supervisor.health.gpu import rank_device
from guardrun.supervisor.health.gpu.rank_device import Inventory, TorchDevice, find_device
from guardrun.supervisor.preflight import device_trial
from guardrun.supervisor.preflight.base.remark import Remark, Subject, note, ok, plural, warn
from guardrun.supervisor.preflight.base.torch_files import find_torch
from guardrun.supervisor.preflight.checks import gpu_health
from guardrun.supervisor.preflight.checks.gpus import read_gpus
from guardrun.supervisor.preflight.device_trial import Answer, Trial, ask_all, hear_all
from guardrun.supervisor.sensors.gpu.device_presence import has_driver

# Bandwidth history --------------------------------------------------------------------------------------------------
# Is a device as fast as it was? Bandwidths of each full pre-flight, kept, and judged against their median.


NAME = "bandwidth"
BANDWIDTHS_FILE = "bandwidth.json"
KEPT = 20
LEAST_PAST = 3
"""Fewer say nothing of what is usual."""
SLOW = 0.7
"""Of the median: less than that is no noise on PCIe and NVLink."""
MEANINGS = {
    "to_device": "from the host to it",
    "from_device": "from it to the host",
    "to_neighbour": "to its neighbour",
    "memory": "within the host's memory",
    "bus": "in an all-reduce among all devices",
}

Past = dict[str, dict[str, list[float]]]
"""Device → measure → bytes a second, the oldest first."""


class _File(msgspec.Struct):
    schema: int = 1
    speeds: Past = {}


def judge_bandwidth(device: str, measure: str, speed: float, past: list[float]) -> Remark:
    """device: as a person knows it; speed, past: bytes a second."""
    text = f"{device}: {speed / 1e9:.3g} GB/s {MEANINGS.get(measure, measure)}"
    data: dict[str, Any] = {"device": device, "measure": measure, "bytes_per_s": round(speed), "past": len(past)}
    if len(past) < LEAST_PAST:
        missing = plural(LEAST_PAST - len(past), "more check")
        return note(NAME, f"{text}; after {missing} there is something to compare with.", "", **data)
    usual = median(past)
    if speed < SLOW * usual:
        return warn(
            NAME,
            f"{text}, which is {speed / usual:.0%} of the {usual / 1e9:.3g} GB/s that are usual here.",
            "If nothing else was running: look at its PCIe width (nvidia-smi -q), NVLinks, clocks and temperature.",
            **data,
            usual_bytes_per_s=round(usual),
        )
    return ok(NAME, f"{text} ({speed / usual:.0%} of what is usual).", **data)


def read_bandwidths(folder: str) -> Past:
    """What was measured before; nothing where there is no file, or none that can be read."""
    try:
        return msgspec.json.decode((Path(folder) / BANDWIDTHS_FILE).read_bytes(), type=known_type(_File)).speeds
    except (OSError, msgspec.DecodeError, ValueError):
        return {}


def keep_bandwidths(folder: str, past: Past, new: Mapping[str, Mapping[str, float]]) -> None:
    """Add to what is known. A folder that cannot be written keeps nothing: the next check will say so again."""
    for device, measures in new.items():
        known = past.setdefault(device, {})
        for measure, speed in measures.items():
            known[measure] = [*known.get(measure, []), speed][-KEPT:]
    with suppress(OSError):
        write_durably(Path(folder) / BANDWIDTHS_FILE, msgspec.json.encode(_File(speeds=past)))


# Full preflight -----------------------------------------------------------------------------------------------------


MAX_CORES = 4
GPU_PATIENCE_S = 20.0
"""For NVML; it may have to be initialised."""
LIMITS_S = {"ready": 90.0, "product": 60.0, "pattern": 90.0, "copies": 30.0, "reduce": 60.0}
"""How long each part may take: several times what it does on a slow machine."""


class Plan(NamedTuple):
    """Which devices are tried."""

    devices: tuple[str, ...]
    """As launcher/device_trial/device.py has them."""
    titles: dict[str, str]
    """As a person knows them."""
    models: dict[str, str]
    """By title."""
    keys: dict[str, str]
    """By title: whose history of bandwidths."""
    remarks: list[Remark]
    gpus: tuple[gpu_health.Gpu, ...] = ()
    """In NVML's order, which need not be that of torch's numbers."""


def plan_trial(subject: Subject) -> Plan:
    """The GPUs that a run would see, if this torch can use them; else cores."""
    torch = find_torch()
    is_driven = has_driver(Path("/"), subject.environ)
    if is_driven and torch is not None and torch.is_cuda:
        readout = read_gpus(subject.environ, GPU_PATIENCE_S)
        gpus = gpu_health.visible(gpu_health.gpus_of(readout), subject.environ.get("CUDA_VISIBLE_DEVICES"))
        if gpus:
            devices = tuple(f"cuda:{place}" for place in range(len(gpus)))
            return name_devices(Plan(devices, {}, {}, {}, [], tuple(gpus)), {}, subject.environ)
    cores = _spread(sorted(os.sched_getaffinity(0)), MAX_CORES)
    devices = tuple(f"cpu:{core}" for core in cores)
    titles = {device: f"CPU {core}" for device, core in zip(devices, cores, strict=True)}
    absence = device_trial.judge_absence(is_driven, torch.cuda if torch else "")
    return Plan(devices, titles, dict.fromkeys(titles.values(), "CPU"), {t: t for t in titles.values()}, [absence])


def name_devices(plan: Plan, told: Mapping[str, Mapping[str, object]], environ: Mapping[str, str]) -> Plan:
    """The plan with each of torch's devices called by the GPU that it is; by torch's number where that is not known.

    told: what the device's process says of it (uuid, bus), by device.
    """
    gpus = {f"gpu:{gpu.uuid}": gpu for gpu in plan.gpus}
    inventory = Inventory(tuple(_listed(subject, gpu) for subject, gpu in gpus.items()))
    all_models = {_model(gpu) for gpu in plan.gpus}
    only_model = min(all_models) if len(all_models) == 1 else ""
    titles, models, keys = {}, {}, {}
    for place, device in enumerate(plan.devices):
        said = told.get(device, {})
        mine = TorchDevice("cuda", place, uuid=str(said.get("uuid", "")), bus=str(said.get("bus", "")))
        gpu = gpus.get(find_device(mine, environ, inventory).subject)
        title = titles[device] = gpu.title if gpu is not None else f"the GPU that torch calls {device}"
        # Those whose model is not known are compared with no others.
        models[title] = _model(gpu) if gpu is not None else only_model or title
        keys[title] = gpu.uuid if gpu is not None else device
    return plan._replace(titles=titles, models=models, keys=keys)


def _model(gpu: gpu_health.Gpu) -> str:
    return str(gpu.samples.get("model") or "")


def _listed(subject: str, gpu: gpu_health.Gpu) -> rank_device.Gpu:
    instances = str(gpu.samples.get("mig_instances") or "").split()
    return rank_device.Gpu(
        subject,
        gpu.index,
        str(gpu.samples.get("bus") or ""),
        is_mig=gpu.samples.get("mig_enabled") is True,
        instances=tuple(instances),
    )


def _spread(cores: Sequence[int], most: int) -> list[int]:
    """Some of them, evenly: neighbours may be two halves of one core."""
    step = max(1, len(cores) // most)
    return list(cores[::step][:most])


def run_full(subject: Subject) -> list[Remark]:
    """Try all devices; takes some ten seconds, and ends what hangs."""
    plan = plan_trial(subject)
    with tempfile.TemporaryDirectory(prefix="guardrun-trial-") as folder, tempfile.TemporaryFile() as log:
        trials = [
            Trial(
                device,
                rank=rank,
                ranks=len(plan.devices),
                store=f"{folder}/store",
                environ=subject.environ,
                log=log,
            )
            for rank, device in enumerate(plan.devices)
        ]
        try:
            return [*plan.remarks, *_try(trials, plan, subject, log)]
        finally:
            for trial in trials:
                trial.close()


def _try(trials: Sequence[Trial], plan: Plan, subject: Subject, log: IO[bytes]) -> list[Remark]:
    remarks: list[Remark] = []

    def sort(part: str, answers: Mapping[str, Answer]) -> dict[str, dict[str, object]]:
        """Set aside those that failed; the others, by title, go on."""
        good = {}
        for device, answer in answers.items():
            failure = device_trial.judge_failure(part, plan.titles[device], _with_log(answer, log))
            if failure is not None:
                remarks.append(failure)
            else:
                good[plan.titles[device]] = answer.data
        return good

    ready = hear_all(trials, "ready", LIMITS_S["ready"])
    if plan.gpus:
        plan = name_devices(plan, {device: answer.data for device, answer in ready.items()}, subject.environ)
    sort("ready", ready)
    alive = [trial for trial in trials if not ready[trial.device].error]
    for part, judge in (
        ("product", lambda good: device_trial.judge_products(good, plan.models)),
        ("pattern", device_trial.judge_patterns),
    ):
        answers = ask_all(alive, part, LIMITS_S[part])
        remarks += judge(sort(part, answers))
        alive = [trial for trial in alive if not answers[trial.device].error]
    # One after the other: they share the host's memory and its PCIe switches.
    copies = {trial.device: ask_all([trial], "copies", LIMITS_S["copies"])[trial.device] for trial in alive}
    measured = {title: _speeds(data) for title, data in sort("copies", copies).items()}
    alive = [trial for trial in alive if not copies[trial.device].error]
    if len(alive) == len(trials) > 1:
        sums = sort("reduce", ask_all(alive, "reduce", LIMITS_S["reduce"]))
        remarks += device_trial.judge_reduce(sums)
        for title, data in sums.items():
            measured.setdefault(title, {})["bus"] = float(str(data["bus"]))
    return [*remarks, *_judge_speeds(measured, plan, subject.state_folder)]


def _speeds(data: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in data.items() if isinstance(value, int | float)}


def _judge_speeds(measured: Mapping[str, Mapping[str, float]], plan: Plan, folder: str) -> list[Remark]:
    past = read_bandwidths(folder) if folder else {}
    remarks = [
        judge_bandwidth(title, measure, speed, past.get(plan.keys[title], {}).get(measure, []))
        for title, measures in measured.items()
        for measure, speed in measures.items()
    ]
    if folder:
        keep_bandwidths(folder, past, {plan.keys[title]: measures for title, measures in measured.items()})
    return remarks


def _with_log(answer: Answer, log: IO[bytes]) -> Answer:
    """Where a process ended without a word: the last that any of them said."""
    if not answer.error or "ended with" not in answer.error:
        return answer
    log.seek(0)
    lines = log.read(1 << 20).decode("utf-8", "replace").strip().splitlines()
    return answer._replace(error=f"{answer.error}: {lines[-1][:200]}" if lines else answer.error)


def timed(subject: Subject) -> tuple[list[Remark], float]:
    """run_full's remarks, and how long it took."""
    began_s = time.monotonic()
    return run_full(subject), time.monotonic() - began_s
