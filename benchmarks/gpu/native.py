"""Whose library a rank is in while it waits for a real device: what py-spy's native frames tell, and what that costs.

A process of its own waits behind a long kernel, in each of the ways in which scripts wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

WAITS = {
    "synchronize": "torch.cuda.synchronize()",
    "item": "torch.ones(1, device='cuda').item()",
    "to_host": "torch.ones(1 << 20, device='cuda').cpu()",
    "event": "(event := torch.cuda.Event()).record(); event.synchronize()",
}
TURNS = 2
BUSY_S = 60
WAITER = """
import sys, torch
torch.cuda.set_device(0)
factor = torch.ones(512, 512, device="cuda")
(factor @ factor).sum().item()  # its libraries are loaded
def wait_for_the_device():
    {wait}
torch.cuda._sleep({seconds} * 2_000_000_000)
print("waits", flush=True)
wait_for_the_device()
"""
TRACED = "tT"


class Pauses:
    """How long a process stands still for whoever traces it, by looking every millisecond."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._is_over = threading.Event()
        self.paused_s = 0.0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        before_s = time.monotonic()
        while not self._is_over.wait(0.001):
            try:
                state = self._stat.read_text().rpartition(") ")[2][:1]
            except OSError:
                return
            now_s = time.monotonic()
            self.paused_s += now_s - before_s if state in TRACED else 0.0
            before_s = now_s

    def end(self) -> float:
        """Seconds in all."""
        self._is_over.set()
        self._thread.join()
        return self.paused_s


def native(out: Path) -> str:
    """For each way of waiting: the library that guardrun would name, and how long the process was paused for it."""
    rows = {name: ask(name, wait, out) for name, wait in WAITS.items()}
    (out / "native.json").write_text(json.dumps(rows, indent=1))
    told = [f"{name}: {row['library'] or row['trouble'] or 'nothing tells'}" for name, row in rows.items()]
    paused_s = [row["paused_s"] for row in rows.values()]
    return f"{', '.join(told)}; paused for {median(paused_s):.2f} s, {max(paused_s):.2f} s at most"


def ask(name: str, wait: str, out: Path) -> dict[str, Any]:
    """One process that waits so: asked as guardrun asks."""
    from guardrun.supervisor.collect.ranks.native_frames import Place, parse_spot
    from guardrun.supervisor.collect.ranks.stack_dumps import NATIVE_S, dump_pyspy

    code = WAITER.format(wait=wait, seconds=BUSY_S)
    spots, paused_s, took_s, trouble = [], [], [], ""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.5)
            for turn in range(TURNS):
                pauses, began_s = Pauses(process.pid), time.monotonic()
                dump = dump_pyspy(process.pid, timeout_s=NATIVE_S, native=True)
                took_s.append(time.monotonic() - began_s)
                paused_s.append(pauses.end())
                (out / f"native_{name}_{turn}.json").write_text(dump.text)
                trouble = dump.trouble or trouble
                if not dump.trouble:
                    spots.append(parse_spot(dump.text, process.pid, process.pid, Place((), ())))
        finally:
            process.kill()
    found = [spot for spot in spots if spot is not None]
    return {
        "library": found[0].library if found else "",
        "function": found[0].function if found else "",
        "family": str(found[0].family) if found else "",
        "found": len(found),
        "trouble": trouble,
        "paused_s": max(paused_s),
        "took_s": max(took_s),
    }
