"""Try guardrun on a real GPU, or two, in about twelve minutes; what was seen is kept in a folder.

`sensors.json` (guardrun's NVML readings, idle and busy) beside `nvidia-smi.xml`; `identity.json` (each device's
UUID and PCI address as torch and as NVML have it, and which one guardrun takes it for); `native.json` (the libraries
that py-spy finds a waiting process in, and for how long it pauses it); `values_*.json` (what steps computed, what the
hooks read of it, and what that cost); `dump/` (the flight recorder's answers in every form, and what asking cost);
`checksum.json` (what comparing replicas costs); a folder for each fault and decoy with the incidents, the log and what
ranks printed, under guardrun and for some under torchrun; `summary.json` with one row for each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.devices import identity, sensors
from benchmarks.gpu.guards import play_guards
from benchmarks.gpu.jobs import environment_of, said
from benchmarks.gpu.native import native

TRAIN = Path(__file__).parent / "train.py"
VALUES = Path(__file__).parent / "step_values.py"
FAULTS = ("sleep", "spin", "stop", "gil", "stuck", "sync", "assert", "oom", "kill")
MEMORY = ("leak", "fragment", "tidy")
"""Of which the last is a decoy."""
MEMORY_STEPS = 1300
MEMORY_WINDOWS = "[leaks]\nmemory_window_s = 1.5\n"
DECOYS = ("none", "busy")
GUARDRUN = [sys.executable, "-m", "guardrun", "--standalone", "--nproc-per-node=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
TIMED = {"GUARDRUN_SLOWDOWN_DEVICE_TIMING": "true"}
GRACE_S = 40.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="of: sensors identity native values straggler dump memory checksum guards faults torchrun overhead, or "
        "one fault, or one of guards' cases",
    )
    parser.add_argument("--limit-s", type=float, default=150, help="how long a fault may take (%(default)s)")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU here; with one, name its Python: make gpu-check PYTHON=…")
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is there already; remove it, or name another with --out")
    options.out.mkdir(parents=True, exist_ok=True)
    only = set(options.only)
    rows: list[dict[str, Any]] = []

    def is_wanted(name: str, kind: str) -> bool:
        return not only or name in only or kind in only

    if is_wanted("sensors", "sensors"):
        rows.append({"name": "sensors", "seen": sensors(options.out)})
        print(rows[-1], flush=True)
    if is_wanted("identity", "sensors"):
        rows.append({"name": "identity", "seen": identity(options.out)})
        print(rows[-1], flush=True)
    if is_wanted("native", "native"):
        rows.append({"name": "native", "seen": native(options.out)})
        print(rows[-1], flush=True)
    if is_wanted("values", "values"):
        rows.append({"name": "values", "seen": values(options.out)})
        print(rows[-1], flush=True)
    if is_wanted("straggler", "straggler"):
        rows.append(play("straggler", GUARDRUN, "straggler", options.out, 150, "--steps=400", at=40, environment=TIMED))
        print(rows[-1], flush=True)
    if is_wanted("dump", "dump"):
        rows.append(play("dump", TORCHRUN, "dump", options.out, 90))
        print(rows[-1], flush=True)
    if is_wanted("memory", "memory"):
        for row in memory(options.out, options.limit_s):
            rows.append(row)
            print(row, flush=True)
    if is_wanted("checksum", "checksum"):
        rows.append({"name": "checksum", "seen": checksum(options.out)})
        print(rows[-1], flush=True)
    for row in play_guards(options.out / "guards", is_wanted):
        rows.append(row)
        print(row, flush=True)
    cases = [(f"guardrun_{name}", GUARDRUN, name) for name in (*FAULTS, *DECOYS) if is_wanted(name, "faults")]
    cases += [(f"torchrun_{name}", TORCHRUN, name) for name in ("sleep", "stuck") if is_wanted(name, "torchrun")]
    with ThreadPoolExecutor(4) as pool:
        for row in pool.map(lambda case: play(*case, options.out, options.limit_s), cases):
            rows.append(row)
            print(row, flush=True)
    if is_wanted("overhead", "overhead"):
        for turn in range(3):
            for name, launcher in (("torchrun", TORCHRUN), ("guardrun", GUARDRUN)):
                rows.append(
                    play(f"overhead_{name}_{turn}", launcher, "none", options.out, 120, "--steps=6000", "--step-s=0")
                )
                print(rows[-1], flush=True)
    (options.out / "summary.json").write_text(json.dumps(rows, indent=1))


def play(
    name: str, launcher: list[str], fault: str, out: Path, limit_s: float, *more: str, at: int = 30,
    environment: Mapping[str, str] = {},
) -> dict[str, Any]:  # fmt: skip
    """Start the training, wait for its end or the limit, gather what was said of it."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = (
        ["--guard-dir", str(folder / "runs"), "--guard-restart-max-restarts=0"]
        if launcher[: len(GUARDRUN)] == GUARDRUN
        else []
    )
    if launcher is TORCHRUN and fault in FAULTS:
        more = (*more, "--timeout-s=30")
    environment = {**environment_of(ranks=2), **environment}
    began_s = time.time()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*launcher, *flags, str(TRAIN), "--fault", fault, f"--at={at}", "--out", str(folder), *more],
            stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
        status = wait(process, limit_s)
    notes = {file.stem: file.read_text().split("\n") for file in folder.glob("rank*.txt")}
    return {"name": name, "status": status, "s": round(time.time() - began_s, 1), "notes": notes, "said": said(folder)}


