"""How a Python program uses the CUDA stand-in: becomes a client, asks what it got, allocates.

Imported by stand-in workers, which may do so with nothing but this directory's parents on their path.
"""

from __future__ import annotations

import ctypes
import os

LIBRARY = "STANDIN_CUDA_LIBRARY"


class CudaError(Exception):
    """A call did not return 0."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.code = code


class Cuda:
    """The first device this process sees, with its primary context. Opens it at once."""

    def __init__(self, library: str | None = None) -> None:
        self._library = ctypes.CDLL(library or os.environ[LIBRARY])
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def sm_count(self) -> int:
        """SMs this process may use."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), 16, 0)
        return value.value

    def allocate(self, mib: int) -> int:
        """Take device memory. CudaError 2 when there is no more for this process."""
        pointer = ctypes.c_ulonglong()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", ctypes.c_ulonglong(pointer))

    def synchronize(self) -> None:
        """CudaError 810 after the client was terminated, 719 after a neighbour's fault."""
        self._call("cuCtxSynchronize")
