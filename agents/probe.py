"""`python -m agents.probe`: what a process with this very environment sees of its device, as one line of JSON.

Opens the first visible device through the CUDA driver the way a worker would, so that MPS applies, and tells UUID, SM
count and free memory. Ends with status 0 when it could tell, else 1 with the reason in `error`; it prints no traceback.
`--library PATH` takes another driver library than libcuda.so.1.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Sequence
from uuid import UUID

LIBRARY = "libcuda.so.1"
MULTIPROCESSOR_COUNT = 16
MIB = 2**20


class ProbeError(Exception):
    """A driver call failed. Code 0: it was not even made."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}" if code else call)
        self.code = code


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Make a call. Raises ProbeError unless it returns 0."""
    try:
        function = getattr(library, name)
    except AttributeError:
        raise ProbeError(f"the driver has no {name}", 0) from None
    code = int(function(*arguments))
    if code:
        raise ProbeError(name, code)


def look(library: str) -> dict[str, object]:
    """Open the first device and say what it is to this process. Raises ProbeError."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        raise ProbeError(f"cannot load {library}: {error}", 0) from None
    count, device, sm_count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if count.value != 1:
        raise ProbeError(f"{count.value} devices are visible instead of one", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), 0)
    uuid = (ctypes.c_ubyte * 16)()
    _call(driver, "cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
    # A process that may not open the device, or that MPS refuses, learns that from its first context.
    context = ctypes.c_void_p()
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call(driver, "cuCtxSetCurrent", context)
        _call(driver, "cuDeviceGetAttribute", ctypes.byref(sm_count), MULTIPROCESSOR_COUNT, device)
        free, total = _memory(driver)
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease_v2", device)
    return {
        "ok": True,
        "uuid": f"GPU-{UUID(bytes=bytes(uuid))}",
        "sm_count": sm_count.value,
        "memory_mib_free": free,
        "memory_mib_total": total,
    }


def _memory(driver: ctypes.CDLL) -> tuple[float | None, float | None]:
    """Free and total MiB; None where the driver does not tell, which hides no limit."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        _call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except ProbeError:
        return None, None
    return free.value / MIB, total.value / MIB


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m agents.probe", description="Tells what MPS gives a process.")
    parser.add_argument("--library", default=LIBRARY, help="the CUDA driver's library")
    found = parser.parse_args(arguments)
    try:
        answer = look(found.library)
    except ProbeError as error:
        answer = {"ok": False, "error": str(error), "code": error.code}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
