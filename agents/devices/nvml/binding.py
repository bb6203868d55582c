"""The one place that touches `pynvml`: loading it, calling it, and turning what it raises into our errors.

Hosts without GPUs never load it, and the unrelated legacy module of the same name is refused. The binding has known
faults: calls that report success whatever happened are refused, calls that return their code are checked, an exception
without a code means that there is nothing to report. Values of foreign types exist only here and in what `Nvml.call`
hands out. The codes are plain numbers; a test holds their table against every code the binding knows and against what
`agents.errors` documents.
"""

from __future__ import annotations

import ctypes
import importlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agents.errors import (
    BusyError,
    DeviceError,
    DeviceTimeoutError,
    DriverError,
    LostError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
    OutOfMemoryError,
    OutOfRangeError,
)

SUCCESS = 0
FUNCTION_NOT_FOUND = 13

ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    1: (DriverError, "NVML is not initialised"),
    2: (OutOfRangeError, "invalid argument"),
    3: (NotSupportedError, "not supported"),
    4: (NoPermissionError, "no permission"),
    5: (DriverError, "already initialised"),
    6: (NotFoundError, "not found"),
    7: (DriverError, "more data than there was room for"),
    8: (DriverError, "external power is not connected"),
    9: (DriverError, "the driver is not loaded"),
    10: (DeviceTimeoutError, "timed out"),
    11: (DriverError, "the kernel found a problem with the GPU's interrupts"),
    12: (DriverError, "there is no NVML library on this host"),
    13: (NotSupportedError, "this driver's library does not have the call"),
    14: (DriverError, "the info ROM is corrupted"),
    15: (LostError, "the GPU has fallen off the bus"),
    16: (LostError, "the GPU needs a reset"),
    17: (NoPermissionError, "the operating system or control group blocked the call"),
    18: (DriverError, "library and kernel driver do not match: the driver was changed without a reload"),
    19: (BusyError, "in use"),
    20: (OutOfMemoryError, "out of memory"),
    21: (BusyError, "no data yet"),
    22: (NotSupportedError, "not supported with ECC on virtual GPUs"),
    23: (BusyError, "resources are exhausted"),
    24: (OutOfRangeError, "the clock is not supported"),
    25: (NotSupportedError, "this driver does not know the structure's version"),
    26: (NotSupportedError, "the call is deprecated and gone"),
    27: (BusyError, "not ready"),
    28: (LostError, "the GPU was not found"),
    29: (BusyError, "wrong state for this"),
    30: (NotSupportedError, "this kind of reset is not supported"),
    999: (DriverError, "unknown error"),
}


def error_of(code: int, call: str) -> DeviceError:
    """Our error for a code that a call answered; a code newer than this table is a driver error."""
    kind, text = ERRORS.get(code, (DriverError, "a code this agent does not know"))
    return kind(f"{call}: {text} (NVML {code})")


NEVER_RAISING = frozenset(
    ("nvmlDeviceSetPowerManagementLimit_v2", "nvmlDeviceSetClockOffsets", "nvmlDeviceGetClockOffsets")
)
"""Calls whose binding reports success whatever the driver said: there is no way to use them."""
CODE_RETURNING = frozenset(
    (
        "nvmlDeviceGetCapabilities",
        "nvmlDeviceGetPowerMizerMode_v1",
        "nvmlDeviceSetPowerMizerMode_v1",
        "nvmlDeviceSetVirtualizationMode",
        "nvmlSystemGetConfComputeSettings",
        "nvmlVgpuInstanceSetEncoderCapacity",
    )
)
"""Calls whose binding returns the driver's code instead of raising."""


