"""NVML as a Python object, for tests that need neither compiler nor child process: `pynvml.nvmlLib = host.double()`.

Owns the same behaviour as nvml.c over the same memory, so that either can be used: methods are named like the C
symbols, take what ctypes would be handed and return the code. `installed` puts one into the binding and takes it out.
Here are the calls that write, wait and sample; `reads.py` has the others.
"""

# The symbols keep the names the library gives them.
# ruff: noqa: N802
from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.standins.nvml.core import (
    INVALID,
    NOT_SUPPORTED,
    OK,
    SYMBOLIC,
    TIMEOUT,
    UNKNOWN_INSTANCE,
    VERSION_MISMATCH,
    Target,
    at_most,
    call,
    number,
    pointer,
    put,
    put_pointer,
)
from tests.standins.nvml.layout import EVENTS, Lacks, Missing
from tests.standins.nvml.reads import Reads
from tests.waiting import spend


class NvmlDouble(Reads):
    """One process's library."""

    # --- writes ---

    @call(writes=True, lacks=Lacks.POWER_LIMIT)
    def nvmlDeviceSetPowerManagementLimit(self, target: Target, limit_mw: Any) -> int:
        gpu, limit = target.gpu, number(limit_mw)
        if not gpu.limit_mw_min <= limit <= gpu.limit_mw_max:
            return INVALID
        with self._stand_in.locked():
            self.settle(gpu)
            gpu.limit_mw = limit
        return OK

    @call(writes=True)
    def nvmlDeviceSetPowerManagementLimit_v2(self, target: Target, value: Any) -> int:
        return NOT_SUPPORTED

    @call(writes=True, lacks=Lacks.CLOCK_LOCK)
    def nvmlDeviceSetGpuLockedClocks(self, target: Target, low: Any, high: Any) -> int:
        gpu, ends = target.gpu, (number(low), number(high))
        clocks = gpu.clocks[: gpu.clock_count]
        symbolic = [end >= SYMBOLIC for end in ends]
        if all(symbolic):
            ends = (clocks[-1], clocks[-1])
        if any(symbolic) != all(symbolic) or not clocks[0] <= ends[0] <= ends[1] <= clocks[-1]:
            return INVALID
        with self._stand_in.locked():
            self.settle(gpu)
            gpu.locked_min, gpu.locked_max = (at_most(clocks, end) for end in ends)
        return OK

    @call(writes=True, lacks=Lacks.CLOCK_LOCK)
    def nvmlDeviceResetGpuLockedClocks(self, target: Target) -> int:
        with self._stand_in.locked():
            self.settle(target.gpu)
            target.gpu.locked_min = target.gpu.locked_max = 0
        return OK

    @call(writes=True, lacks=Lacks.MEMORY_LOCK)
    def nvmlDeviceSetMemoryLockedClocks(self, target: Target, low: Any, high: Any) -> int:
        gpu = target.gpu
        clocks = gpu.memory_clocks[: gpu.memory_clock_count]
        if not clocks[0] <= number(low) <= number(high) <= clocks[-1]:
            return INVALID
        gpu.memory_locked_min, gpu.memory_locked_max = number(low), number(high)
        return OK

    @call(writes=True, lacks=Lacks.MEMORY_LOCK)
    def nvmlDeviceResetMemoryLockedClocks(self, target: Target) -> int:
        target.gpu.memory_locked_min = target.gpu.memory_locked_max = 0
        return OK

    @call(whole=False, writes=True)
    def nvmlDeviceSetComputeMode(self, target: Target, mode: Any) -> int:
        if number(mode) not in (0, 2, 3):
            return INVALID
        if target.gpu.mig_mode and target.mig is None:
            return NOT_SUPPORTED
        (target.mig or target.gpu).compute_mode = number(mode)
        return OK

    @call(writes=True, lacks=Lacks.PERSISTENCE)
    def nvmlDeviceSetPersistenceMode(self, target: Target, on: Any) -> int:
        target.gpu.persistence = number(on)
        return OK

    # --- events ---

    def nvmlEventSetCreate(self, out: Any) -> int:
        made = len(self._sets) + 1
        self._sets[made] = ([self.host.event_count], {})
        return put_pointer(out, made)

    @call(lacks=Lacks.EVENTS)
    def nvmlDeviceRegisterEvents(self, target: Target, mask: Any, event_set: Any) -> int:
        masks = self._sets[pointer(event_set)][1]
        index = (target.number - 1) // 16
        masks[index] = masks.get(index, 0) | number(mask)
        return OK

    @call(lacks=Lacks.EVENTS)
    def nvmlDeviceGetSupportedEventTypes(self, target: Target, out: Any) -> int:
        return put(out, 0xC40B)

    def nvmlEventSetWait_v2(self, event_set: Any, out: Any, timeout_ms: Any) -> int:
        seen, masks = self._sets[pointer(event_set)]
        until_s = time.monotonic() + number(timeout_ms) / 1000.0
        while True:
            while seen[0] < self.host.event_count:
                event = self.host.events[seen[0] % EVENTS]
                seen[0] += 1
                if masks.get(event.gpu, 0) & event.type:
                    ctypes.c_void_p.from_buffer(out._obj).value = 1 + 16 * event.gpu
                    out._obj.eventType, out._obj.eventData = event.type, event.data
                    out._obj.gpuInstanceId = out._obj.computeInstanceId = UNKNOWN_INSTANCE
                    return OK
            if time.monotonic() >= until_s:
                return TIMEOUT
            spend(0.002)

    def nvmlEventSetFree(self, event_set: Any) -> int:
        return OK

    # --- GPM ---

    @call(whole=False, missing=Missing.GPM)
    def nvmlGpmQueryDeviceSupport(self, target: Target, out: Any) -> int:
        if out._obj.version != 1:
            return VERSION_MISMATCH
        out._obj.isSupportedDevice = int(not target.gpu.lacks & Lacks.GPM)
        return OK

    def nvmlGpmSampleAlloc(self, out: Any) -> int:
        made = len(self._samples) + 1
        self._samples[made] = (0.0, 0.0)
        return put_pointer(out, made)

    def nvmlGpmSampleFree(self, sample: Any) -> int:
        return OK

    @call(lacks=Lacks.GPM, missing=Missing.GPM)
    def nvmlGpmSampleGet(self, target: Target, sample: Any) -> int:
        self._samples[pointer(sample)] = (self._now_s(), self.load(target.gpu))
        return OK

    @call(lacks=Lacks.GPM, missing=Missing.GPM)
    def nvmlGpmMigSampleGet(self, target: Target, gpu_instance: Any, sample: Any) -> int:
        self._samples[pointer(sample)] = (self._now_s(), self.load(target.gpu))
        return OK

    def nvmlGpmMetricsGet(self, out: Any) -> int:
        get = out._obj
        if get.version != 1:
            return VERSION_MISMATCH
        first, second = self._samples[pointer(get.sample1)], self._samples[pointer(get.sample2)]
        if second[0] - first[0] < 0.1:
            return INVALID
        for metric in get.metrics[: get.numMetrics]:
            metric.nvmlReturn = OK if metric.metricId in (1, 2, 3) else NOT_SUPPORTED
            metric.value = 50.0 * (first[1] + second[1]) * (1.0 if metric.metricId == 1 else 0.7)
        return OK


@contextmanager
def installed(double: object) -> Iterator[None]:
    """The binding talks to this object, and to what it talked to before when done."""
    import pynvml

    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount, dict(pynvml._nvmlGetFunctionPointer_cache))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = double
    try:
        yield
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount, cache = before
        pynvml._nvmlGetFunctionPointer_cache.update(cache)
