"""NVML as a Python object, for tests that need neither compiler nor child process: `pynvml.nvmlLib = host.double()`.

Owns the same behaviour as nvml.c over the same memory, so that either can be used: methods are named like the C
symbols, take what ctypes would be handed and return the code. `installed` puts one into the binding and takes it out.
"""

# The symbols keep the names the library gives them.
# ruff: noqa: N802, N815
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple

from tests.standins.nvml.layout import EVENTS, GpuState, Lacks, MigState, Missing

if TYPE_CHECKING:
    from tests.standins.nvml import NvmlStandIn

OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT, TIMEOUT = 0, 1, 2, 3, 4, 6, 7, 10
NO_FUNCTION, LOST, VERSION_MISMATCH = 13, 15, 25
SYMBOLIC = 0xFFFFFF00
UNKNOWN_BYTES, UNKNOWN_INSTANCE = 2**64 - 1, 2**32 - 1


class Target(NamedTuple):
    """What a handle stands for."""

    number: int
    gpu: GpuState
    mig: MigState | None


class Process(NamedTuple):
    """A process on a GPU; memory below 0 is unknown."""

    pid: int
    mib: int
    mps: bool


class Moment(NamedTuple):
    """What a GPU does right now."""

    load: float
    power_mw: float
    mhz: int
    reasons: int


def number(value: Any) -> int:
    """An integer, however ctypes was handed it."""
    return int(getattr(value, "value", value))


def pointer(value: Any) -> int:
    """The address in a pointer-like value."""
    return ctypes.cast(value, ctypes.c_void_p).value or 0


def put(out: Any, value: float) -> int:
    """Write through a `byref`."""
    out._obj.value = value
    return OK


def put_pointer(out: Any, value: int) -> int:
    """Write an address through a `byref` of a pointer."""
    ctypes.c_void_p.from_buffer(out._obj).value = value
    return OK


Body = Callable[Concatenate["NvmlDouble", Target, ...], int]


def call(
    *, whole: bool = True, writes: bool = False, lacks: int = 0, missing: int = 0
) -> Callable[[Body], Callable[..., int]]:
    """A call on a device: refused as the C stand-in does, then handed what its handle stands for."""

    def decorate(body: Body) -> Callable[..., int]:
        @wraps(body)
        def entry(double: NvmlDouble, handle: Any, *rest: Any) -> int:
            if double.host.missing & missing:
                return NO_FUNCTION
            code, target = double.admit(handle, writes=writes)
            if target is None or code != OK:
                return code
            if (whole and target.mig is not None) or target.gpu.lacks & lacks:
                return NOT_SUPPORTED
            return body(double, target, *rest)

        return entry

    return decorate


