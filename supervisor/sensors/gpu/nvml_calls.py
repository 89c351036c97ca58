"""Asking NVML: which function, newest name first; what its failures mean in words; what cannot be true.

NVML's return codes are those of nvmlReturn_t (NVML API reference, "Device Enums").
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from guardrun.supervisor.health.base.readings import Sample, Value

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18

SESSION_ENDING = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
"""With these, nothing more can be asked before NVML is initialised anew."""

UNKNOWN_32 = 0xFFFFFFFF
UNKNOWN_64 = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE."""


class UnreadableError(Exception):
    """This one quantity cannot be read; the reason in words."""


class NotPermittedError(UnreadableError):
    """It cannot be read by this user, or from this container."""


class LostError(Exception):
    """The device does not answer any more: NVML_ERROR_GPU_IS_LOST."""


class SessionOverError(Exception):
    """NVML has to be initialised anew; the reason in words."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class Watch:
    """Which call is under way, for whoever asks from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doing = ""
        self._since_s = 0.0

    def begin(self, doing: str) -> None:
        """A call begins. doing: what it is and of which device, in words."""
        with self._lock:
            self._doing, self._since_s = doing, time.monotonic()

    def end(self) -> None:
        """The call has returned, or raised."""
        with self._lock:
            self._doing = ""

    def describe_call(self) -> str:
        """`nvmlDeviceGetPowerUsage of GPU 3, for 8 s`; empty when no call is under way."""
        with self._lock:
            if not self._doing:
                return ""
            return f"{self._doing}, for {time.monotonic() - self._since_s:.0f} s"


class Asker:
    """Asks NVML about one device, or about the system where handle is None."""

    def __init__(self, nvml: Any, watch: Watch, subject: str, handle: Any = None, label: str = "the driver") -> None:
        self._nvml = nvml
        self._watch = watch
        self.subject = subject
        self.handle = handle
        self.label = label
        self.driver = ""
        self.is_mig = False
        self.needs_reset = False

    def call(self, functions: str, *arguments: Any) -> Any:
        """What the first of functions (`newest|older`) that this driver has answers.

        Raises UnreadableError, LostError or SessionOverError.
        """
        reason = ""
        for function in functions.split("|"):
            asked = getattr(self._nvml, function, None)
            if asked is None:
                reason = reason or f"the installed nvidia-ml-py has no {function}"
                continue
            self._watch.begin(f"{function} of {self.label}")
            try:
                return asked(*([] if self.handle is None else [self.handle]), *arguments)
            except self._nvml.NVMLError as error:
                if error.value != FUNCTION_NOT_FOUND:
                    raise self._meaning(error, function) from None
                reason = f"driver {self.driver or 'here'} has no {function}"
            finally:
                self._watch.end()
        raise UnreadableError(reason)

    def part(self, handle: Any, label: str) -> Asker:
        """One to ask of a part of this device (a MIG instance), about the same subject."""
        part = Asker(self._nvml, self._watch, self.subject, handle, label)
        part.driver = self.driver
        return part

    def struct(self, name: str) -> Any:
        """A struct of pynvml's by name; None where the installed one has none."""
        return getattr(self._nvml, name, None)

    def _meaning(self, error: Any, function: str) -> Exception:
        code = int(error.value)
        if code in SESSION_ENDING:
            return SessionOverError(f"{function}: {error}", code)
        if code == GPU_IS_LOST:
            return LostError(f"{error} ({function})")
        if code == RESET_REQUIRED:
            self.needs_reset = True
            return UnreadableError("the device needs a reset first")
        if code == NOT_SUPPORTED:
            return UnreadableError("not supported by this device" + (" while MIG is on" if self.is_mig else ""))
        if code == NO_PERMISSION:
            return NotPermittedError("no permission to read it")
        return UnreadableError(f"{function}: {error}")

    def known(self, name: str, value: Value) -> Sample:
        """A sample of this subject; value in the unit that its name says."""
        return Sample(subject=self.subject, name=name, value=value)

    def unknown(self, name: str, reason: object) -> Sample:
        """A sample without a value. reason: an exception, or words."""
        return Sample(subject=self.subject, name=name, trouble=str(reason))

    def number(self, name: str, functions: str, *arguments: Any, low: float, high: float, scale: float = 1) -> Sample:
        """A sample of what functions answer, times scale; low and high are in NVML's own unit."""
        try:
            value = sane(self.call(functions, *arguments), low, high)
        except UnreadableError as reason:
            return self.unknown(name, reason)
        return self.known(name, value if scale == 1 else value * scale)

    def fields(self, ids: list[int]) -> dict[int, float | UnreadableError]:
        """Values by field id, of one nvmlDeviceGetFieldValues; where a field has none, the reason."""
        try:
            found = self.call("nvmlDeviceGetFieldValues", ids)
        except UnreadableError as reason:
            return dict.fromkeys(ids, reason)
        return {int(value.fieldId): field_value(value) for value in found}


def field_value(value: Any) -> float | UnreadableError:
    """The number in an nvmlFieldValue_t, by its nvmlValueType_t."""
    if value.nvmlReturn == NOT_SUPPORTED:
        return UnreadableError("not supported by this device")
    if value.nvmlReturn:
        return UnreadableError(f"NVML error {value.nvmlReturn}")
    member = _MEMBERS.get(value.valueType)
    if member is None:
        return UnreadableError(f"of a type ({value.valueType}) that is not known")
    number = getattr(value.value, member)
    return float(number) if member == "dVal" else int(number)


_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t, to the member of nvmlValue_t."""


def sane(value: float | UnreadableError, low: float, high: float) -> float:
    """The value, where it can be true. Raises UnreadableError where it cannot."""
    if isinstance(value, UnreadableError):
        raise value
    if not math.isfinite(value) or value in (UNKNOWN_32, UNKNOWN_64) or not low <= value <= high:
        raise UnreadableError(f"read as {value}, which cannot be")
    return value
