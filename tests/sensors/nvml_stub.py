"""The real pynvml on a `libnvidia-ml.so.1` of our own, which answers what a test wants.

    stub.set(gpus=2)
    stub.set(gpu=0, temperature=95, reasons="hw_thermal")
    stub.xid(gpu=1, code=79)
    stub.hang("nvmlDeviceGetPowerUsage", gpu=0)

Values stay until they are set anew, also for processes that are running. The keys are in nvml_stub.c.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from guardrun.supervisor.sensors.gpu.device_readings import REASONS

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "NVML_STUB_STATE"

Value = int | float | str | bool


def build_library(folder: Path, *defines: str) -> Path:
    """Compile the stub into folder; defines: `OLD_DRIVER`. Returns folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    assert compiler, "no C compiler (package gcc)"
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(
        [compiler, *flags, *(f"-D{name}" for name in defines), "-o", str(folder / LIBRARY), str(SOURCE)],
        check=True,
        timeout=120,
    )
    return folder


class NvmlStub:
    """What the stub answers, to every process that has `environment`."""

    def __init__(self, library: Path, state: Path) -> None:
        self._library = library
        self._state = state
        self._values: dict[str, Value] = {}
        self._events = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with the stub in it."""
        return {**os.environ, **self.variables}

    @property
    def variables(self) -> dict[str, str]:
        """What a process's environment needs for the stub."""
        paths = [str(self._library), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), STATE_VARIABLE: str(self._state)}

    def divide(self, gpu: int, *uuids: str, **processes: str) -> None:
        """Give a GPU MIG instances, with the places before and between them free; processes: `p1="4242=7"`."""
        self.set(gpu=gpu, mig=1, mig_places=2 * len(uuids))
        for place, uuid in enumerate(uuids):
            self._values[f"{gpu}/{2 * place + 1}.uuid"] = uuid
            self._values[f"{gpu}/{2 * place + 1}.processes"] = processes.get(f"p{place}", "")
        self._write()

    def set(self, gpu: int | None = None, **values: Value) -> None:
        """Answer these from now on. reasons: names as the sensor tells them, with commas between."""
        for key, value in values.items():
            self._values[_key(gpu, key)] = reason_bits(value) if key == "reasons" and isinstance(value, str) else value
        self._write()

    def hang(self, function: str, gpu: int | None = None, *, is_hanging: bool = True) -> None:
        """Have a function not return, or return again."""
        self._set_fate("hang", function, gpu, int(is_hanging))

    def crash(self, function: str, gpu: int | None = None, *, is_crashing: bool = True) -> None:
        """Have a function end its process by SIGSEGV."""
        self._set_fate("crash", function, gpu, int(is_crashing))

    def fail(self, function: str, code: int, gpu: int | None = None) -> None:
        """Have a function answer an nvmlReturn_t; 0: as usual."""
        self._set_fate("error", function, gpu, code)

    def xid(self, gpu: int, code: int) -> None:
        """An Xid, to every event set that there is now."""
        self._events += 1
        self._values["events"] = self._events
        self._values[f"event.{self._events}"] = f"{gpu} {code}"
        self._write()

    def lead_to(self, path: Path) -> None:
        """Have the stub read from another path from now on, whatever is there."""
        link = self._state.with_suffix(".link")
        link.symlink_to(path)
        link.replace(self._state)

    def _set_fate(self, fate: str, function: str, gpu: int | None, value: int) -> None:
        self._values[_key(gpu, f"{fate}.{function}")] = value
        self._write()

    def _write(self) -> None:
        text = "".join(
            f"{key} {int(value) if isinstance(value, bool) else value}\n" for key, value in self._values.items()
        )
        beside = self._state.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self._state)


def reason_bits(names: str) -> int:
    """The mask for `hw_slowdown,hw_thermal`. Raises KeyError for a name that there is not."""
    bits = {name: bit for bit, name in REASONS.items()}
    return sum(bits[name] for name in names.split(",") if name)


def _key(gpu: int | None, key: str) -> str:
    return key if gpu is None else f"{gpu}.{key}"
