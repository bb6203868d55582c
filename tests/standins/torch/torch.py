"""Just enough of PyTorch's face for `tests.gpu` to run on GPUs that are not there.

Opens the stand-in CUDA driver as PyTorch opens the real one, so that such a process is an MPS client with SMs and
memory as limited; a forward pass takes time by batch and SMs. It computes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

float16 = bfloat16 = uint8 = None
PASS_S = 0.0004
"""Of one input on one SM less than all, by and large."""
_driver = ctypes.CDLL(os.environ.get("STANDIN_CUDA_LIBRARY", "libcuda.so.1"))
_SMS = 16


def _call(name: str, *arguments: object) -> None:
    code = getattr(_driver, name)(*arguments)
    if code:
        raise RuntimeError(f"CUDA error: {name} returned {code}")


def _join() -> int:
    context, sms = ctypes.c_void_p(), ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _call("cuCtxSetCurrent", context)
    _call("cuDeviceGetAttribute", ctypes.byref(sms), _SMS, 0)
    _list_process()
    return sms.value


def _list_process() -> None:
    """Show up among the device's processes."""
    root, uuid = os.environ.get("STANDIN_NVML"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if root is None:
        return
    folder = Path(root) / "processes" / uuid
    fresh, listed = folder / f"new.{os.getpid()}", folder / str(os.getpid())
    fresh.write_text(f"900 {int('CUDA_MPS_PIPE_DIRECTORY' in os.environ)} 0\n")
    fresh.rename(listed)
    atexit.register(listed.unlink, missing_ok=True)


_sm_count = _join()


def _computes(seconds: float) -> None:
    threading.Event().wait(seconds)


class Tensor:
    """Something of a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def float(self) -> Tensor:
        """It holds nothing."""
        return self

    mean = float

    def backward(self) -> None:
        """Takes as long as a small pass."""
        _computes(0.001)


def randn(*shape: int, device: str = "", dtype: object = None) -> Tensor:
    """A tensor of nothing."""
    return Tensor(*shape)


def mm(one: Tensor, other: Tensor) -> Tensor:
    """Takes a while."""
    _computes(0.001)
    return one


def empty(count: int, dtype: object = None, device: str = "") -> int:
    """Holds memory, as far as the limit lets it."""
    pointer = ctypes.c_ulonglong()
    try:
        _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(count))
    except RuntimeError as error:
        raise RuntimeError(f"CUDA out of memory. {error}") from None
    return pointer.value


@contextlib.contextmanager
def inference_mode() -> Any:
    """Nothing to do."""
    yield


class Module:
    """A network that takes time."""

    def __call__(self, batch: Tensor) -> Tensor:
        _computes(0.001 + PASS_S * batch.shape[0] * 20.0 / _sm_count)
        return batch

    def cuda(self) -> Module:
        """It is there already."""
        return self

    half = eval = bfloat16 = train = cuda

    def parameters(self) -> list[Tensor]:
        """There are none."""
        return []


def _network(*parts: object, **options: object) -> Module:
    return Module()


nn = SimpleNamespace(
    **dict.fromkeys(
        (
            *("Sequential", "Linear", "Conv2d", "ReLU", "MaxPool2d", "AdaptiveAvgPool2d", "Flatten"),
            *("TransformerEncoderLayer", "TransformerEncoder"),
        ),
        _network,
    )
)


def _memory() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


class Graph:
    """What ran while it was recorded, as one call: it takes as long as the last pass did."""

    def __init__(self) -> None:
        self.pass_s = 0.0

    def replay(self) -> None:
        """Takes its time."""
        _computes(self.pass_s)


@contextlib.contextmanager
def _recording(graph: Graph) -> Any:
    began_s = time.perf_counter()
    yield
    graph.pass_s = time.perf_counter() - began_s


_stream = SimpleNamespace(wait_stream=lambda _: None)
optim = SimpleNamespace(
    SGD=lambda parameters, lr: SimpleNamespace(zero_grad=lambda set_to_none: None, step=lambda: None)
)
cuda = SimpleNamespace(
    CUDAGraph=Graph,
    graph=_recording,
    Stream=lambda: _stream,
    current_stream=lambda: _stream,
    stream=contextlib.nullcontext,
    memory_reserved=lambda: 0,
    synchronize=lambda: _call("cuCtxSynchronize"),
    get_device_properties=lambda _: SimpleNamespace(multi_processor_count=_sm_count),
    mem_get_info=_memory,
)
