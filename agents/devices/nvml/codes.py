"""What NVML's return codes mean to an agent: one table from every code of the library to our errors.

Owns that table and the wording of its errors. It knows the codes as plain numbers, so that it can be read and checked
without the binding; a test holds it against every code the binding knows and against what `agents.errors` documents.
"""

from __future__ import annotations

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