def load_binding() -> Any:
    """The binding's module. Raises DriverError where it is missing or another module has its name."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise DriverError(f"NVML needs the package nvidia-ml-py: {error}") from error
    if not hasattr(module, "_nvmlGetFunctionPointer"):
        raise DriverError(
            f"{getattr(module, '__file__', 'pynvml')} is the legacy package 'pynvml', which hides the right one: "
            "uninstall it and install nvidia-ml-py"
        )
    return module


class Nvml:
    """An initialised binding. Not to be called directly by threads that must not hang: see `guard.Driver`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._names: dict[tuple[str, ...], str] = {}

    def call(self, name: str, *arguments: object, **named: object) -> Any:
        """Call a function of the binding. Raises DeviceError of the code's kind; () when there is nothing to report."""
        if name in NEVER_RAISING:
            raise NotSupportedError(f"{name}: its result cannot be trusted")
        function: Callable[..., Any] | None = getattr(self._module, name, None)
        if function is None:
            raise error_of(FUNCTION_NOT_FOUND, name)
        try:
            found = function(*arguments, **named)
        except self._module.NVMLError as error:
            if error.value == SUCCESS:
                return ()
            raise error_of(error.value, name) from error
        except self._module.NVMLLibraryMismatchError as error:
            raise error_of(FUNCTION_NOT_FOUND, name) from error
        except (ctypes.ArgumentError, UnicodeDecodeError) as error:
            raise DriverError(f"{name}: {error}") from error
        if name in CODE_RETURNING and found != SUCCESS:
            raise error_of(int(found), name)
        return found

    def maybe(self, name: str, *arguments: object, **named: object) -> Any:
        """What a call says; None where device or driver cannot tell at all."""
        try:
            return self.call(name, *arguments, **named)
        except NotSupportedError:
            return None

    def first(self, names: Sequence[str], *arguments: object, **named: object) -> Any:
        """Call the first of several names of one thing that this driver's library has; remembers which."""
        known = self._names.get(tuple(names))
        if known is not None:
            return self.call(known, *arguments, **named)
        failure: DeviceError = NotSupportedError(f"none of {', '.join(names)} is there")
        for name in names:
            try:
                found = self.call(name, *arguments, **named)
            except NotSupportedError as error:
                failure = error
            else:
                self._names[tuple(names)] = name
                return found
        raise failure

    def structure(self, name: str) -> Any:
        return getattr(self._module, name)()

    def constant(self, name: str) -> Any:
        return getattr(self._module, name)


def address(handle: Any) -> int:
    """What an opaque handle points to, so that handles can be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# --- Calls into the driver that cannot hang the agent: one at a time, in a thread of their own, with a time-out
#
# A call that does not come back in time is left behind: its device is marked and refused at once until the call
# returns, and a new thread serves the others. So at most one thread per device is ever lost to a hanging driver.


T = TypeVar("T")
TIMEOUT_S = 5.0


class _Job:
    def __init__(self, device: str, body: Callable[[], None]) -> None:
        self.device = device
        self.body = body
        self.done = threading.Event()
        self.abandoned = False


class Driver:
    """The driver of this process behind its guard. Every method may be called from any thread."""

    def __init__(self, nvml: Nvml, timeout_s: float = TIMEOUT_S) -> None:
        self.nvml = nvml
        """The binding itself, for threads that wait on purpose."""
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._marks = threading.Lock()
        self._hung: set[str] = set()
        self._jobs: queue.SimpleQueue[_Job | None] | None = None

    def run(self, device: str, body: Callable[[Nvml], T]) -> T:
        """Do something with a device, by its UUID, or with the host ('') and return what comes of it. Raises what the
        body raises, DeviceTimeoutError when it does not end in time or an earlier one has not ended yet.
        """
        results: list[T] = []
        failures: list[BaseException] = []

        def attempt() -> None:
            try:
                results.append(body(self.nvml))
            except BaseException as error:  # noqa: BLE001  (handed to the caller's thread, whatever it is)
                failures.append(error)

        if not self._turn.acquire(timeout=self._timeout_s):
            raise DeviceTimeoutError("the driver is busy with another call")
        try:
            self._serve(_Job(device, attempt))
        finally:
            self._turn.release()
        if failures:
            raise failures[0]
        return results[0]

    def hung(self, device: str) -> bool:
        """Whether a call on this device has not come back yet."""
        with self._marks:
            return device in self._hung

    def hangs(self) -> bool:
        with self._marks:
            return bool(self._hung)

    def close(self) -> None:
        """End the thread; a later call starts another."""
        with self._turn:
            if self._jobs is not None:
                self._jobs.put(None)
                self._jobs = None

    def _serve(self, job: _Job) -> None:
        if self.hung(job.device):
            raise DeviceTimeoutError(f"{job.device or 'the driver'}: an earlier call still hangs in the driver")
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._jobs,), name="nvml", daemon=True).start()
        self._jobs.put(job)
        if job.done.wait(self._timeout_s):
            return
        with self._marks:
            if job.done.is_set():
                return
            job.abandoned = True
            self._hung.add(job.device)
        self._jobs.put(None)
        self._jobs = None
        raise DeviceTimeoutError(f"{job.device or 'the driver'}: no answer within {self._timeout_s:g} s")

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            job.body()
            with self._marks:
                job.done.set()
                if job.abandoned:
                    self._hung.discard(job.device)
