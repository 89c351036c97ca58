"""The processes of a full pre-flight, one a device: started, asked part by part, judged, ended whatever they do.

What they do is in launcher/device_trial/. Each answers in lines of JSON; one that does not in time hangs in that part,
and its process is killed and not waited for: a driver may hold it for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from guardrun.supervisor.preflight.base.remark import Remark, note, ok, plural, refuse, size_text, warn

CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.launcher.device_trial.program import main; sys.exit(main(sys.argv[1:]))"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""
MAX_LINE = 1 << 20


class Answer(NamedTuple):
    """What a device's process said to one part."""

    data: dict[str, Any]
    error: str = ""
    """In words: what was raised, or how the process ended."""
    is_hanging: bool = False
    """No answer in time."""


class Trial:
    """One device's process."""

    def __init__(
        self, device: str, *, rank: int, ranks: int, store: str, environ: Mapping[str, str], log: IO[bytes]
    ) -> None:
        self.device = device
        self._buffer = b""
        self._over = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, device, str(rank), str(ranks), store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={name: value for name, value in environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the device's process, which leads a process group of its own."""
        return self._process.pid

    def ask(self, part: str) -> None:
        """Have it begin a part; `hear` tells what came of it."""
        with suppress(OSError):
            stdin = self._pipe(self._process.stdin)
            stdin.write(part.encode() + b"\n")
            stdin.flush()

    def hear(self, part: str, deadline_s: float) -> Answer:
        """Its answer to a part (`ready`: to its start); waits until deadline_s on CLOCK_MONOTONIC."""
        if self._over:
            return Answer({}, self._over)
        stdout = self._pipe(self._process.stdout)
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([stdout], [], [], left_s)[0]:
                self._over = f"it did not come back from {part}"
                self.kill()
                return Answer({}, self._over, is_hanging=True)
            data = os.read(stdout.fileno(), 65536)
            if not data or len(self._buffer) > MAX_LINE:
                self._over = self._ending()
                return Answer({}, self._over)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _parse(line)

    @property
    def is_over(self) -> bool:
        """It has hung or ended: it answers nothing any more."""
        return bool(self._over)

    def kill(self) -> None:
        """End it and all that it has started; any thread may."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and wait a moment for that."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                self._pipe(pipe).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)

    def _ending(self) -> str:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with status {code}"

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _parse(line: bytes) -> Answer:
    try:
        data = json.loads(line)
    except ValueError:
        return Answer({}, f"it said {line[:80]!r}")
    return Answer(data, str(data.get("error", "")))


def ask_all(trials: Sequence[Trial], part: str, timeout_s: float) -> dict[str, Answer]:
    """Have all devices do a part at once; the answers by device."""
    for trial in trials:
        trial.ask(part)
    return hear_all(trials, part, timeout_s)


def hear_all(trials: Sequence[Trial], part: str, timeout_s: float) -> dict[str, Answer]:
    """The answers to a part that has begun, by device; all together wait timeout_s at most."""
    deadline_s = time.monotonic() + timeout_s
    return {trial.device: trial.hear(part, deadline_s) for trial in trials}


# Trial judgement ----------------------------------------------------------------------------------------------------
# What the answers of devices under trial mean. Pure.


REPLACE = "Take it out of service (guardctl node isolate), run NVIDIA's dcgmi diag -r 3, and have it replaced."
REPLACE_CPU = "Take the node out of service (guardctl node isolate): a processor or its memory computes wrongly."


def judge_failure(part: str, device: str, answer: Answer) -> Remark | None:
    """A device that hangs, or fails, where it should have answered; None where it has."""
    name = _CHECKS[part]
    if answer.is_hanging:
        summary = f"{device} did not come back from {_WORDS[part]}: it hangs."
        return refuse(name, summary, "Look for Xids in dmesg; reset the device or reboot the node.", device=device)
    if answer.error:
        advice = "Try it by hand; if it recurs, guardctl node isolate keeps runs away."
        return warn(name, f"{device} failed in {_WORDS[part]}: {answer.error}.", advice, device=device)
    return None


_CHECKS = {"ready": "trial", "product": "product", "pattern": "pattern", "copies": "bandwidth", "reduce": "reduce"}
_WORDS = {
    "ready": "starting torch on it",
    "product": "a matrix product",
    "pattern": "a memory pattern",
    "copies": "copying",
    "reduce": "an all-reduce among all devices",
}


def judge_products(answers: Mapping[str, Mapping[str, Any]], models: Mapping[str, str]) -> list[Remark]:
    """answers: by device, as launcher/device_trial/device.py gives them; models: devices of one model must agree."""
    remarks: list[Remark] = []
    for device, answer in answers.items():
        wrong, unsteady = answer["wrong"], answer["unsteady"]
        if wrong or unsteady:
            how = f"{wrong} of {answer['turns']} matrix products wrong" if wrong else "the same product now so, now so"
            remarks.append(
                refuse("product", f"{device} computes wrongly: {how}.", _replace(device), device=device, wrong=wrong)
            )
    for model in dict.fromkeys(models.values()):
        alike = {device: answer["digests"] for device, answer in answers.items() if models.get(device) == model}
        remarks += _compare(alike, {one.evidence.get("device") for one in remarks})
    turns = min((answer["turns"] for answer in answers.values()), default=0)
    what = f"{plural(turns, 'matrix product')} on {plural(len(answers), 'device')}"
    same = ", the same bits on each" if len(answers) > 1 else ", right and the same each time"
    return remarks or ([ok("product", f"{what}{same}.", turns=turns)] if answers else [])


def _compare(digests: Mapping[str, list[str]], known: set[Any]) -> list[Remark]:
    """Devices of one model whose bits are not those of most. known: those that are known to be wrong."""
    turns = min((len(one) for one in digests.values()), default=0)
    seen = {device: tuple(one[:turns]) for device, one in digests.items()}
    counts = Counter(seen.values()).most_common()
    if len(counts) < 2:
        return []
    is_clear = counts[0][1] > counts[1][1]
    odd = [device for device, bits in seen.items() if not is_clear or bits != counts[0][0]]
    if known & set(odd):
        return []  # told already, and with more certainty
    names = ", ".join(odd)
    if is_clear and not all(device.startswith("CPU") for device in odd):
        summary = f"{names}: other bits in a matrix product than all neighbours of the same model."
        return [refuse("product", summary, _replace(odd[0]), device=odd[0])]
    summary = f"{names} do not agree in the bits of a matrix product, and each should."
    return [warn("product", summary, "Run guardctl check --full again; if it recurs: " + _replace(odd[0]), devices=odd)]


def judge_patterns(answers: Mapping[str, Mapping[str, Any]]) -> list[Remark]:
    """Whether memory kept what was written: a refusal for each device that lost some. answers: by device."""
    bad = {device: answer["wrong"] for device, answer in answers.items() if answer["wrong"]}
    if bad or not answers:
        return [
            refuse("pattern", f"{device} lost {plural(count, 'word')} of its memory.", _replace(device), device=device)
            for device, count in bad.items()
        ]
    size = size_text(min(answer["bytes"] for answer in answers.values()))
    return [ok("pattern", f"{size} of memory on each of {plural(len(answers), 'device')} kept what was written.")]


def judge_reduce(answers: Mapping[str, Mapping[str, Any]]) -> list[Remark]:
    """Whether the all-reduce's sum was right on every device; one remark, none without answers."""
    bad = [device for device, answer in answers.items() if answer["wrong"]]
    if bad:
        advice = "Something between the devices corrupts data: look at NVLink and PCIe errors, isolate the node."
        return [refuse("reduce", f"An all-reduce came out wrong on {', '.join(bad)}.", advice, devices=bad)]
    return [ok("reduce", f"{plural(len(answers), 'device')} summed rightly together.")] if answers else []


def judge_absence(has_driver: bool, torch_cuda: str) -> Remark:
    """Why the trial is the CPU's: no devices were there."""
    if has_driver and not torch_cuda:
        return note("trial", "This torch is built without CUDA: the trial was the CPU's, the GPUs were not tried.")
    return note("trial", "There are no GPUs here: the trial was the CPU's.")


def _replace(device: str) -> str:
    return REPLACE_CPU if device.startswith("CPU") else REPLACE