def memory(out: Path, limit_s: float) -> Iterator[dict[str, Any]]:
    """What reading a device's allocator costs, and what is told of ranks that fill, fragment, or just use it.

    The three trainings run beside each other, each rank with a limit of its own: no more than a minute for all.
    """
    folder = out / "memory"
    folder.mkdir()
    command = [sys.executable, str(TRAIN.with_name("memory.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    yield {"name": "memory", "status": done.returncode, "seen": (done.stdout or done.stderr[-2000:]).strip()}
    windows = folder / "windows.toml"
    windows.write_text(MEMORY_WINDOWS)
    more = (f"--steps={MEMORY_STEPS}", "--step-s=0.02")

    def start(name: str) -> dict[str, Any]:
        launcher = [*GUARDRUN, "--guard-config", str(windows)]
        return play(f"memory_{name}", launcher, name, out, limit_s, *more)

    with ThreadPoolExecutor(len(MEMORY)) as pool:
        yield from pool.map(start, MEMORY)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int | str:
    """The exit status, or how it was ended."""
    for sent, patience_s in ((None, limit_s), (signal.SIGINT, GRACE_S), (signal.SIGKILL, GRACE_S)):
        if sent is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(patience_s)
            return status if sent is None else f"{status} after {sent.name}"
    return "does not end"


def values(out: Path) -> str:
    """What the hooks read of steps on a device: is it right, did anything wait or change, what did it cost?"""
    told = []
    for kind in ("plain", "scaled"):
        seen = {}
        for who, launcher in (("ours", [*GUARDRUN[:-1], "--nproc-per-node=1"]), ("theirs", [sys.executable])):
            file = out / f"values_{kind}_{who}.json"
            flags = ["--guard-dir", str(out / "values_runs")] if who == "ours" else []
            command = [*launcher, *flags, str(VALUES), "--kind", kind, "--out", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode or not file.exists():
                (out / f"values_{kind}_{who}.txt").write_text(done.stdout + done.stderr)
                return f"{kind}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"
            seen[who] = json.loads(file.read_text())
        told.append(f"{kind}: {compare_values(**seen)}")
    return "; ".join(told)


def compare_values(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Of one kind of training, with guardrun and without."""
    truth = {number: tuple(pair) for number, pair in enumerate(ours["truth"], 1)}
    found = {step: (loss, norm) for step, loss, norm, _ in ours["read"] if step in truth}
    right = sum(repr(found[step]) == repr(truth[step]) for step in found)
    same = (repr(ours["truth"]), ours["parameters"]) == (repr(theirs["truth"]), theirs["parameters"])
    cost = ours["host_us"]
    return (
        f"{right} of {len(truth)} steps read as they were, {len(found) - right} otherwise, "
        f"{'the same bits' if same else 'OTHER BITS'} as without, "
        f"{cost['with']:.0f} and {cost['without']:.0f} µs of the host a step with it and without"
    )


def checksum(out: Path) -> str:
    """What comparing replicas costs, and whether it finds bits that flip."""
    program = str(Path(__file__).with_name("checksum.py"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=300)
    (out / "checksum.json").write_text(done.stdout or json.dumps({"error": done.stderr}))
    if done.returncode not in (0, 1) or not done.stdout:
        return f"failed: {done.stderr[-500:]}"
    rows = json.loads(done.stdout)["rows"]
    shares = ", ".join(f"{row['model']}: {100 * row['share_at_default']:.4f} % of a step" for row in rows)
    return f"{shares}; {'as it should be' if done.returncode == 0 else 'sums do not tell what was flipped'}"


if __name__ == "__main__":
    main()
