"""Try guardrun on a real GPU, or two, in about ten minutes; what was seen is kept in a folder.

`sensors.json` (guardrun's NVML readings, idle and busy) beside `nvidia-smi.xml`; `identity.json` (each device's
UUID and PCI address as torch and as NVML have it, and which one guardrun takes it for); `dump/` (the flight recorder's
answers in every form, and what asking cost); `checksum.json` (what comparing replicas costs); a folder for each fault
and decoy with the incidents, the log and what ranks printed, under guardrun and for some under torchrun;
`summary.json` with one row for each.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guardrun.supervisor.health.gpu.rank_device import Inventory

TRAIN = Path(__file__).parent / "train.py"
FAULTS = ("sleep", "spin", "stop", "gil", "stuck", "assert", "oom", "kill")
DECOYS = ("none", "busy")
GUARDRUN = [sys.executable, "-m", "guardrun", "--standalone", "--nproc-per-node=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
GRACE_S = 40.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="of: sensors identity dump checksum faults torchrun overhead, or one fault",
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
    if is_wanted("dump", "dump"):
        rows.append(play("dump", TORCHRUN, "dump", options.out, 90))
        print(rows[-1], flush=True)
    if is_wanted("checksum", "checksum"):
        rows.append({"name": "checksum", "seen": checksum(options.out)})
        print(rows[-1], flush=True)
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


def play(name: str, launcher: list[str], fault: str, out: Path, limit_s: float, *more: str) -> dict[str, Any]:
    """Start the training, wait for its end or the limit, gather what was said of it."""
    import torch

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["--guard-dir", str(folder / "runs"), "--guard-restart-max-restarts=0"] if launcher is GUARDRUN else []
    if launcher is TORCHRUN and fault in FAULTS:
        more = (*more, "--timeout-s=30")
    environment = dict(os.environ, NCCL_DEBUG="WARN", OMP_NUM_THREADS="1")
    if torch.cuda.device_count() < 2:
        environment |= {"GPU_CHECK_SHARED": "1", "NCCL_SOCKET_IFNAME": "lo"}
    began_s = time.time()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*launcher, *flags, str(TRAIN), "--fault", fault, "--out", str(folder), *more],
            stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
        status = wait(process, limit_s)
    notes = {file.stem: file.read_text().split("\n") for file in folder.glob("rank*.txt")}
    return {"name": name, "status": status, "s": round(time.time() - began_s, 1), "notes": notes, "said": said(folder)}


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


def said(folder: Path) -> list[str]:
    """What guardrun told of it: stalls and incidents, as its log has them."""
    found = []
    for log in sorted(folder.glob("runs/2*/guardrun.log")):
        for line in log.read_text().splitlines():
            told = json.loads(line)
            if told.get("event") == "said":
                found.append(str(told.get("text")))
    return found


def sensors(out: Path) -> str:
    """What the sensors tell of an idle and of a busy device, beside nvidia-smi's whole report."""
    import pynvml
    import torch

    from guardrun.supervisor.sensors.gpu.nvml_calls import Watch
    from guardrun.supervisor.sensors.gpu.nvml_session import Session
    from guardrun.supervisor.sensors.gpu.nvml_wire import FAST, MEDIUM, SLOW

    def read(session: Session) -> list[dict[str, Any]]:
        began_s = time.monotonic()
        told: list[dict[str, Any]] = [
            {"subject": one.subject, "name": one.name, "value": one.value, "trouble": one.trouble}
            for one in session.turn([FAST, MEDIUM, SLOW])
        ]
        return [*told, {"took_s": time.monotonic() - began_s}]

    session = Session(pynvml, Watch())
    kept = {"idle": read(session)}
    report = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=False)
    (out / "nvidia-smi.xml").write_text(report.stdout or report.stderr)
    factor = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
    until_s = time.monotonic() + 15
    while time.monotonic() < until_s:
        for _ in range(20):
            factor @ factor
        torch.cuda.synchronize()
        if until_s - time.monotonic() < 8 and "busy" not in kept:
            for _ in range(600):
                factor @ factor  # The device is at work while it is read.
            kept["busy"] = read(session)
    torch.cuda.synchronize()
    kept["after"] = read(session)
    (out / "sensors.json").write_text(json.dumps(kept, indent=1, default=str))
    unread = [f"{one['name']}: {one['trouble']}" for one in kept["busy"] if one.get("trouble")]
    return f"{len(kept['busy'])} readings, unread: {'; '.join(unread) or 'none'}"


def identity(out: Path) -> str:
    """Whether torch and NVML call the same device the same, and guardrun finds it by either of the two names."""
    import pynvml
    import torch

    from guardrun.hooks.patches.devices import read_identity
    from guardrun.supervisor.health.gpu.rank_device import Gpu, Inventory
    from guardrun.supervisor.sensors.gpu.nvml_calls import Watch
    from guardrun.supervisor.sensors.gpu.nvml_session import Session

    listed = Session(pynvml, Watch()).devices
    inventory = Inventory(tuple(Gpu(one.ask.subject, one.index, one.bus) for one in listed))
    known = [read_identity(torch.cuda.get_device_properties(place)) for place in range(torch.cuda.device_count())]
    found = [compare_identity(place, uuid, bus, inventory) for place, (uuid, bus) in enumerate(known)]
    (out / "identity.json").write_text(json.dumps({"nvml": [one._asdict() for one in inventory.gpus], "torch": found}))
    wrong = [f"cuda:{one['place']}: {one['trouble']}" for one in found if one["trouble"]]
    return f"{len(found)} devices, {'; '.join(wrong) or 'each found by UUID and by PCI address, and the same one'}"


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


def compare_identity(place: int, uuid: str, bus: str, inventory: Inventory) -> dict[str, Any]:
    """One device of torch's: which of NVML's it is by its UUID, and which by its PCI address."""
    from guardrun.supervisor.health.gpu.rank_device import NVIDIA, TorchDevice, find_device

    by_uuid = find_device(TorchDevice(NVIDIA, place, uuid=uuid), {}, inventory)
    by_bus = find_device(TorchDevice(NVIDIA, place, bus=bus), {}, inventory)
    told = (("UUID", uuid, by_uuid), ("PCI", bus, by_bus))
    # One device alone would be found without either.
    troubles = [f"{name}: {a.why if value else 'not told'}" for name, value, a in told if not (value and a.subject)]
    if by_uuid.subject != by_bus.subject and not troubles:
        troubles = [f"{by_uuid.subject} by UUID, {by_bus.subject} by PCI address"]
    names = {"uuid": uuid, "bus": bus, "by_uuid": by_uuid.subject, "by_bus": by_bus.subject}
    return {"place": place, **names, "trouble": "; ".join(troubles)}


if __name__ == "__main__":
    main()
