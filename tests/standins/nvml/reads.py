"""The calls of the Python double that only read, named like the C symbols.

Owns their answers; each takes what ctypes would be handed and returns the code.
"""

# The symbols keep the names the library gives them.
# ruff: noqa: N802, N815
from __future__ import annotations

import ctypes
from typing import Any

from tests.standins.nvml.core import (
    INSUFFICIENT,
    INVALID,
    LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    UNINITIALIZED,
    UNKNOWN_BYTES,
    UNKNOWN_INSTANCE,
    VERSION_MISMATCH,
    Core,
    Target,
    call,
    enforced_mw,
    number,
    put,
    put_pointer,
)
from tests.standins.nvml.layout import GpuState, Lacks, Missing


class Reads(Core):
    """Life of the library, devices, memory, processes and readings."""

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


def hand_down(rising: list[int], count: Any, out: Any) -> int:
    """A list by the protocol of two calls, the highest first."""
    room, count._obj.value = count._obj.value, len(rising)
    if out is None or room < len(rising):
        return INSUFFICIENT
    out[: len(rising)] = rising[::-1]
    return OK