class NvmlDouble:
    """One process's library. `now_s` drives the energy counter."""

    def __init__(self, stand_in: NvmlStandIn, *, privileged: bool, now_s: Callable[[], float]) -> None:
        self._stand_in = stand_in
        self._privileged = privileged
        self._now_s = now_s
        self._references = 0
        self._sets: dict[int, tuple[list[int], dict[int, int]]] = {}
        self._samples: dict[int, tuple[float, float]] = {}

    @property
    def host(self) -> Any:
        """The shared state."""
        return self._stand_in.host

    # --- what every call does first ---

    def ready(self) -> int:
        """Block while the host hangs; refuse what was not initialised."""
        while self.host.hang_until_s > time.monotonic():
            time.sleep(0.002)
        return OK if self._references else UNINITIALIZED

    def admit(self, handle: Any, *, writes: bool) -> tuple[int, Target | None]:
        """Resolve a handle and refuse what cannot be."""
        code = self.ready()
        value = pointer(handle)
        if code != OK or value < 1 or (value - 1) // 16 >= self.host.gpu_count:
            return code or INVALID, None
        index, slot = divmod(value - 1, 16)
        gpu = self.host.gpus[index]
        if slot > gpu.mig_count:
            return INVALID, None
        while gpu.hang_until_s > time.monotonic():
            time.sleep(0.002)
        gpu.reads += 1
        gpu.setter_calls += writes
        code = LOST if gpu.lost else gpu.read_code
        if code == OK and writes:
            code = NO_PERMISSION if self.host.forbid_setters or not self._privileged else gpu.setter_code
        return code, Target(value, gpu, gpu.migs[slot - 1] if slot else None)

    # --- processes and physics ---

    def processes(self, uuid: bytes) -> list[Process]:
        """Processes that live and use a GPU."""
        folder = self._stand_in.root / "processes" / uuid.decode()
        found = []
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            words = file.read_text(encoding="ascii").split() if file.name.isdigit() else []
            if len(words) >= 2 and (words[2:] == ["1"] or alive(int(file.name))):
                found.append(Process(int(file.name), int(words[0]), words[1] == "1"))
        return found

    def load(self, gpu: GpuState) -> float:
        """Busy part of the time."""
        if gpu.load_pct >= 0.0:
            return float(min(gpu.load_pct, 100.0)) / 100.0
        uuids = [gpu.uuid, *(mig.uuid for mig in gpu.migs[: gpu.mig_count])]
        return 0.8 if any(self.processes(uuid) for uuid in uuids) else 0.0

    def moment(self, gpu: GpuState) -> Moment:
        """Clock and power as load, locks, limits and throttling leave them."""
        clocks = gpu.clocks[: gpu.clock_count]
        load, reasons = self.load(gpu), gpu.throttle_reasons
        if gpu.locked_max and not gpu.ignores_locks:
            mhz = at_most(clocks, gpu.locked_max)
        else:
            mhz = clocks[-1] if load > 0.0 else clocks[0]
        if load <= 0.0:
            reasons |= 1
        if gpu.throttle_reasons & ~3:
            mhz = min(mhz, at_most(clocks, gpu.throttle_mhz or clocks[-1] // 2))
        limit = enforced_mw(gpu)
        while mhz > clocks[0] and power_mw(gpu, load, mhz) > limit:
            mhz = at_most(clocks, mhz - 1)
            reasons |= 4
        return Moment(load, min(power_mw(gpu, load, mhz), limit), mhz, reasons)

    def settle(self, gpu: GpuState) -> None:
        """Count the energy until now; call it under the lock before power changes."""
        at_s = self._now_s()
        if at_s > gpu.energy_at_s > 0.0:
            gpu.energy_mj += self.moment(gpu).power_mw * (at_s - gpu.energy_at_s)
        gpu.energy_at_s = at_s

    # --- life ---

    def nvmlInitWithFlags(self, flags: Any) -> int:
        if self.host.init_code == OK:
            self._references += 1
        return int(self.host.init_code)

    def nvmlShutdown(self) -> int:
        if self._references == 0:
            return UNINITIALIZED
        self._references -= 1
        return OK

    def nvmlSystemGetDriverVersion(self, out: Any, room: Any) -> int:
        out.value = self.host.driver
        return self.ready()

    nvmlSystemGetNVMLVersion = nvmlSystemGetDriverVersion

    def nvmlSystemGetCudaDriverVersion_v2(self, out: Any) -> int:
        put(out, self.host.cuda)
        return self.ready()

    # --- devices ---

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        put(out, self.host.gpu_count)
        return self.ready()

    def _hand_out(self, index: int, slot: int, out: Any) -> int:
        gpu = self.host.gpus[index]
        if gpu.lost or gpu.handle_code:
            return LOST if gpu.lost else int(gpu.handle_code)
        return put_pointer(out, 1 + 16 * index + slot)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        code = self.ready()
        if code != OK or number(index) >= self.host.gpu_count:
            return code or INVALID
        return self._hand_out(number(index), 0, out)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:
        code = self.ready()
        if code != OK:
            return code
        for index in range(self.host.gpu_count):
            gpu = self.host.gpus[index]
            uuids = [gpu.uuid, *(mig.uuid for mig in gpu.migs[: gpu.mig_count])]
            if uuid.value in uuids:
                return self._hand_out(index, uuids.index(uuid.value), out)
        return NOT_FOUND

    @call(whole=False)
    def nvmlDeviceGetName(self, target: Target, out: Any, room: Any) -> int:
        out.value = target.gpu.product + (b"" if target.mig is None else b" MIG " + target.mig.profile)
        return OK

    @call(whole=False)
    def nvmlDeviceGetUUID(self, target: Target, out: Any, room: Any) -> int:
        out.value = (target.mig or target.gpu).uuid
        return OK

    @call(whole=False)
    def nvmlDeviceGetIndex(self, target: Target, out: Any) -> int:
        return put(out, (target.number - 1) // 16)

    @call()
    def nvmlDeviceGetMinorNumber(self, target: Target, out: Any) -> int:
        return put(out, target.gpu.minor)

    @call()
    def nvmlDeviceGetPciInfo_v3(self, target: Target, out: Any) -> int:
        out._obj.bus = 0x10 + target.gpu.minor
        out._obj.busIdLegacy = f"0000:{out._obj.bus:02X}:00.0".encode()
        out._obj.busId = f"00000000:{out._obj.bus:02X}:00.0".encode()
        return OK

    @call(whole=False)
    def nvmlDeviceGetCudaComputeCapability(self, target: Target, major: Any, minor: Any) -> int:
        return put(major, target.gpu.cc_major) or put(minor, target.gpu.cc_minor)

    @call(lacks=Lacks.CORES, missing=Missing.CORES)
    def nvmlDeviceGetNumGpuCores(self, target: Target, out: Any) -> int:
        return put(out, target.gpu.core_count)

    @call(whole=False)
    def nvmlDeviceGetAttributes_v2(self, target: Target, out: Any) -> int:
        if target.mig is None:
            return NOT_SUPPORTED
        found = out._obj
        found.multiprocessorCount, found.memorySizeMB = target.mig.sm_count, target.mig.memory_bytes >> 20
        found.gpuInstanceSliceCount = found.computeInstanceSliceCount = target.mig.slices
        return OK

    # --- MIG ---

    @call(whole=False, lacks=Lacks.MIG)
    def nvmlDeviceGetMigMode(self, target: Target, current: Any, pending: Any) -> int:
        return put(current, target.gpu.mig_mode) or put(pending, target.gpu.mig_mode)

    @call()
    def nvmlDeviceGetMaxMigDeviceCount(self, target: Target, out: Any) -> int:
        return put(out, 0 if target.gpu.lacks & Lacks.MIG else 7)

    @call()
    def nvmlDeviceGetMigDeviceHandleByIndex(self, target: Target, index: Any, out: Any) -> int:
        if number(index) >= target.gpu.mig_count:
            return NOT_FOUND
        return put_pointer(out, target.number + number(index) + 1)

    @call(whole=False)
    def nvmlDeviceIsMigDeviceHandle(self, target: Target, out: Any) -> int:
        return put(out, target.mig is not None)

    @call(whole=False)
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, target: Target, out: Any) -> int:
        return INVALID if target.mig is None else put_pointer(out, target.number - (target.number - 1) % 16)

    @call(whole=False)
    def nvmlDeviceGetGpuInstanceId(self, target: Target, out: Any) -> int:
        return INVALID if target.mig is None else put(out, target.mig.gpu_instance)

    @call(whole=False)
    def nvmlDeviceGetComputeInstanceId(self, target: Target, out: Any) -> int:
        return INVALID if target.mig is None else put(out, target.mig.compute_instance)

    # --- memory and processes ---

    def _memory(self, target: Target) -> tuple[int, int, int]:
        part = target.mig or target.gpu
        reserved = 0 if target.mig else target.gpu.reserved_bytes
        used = sum(max(0, process.mib) << 20 for process in self.processes(part.uuid))
        return part.memory_bytes, reserved, min(used, part.memory_bytes - reserved)

    @call(whole=False)
    def nvmlDeviceGetMemoryInfo(self, target: Target, out: Any) -> int:
        total, reserved, used = self._memory(target)
        out._obj.total, out._obj.free, out._obj.used = total, total - reserved - used, used + reserved
        return OK

    @call(whole=False, missing=Missing.MEMORY_V2)
    def nvmlDeviceGetMemoryInfo_v2(self, target: Target, out: Any) -> int:
        found = out._obj
        if found.version != ctypes.sizeof(found) | 2 << 24:
            return VERSION_MISMATCH
        found.total, found.reserved, found.used = self._memory(target)
        found.free = found.total - found.reserved - found.used
        return OK

    def _list(self, target: Target, count: Any, out: Any, mps: bool) -> int:
        mine = [process for process in self.processes((target.mig or target.gpu).uuid) if process.mps is mps]
        room, count._obj.value = count._obj.value, len(mine)
        if out is None or room < len(mine):
            return INSUFFICIENT if mine else OK
        for slot, process in zip(out, mine, strict=False):
            unknown = process.mib < 0 or target.gpu.memory_unknown
            slot.pid, slot.usedGpuMemory = process.pid, UNKNOWN_BYTES if unknown else process.mib << 20
            slot.gpuInstanceId = target.mig.gpu_instance if target.mig else UNKNOWN_INSTANCE
            slot.computeInstanceId = target.mig.compute_instance if target.mig else UNKNOWN_INSTANCE
        return OK

    @call(whole=False)
    def nvmlDeviceGetComputeRunningProcesses_v3(self, target: Target, count: Any, out: Any) -> int:
        return self._list(target, count, out, mps=False)

    @call(whole=False, missing=Missing.MPS_PROCESSES)
    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, target: Target, count: Any, out: Any) -> int:
        return self._list(target, count, out, mps=True)

    @call()
    def nvmlDeviceGetProcessUtilization(self, target: Target, out: Any, count: Any, since_us: Any) -> int:
        return put(count, 0)

    # --- reads ---

    @call(lacks=Lacks.UTILISATION)
    def nvmlDeviceGetUtilizationRates(self, target: Target, out: Any) -> int:
        if target.gpu.mig_mode:
            return NOT_SUPPORTED
        load = self.load(target.gpu)
        out._obj.gpu, out._obj.memory = int(100 * load + 0.5), int(40 * load + 0.5)
        return OK

    @call(lacks=Lacks.POWER)
    def nvmlDeviceGetPowerUsage(self, target: Target, out: Any) -> int:
        return put(out, int(self.moment(target.gpu).power_mw))

    @call(lacks=Lacks.POWER_LIMIT)
    def nvmlDeviceGetPowerManagementLimit(self, target: Target, out: Any) -> int:
        return put(out, target.gpu.limit_mw)

    @call(lacks=Lacks.POWER_LIMIT)
    def nvmlDeviceGetPowerManagementDefaultLimit(self, target: Target, out: Any) -> int:
        return put(out, target.gpu.limit_mw_default)

    @call()
    def nvmlDeviceGetEnforcedPowerLimit(self, target: Target, out: Any) -> int:
        return put(out, enforced_mw(target.gpu))

    @call(lacks=Lacks.POWER_LIMIT)
    def nvmlDeviceGetPowerManagementLimitConstraints(self, target: Target, low: Any, high: Any) -> int:
        return put(low, target.gpu.limit_mw_min) or put(high, target.gpu.limit_mw_max)

    def _energy(self, gpu: GpuState) -> int:
        with self._stand_in.locked():
            self.settle(gpu)
            return int(gpu.energy_mj)

    @call(lacks=Lacks.ENERGY)
    def nvmlDeviceGetTotalEnergyConsumption(self, target: Target, out: Any) -> int:
        return put(out, self._energy(target.gpu))

    @call(lacks=Lacks.TEMPERATURE)
    def nvmlDeviceGetTemperature(self, target: Target, sensor: Any, out: Any) -> int:
        return INVALID if number(sensor) != 0 else put(out, int(35 + 45 * self.load(target.gpu)))

    @call(lacks=Lacks.TEMPERATURE, missing=Missing.TEMPERATURE_V)
    def nvmlDeviceGetTemperatureV(self, target: Target, out: Any) -> int:
        found = out._obj
        if found.version != ctypes.sizeof(found) | 1 << 24:
            return VERSION_MISMATCH
        found.temperature = int(35 + 45 * self.load(target.gpu))
        return OK

    @call()
    def nvmlDeviceGetClockInfo(self, target: Target, kind: Any, out: Any) -> int:
        gpu = target.gpu
        if number(kind) != 2:
            return put(out, self.moment(gpu).mhz)
        locked = gpu.memory_locked_max and not gpu.ignores_locks
        return put(out, gpu.memory_locked_max if locked else gpu.memory_clocks[gpu.memory_clock_count - 1])

    @call()
    def nvmlDeviceGetMaxClockInfo(self, target: Target, kind: Any, out: Any) -> int:
        gpu = target.gpu
        highest = (
            gpu.memory_clocks[gpu.memory_clock_count - 1] if number(kind) == 2 else gpu.clocks[gpu.clock_count - 1]
        )
        return put(out, highest)

    @call(lacks=Lacks.CLOCK_LOCK)
    def nvmlDeviceGetSupportedMemoryClocks(self, target: Target, count: Any, out: Any) -> int:
        return hand_down(target.gpu.memory_clocks[: target.gpu.memory_clock_count], count, out)

    @call(lacks=Lacks.CLOCK_LOCK)
    def nvmlDeviceGetSupportedGraphicsClocks(self, target: Target, memory_mhz: Any, count: Any, out: Any) -> int:
        gpu = target.gpu
        memory = gpu.memory_clocks[: gpu.memory_clock_count]
        if number(memory_mhz) not in memory:
            return INVALID
        few = len(memory) > 1 and number(memory_mhz) == memory[0]
        return hand_down(gpu.clocks[: (gpu.clock_count + 3) // 4 if few else gpu.clock_count], count, out)

    @call()
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, target: Target, out: Any) -> int:
        return put(out, self.moment(target.gpu).reasons)

    @call(missing=Missing.EVENT_REASONS)
    def nvmlDeviceGetCurrentClocksEventReasons(self, target: Target, out: Any) -> int:
        return put(out, self.moment(target.gpu).reasons)

    @call(whole=False)
    def nvmlDeviceGetComputeMode(self, target: Target, out: Any) -> int:
        return put(out, (target.mig or target.gpu).compute_mode)

    @call(lacks=Lacks.PERSISTENCE)
    def nvmlDeviceGetPersistenceMode(self, target: Target, out: Any) -> int:
        return put(out, target.gpu.persistence)

    @call(lacks=Lacks.ECC)
    def nvmlDeviceGetTotalEccErrors(self, target: Target, uncorrected: Any, counter: Any, out: Any) -> int:
        return put(out, target.gpu.ecc_uncorrected if number(uncorrected) else target.gpu.ecc_corrected)

    @call()
    def nvmlDeviceGetFieldValues(self, target: Target, count: Any, out: Any) -> int:
        gpu = target.gpu
        for field in out._obj:
            field.nvmlReturn, field.valueType = OK, 1
            if (
                field.fieldId in (185, 186)
                and not gpu.lacks & (Lacks.INSTANT_POWER | Lacks.POWER)
                and not field.scopeId
            ):
                field.value.uiVal = int(self.moment(gpu).power_mw)
            elif field.fieldId == 83 and not gpu.lacks & Lacks.ENERGY:
                field.valueType, field.value.ullVal = 3, self._energy(gpu)
            elif field.fieldId == 230:
                field.value.uiVal = gpu.recovery_action
            else:
                field.nvmlReturn = NOT_SUPPORTED
        return OK

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
            time.sleep(0.002)

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


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return state[:1] not in ([], ["Z"], ["X"])


def at_most(clocks: list[int], mhz: int) -> int:
    """The highest clock of a rising table that is not above another; the lowest if all are."""
    return max((clock for clock in clocks if clock <= mhz), default=clocks[0])


def power_mw(gpu: GpuState, load: float, mhz: int) -> float:
    """Power that load and clock would take without a limit."""
    part = (mhz / gpu.clocks[gpu.clock_count - 1]) ** 2.2
    return float(gpu.idle_mw + (1.1 * gpu.tdp_mw - gpu.idle_mw) * load * part)


def enforced_mw(gpu: GpuState) -> int:
    """The strictest power limit."""
    return int(min(gpu.limit_mw, gpu.limit_mw_outside or gpu.limit_mw))


def hand_down(rising: list[int], count: Any, out: Any) -> int:
    """A list by the protocol of two calls, the highest first."""
    room, count._obj.value = count._obj.value, len(rising)
    if out is None or room < len(rising):
        return INSUFFICIENT
    out[: len(rising)] = rising[::-1]
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
