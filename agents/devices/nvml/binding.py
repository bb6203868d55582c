"""The one place that touches `pynvml`: loading it, calling it, and turning what it raises into our errors.

Owns the lazy import (hosts without GPUs never load it), the refusal of the unrelated legacy module of the same name,
and the binding's known faults: calls that report success whatever happened are refused, calls that return their code
are checked, an exception without a code means that there is nothing to report. Values of foreign types exist only here
and in what `Nvml.call` hands out.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from agents.devices.nvml.codes import FUNCTION_NOT_FOUND, SUCCESS, error_of
from agents.errors import DeviceError, DriverError, NotSupportedError

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
        """A fresh structure of the binding, zeroed."""
        return getattr(self._module, name)()

    def constant(self, name: str) -> Any:
        """A constant of the binding."""
        return getattr(self._module, name)


def address(handle: Any) -> int:
    """What an opaque handle points to, so that handles can be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
