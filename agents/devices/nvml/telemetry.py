"""What a device does right now, in about ten cheap calls, and what devices say by themselves.

What a device cannot tell is found out once, then not asked again, and numbers that mean "not available" are filtered.
Power is the instantaneous one where the driver has it; the plain call lags by its average of one second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from agents.devices.nvml.binding import Driver, Nvml, address
from agents.devices.nvml.inventory import CLOCK_SM, MIB, BoardFacts
from agents.devices.parts import BoardEvent, BoardReading
from agents.errors import (
    BusyError,
    DeviceError,
    DeviceTimeoutError,
    LostError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
    OutOfRangeError,
)

# --- How much of the SMs really worked, from the GPU's performance monitor (Hopper and newer)
#
# MIG devices are sampled through their GPU.


APART_S_MIN = 0.11
SM_UTILISATION = 2
STRUCTURE_VERSION = 1


class SmActivity:
    """One device's monitor. Runs under the guard."""

    def __init__(self, nvml: Nvml, facts: BoardFacts) -> None:
        self._nvml = nvml
        self._facts = facts
        self._earlier = nvml.call("nvmlGpmSampleAlloc")
        self._later = nvml.call("nvmlGpmSampleAlloc")
        self._question = nvml.structure("c_nvmlGpmMetricsGet_t")
        self._sampled_s: float | None = None
        self._found_pct: float | None = None

    def read(self, now_s: float) -> float | None:
        """Percent of the SMs that were busy since the last sample; None until there are two."""
        if self._sampled_s is not None and now_s - self._sampled_s < APART_S_MIN:
            return self._found_pct
        self._earlier, self._later = self._later, self._earlier
        self._sample()
        first, self._sampled_s = self._sampled_s is None, now_s
        if not first:
            self._found_pct = self._compare()
        return self._found_pct

    def close(self) -> None:
        for sample in (self._earlier, self._later):
            self._nvml.call("nvmlGpmSampleFree", sample)

    def _sample(self) -> None:
        if self._facts.gpu_instance is None:
            self._nvml.call("nvmlGpmSampleGet", self._facts.board, self._later)
        else:
            self._nvml.call("nvmlGpmMigSampleGet", self._facts.board, self._facts.gpu_instance, self._later)

    def _compare(self) -> float | None:
        question = self._question
        question.version, question.numMetrics = STRUCTURE_VERSION, 1
        question.sample1, question.sample2 = self._earlier, self._later
        question.metrics[0].metricId = SM_UTILISATION
        self._nvml.call("nvmlGpmMetricsGet", question)
        metric = question.metrics[0]
        return float(metric.value) if metric.nvmlReturn == 0 and 0.0 <= metric.value <= 100.0 else None


FIELD_ENERGY, FIELD_POWER, FIELD_RECOVERY = 83, 186, 230
FIELDS = (FIELD_ENERGY, (FIELD_POWER, 0), FIELD_RECOVERY)
RECOVERY = {1: "needs a reset", 2: "needs a reboot of the host", 3: "must be drained", 4: "must be drained and reset"}
POWER_W_MAX, TEMPERATURE_C_MAX, CLOCK_MHZ_MAX, COUNTER_MAX = 20_000.0, 200, 20_000, 2**63
UNCORRECTED, VOLATILE = 1, 0
THROTTLE = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
NOT_THROTTLE = 0x1 | 0x2
"""Idle, and a clock somebody asked for."""
REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
TEMPERATURES = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
UNANSWERED = (NotFoundError, OutOfRangeError, NoPermissionError, BusyError)


def throttle_words(mask: int) -> str:
    """Reasons for a low clock as words; a bit newer than this table as a number."""
    words = [word for bit, word in THROTTLE.items() if mask & bit]
    rest = mask & ~(NOT_THROTTLE | sum(THROTTLE))
    return ",".join([*words, *([f"0x{rest:x}"] if rest else [])])


class DeviceTelemetry:
    """One device's reader. Runs under the guard."""

    def __init__(self, facts: BoardFacts) -> None:
        self._facts = facts
        self._absent: set[object] = set()
        self._activity: SmActivity | None = None
        self._uncorrected_seen: int | None = None

    def read(self, nvml: Nvml, now_s: float) -> BoardReading:
        """Read the device. Raises LostError when it is gone."""
        board = self._facts.board
        fields = self._fields(nvml)
        problem = self._problem(nvml, fields.get(FIELD_RECOVERY))
        reasons = self._ask(nvml, REASONS, board)
        clock = self._ask(nvml, ("nvmlDeviceGetClockInfo",), board, CLOCK_SM)
        return BoardReading(
            uuid=self._facts.uuid,
            power_w=self._power_w(nvml, fields.get(FIELD_POWER)),
            energy_j_total=self._energy_j(nvml, fields.get(FIELD_ENERGY)),
            utilisation_pct=self._utilisation_pct(nvml),
            memory_mib_used=self._memory_mib_used(nvml),
            clock_mhz_sm=int(_bounded(clock, CLOCK_MHZ_MAX) or 0),
            temperature_c=_bounded(self._ask(nvml, TEMPERATURES, board, 0), TEMPERATURE_C_MAX),
            throttle=throttle_words(int(reasons or 0)),
            healthy=not problem,
            problem=problem,
            sm_activity_pct=self._sm_activity_pct(nvml, now_s),
        )

    def close(self) -> None:
        if self._activity is not None:
            self._activity.close()
            self._activity = None

    def _ask(self, nvml: Nvml, names: tuple[str, ...], *arguments: object, **named: object) -> Any:
        """What the first of these names that exists says; None where the device does not tell, now or ever."""
        question = (names[0], *arguments[1:])
        if question in self._absent:
            return None
        try:
            return nvml.first(names, *arguments, **named)
        except NotSupportedError:
            self._absent.add(question)
        except UNANSWERED:
            pass
        return None

    def _of_whole(self, nvml: Nvml, name: str, *arguments: object) -> Any:
        """What only a whole GPU can tell; None for a slice."""
        return None if self._facts.sliced else self._ask(nvml, (name,), self._facts.board, *arguments)

    def _fields(self, nvml: Nvml) -> dict[int, int]:
        """Values that one call fetches together, those that it has."""
        found = self._of_whole(nvml, "nvmlDeviceGetFieldValues", FIELDS)
        return {int(field.fieldId): _number(field) for field in found or () if field.nvmlReturn == 0}

    def _power_w(self, nvml: Nvml, instant_mw: int | None) -> float | None:
        found = self._of_whole(nvml, "nvmlDeviceGetPowerUsage") if instant_mw is None else instant_mw
        return None if found is None else _bounded(found / 1000.0, POWER_W_MAX)

    def _energy_j(self, nvml: Nvml, counted_mj: int | None) -> float | None:
        found = self._of_whole(nvml, "nvmlDeviceGetTotalEnergyConsumption") if counted_mj is None else counted_mj
        counted = _bounded(found, COUNTER_MAX)
        return None if counted is None else counted / 1000.0

    def _utilisation_pct(self, nvml: Nvml) -> float | None:
        """Share of time in which anything ran; not the share of the SMs."""
        found = self._of_whole(nvml, "nvmlDeviceGetUtilizationRates")
        return None if found is None else _bounded(found.gpu, 100)

    def _memory_mib_used(self, nvml: Nvml) -> float:
        """Without what the driver keeps for itself, where it can tell that apart."""
        handle, version = self._facts.handle, nvml.constant("nvmlMemory_v2")
        found = None
        if "memory v2" not in self._absent:
            found = nvml.maybe("nvmlDeviceGetMemoryInfo", handle, version=version)
        if found is None:
            self._absent.add("memory v2")
            found = nvml.call("nvmlDeviceGetMemoryInfo", handle)
        return float(min(found.used, found.total) / MIB)

    def _problem(self, nvml: Nvml, recovery: int | None) -> str:
        if recovery:
            return f"the driver says that it {RECOVERY.get(recovery, 'needs recovery')}"
        told = self._ask(nvml, ("nvmlDeviceGetTotalEccErrors",), self._facts.board, UNCORRECTED, VOLATILE)
        errors = _bounded(told, COUNTER_MAX)
        if errors is None:
            return ""
        if self._uncorrected_seen is None or errors < self._uncorrected_seen:
            self._uncorrected_seen = int(errors)
        fresh = int(errors) - self._uncorrected_seen
        return f"{fresh} uncorrectable memory errors since the agent began to look" if fresh else ""

    def _sm_activity_pct(self, nvml: Nvml, now_s: float) -> float | None:
        if self._facts.capabilities.get("gpm") or "gpm" in self._absent:
            return None
        try:
            if self._activity is None:
                self._activity = SmActivity(nvml, self._facts)
            return self._activity.read(now_s)
        except NotSupportedError:
            self._absent.add("gpm")
        except UNANSWERED:
            pass
        return None


def _bounded(value: float | None, highest: float) -> float | None:
    """A number unless it is one of those that stand for "not available"."""
    return float(value) if value is not None and 0 <= value <= highest else None


def _number(field: Any) -> int:
    """A field's value by its type: 1 unsigned int, 2 and 3 wider ones, 4 and 5 signed."""
    value = field.value
    by_type = {0: value.dVal, 1: value.uiVal, 2: value.ulVal, 3: value.ullVal, 4: value.sllVal, 5: value.siVal}
    return int(by_type.get(field.valueType, value.ullVal))


# --- What devices say by themselves: XIDs, memory errors, that they are gone
#
# Waiting is the one driver call that is meant to block, so it runs outside the guard; the thread ends when told to, or
# with the process. Devices without events are not waited for.


KINDS = {
    0x1: "ecc_single_bit",
    0x2: "ecc_double_bit",
    0x8: "xid",
    0x400: "row_remap",
    0x800: "row_remap",
    0x4000: "unavailable",
    0x8000: "recovery_action",
}
WAIT_MS = 500
PAUSE_S_AFTER_ERROR, PAUSE_S_AFTER_NOTHING = 1.0, 0.05
QUEUE_MAX = 1000
ANY_INSTANCE = 0xFFFFFFFF


class EventWatch:
    """Waits for events of some devices from its creation on."""

    def __init__(
        self, driver: Driver, devices: tuple[BoardFacts, ...], now_s: Callable[[], float], wait_ms: int = WAIT_MS
    ) -> None:
        self._nvml = driver.nvml
        self._wait_ms = wait_ms
        self._now_s = now_s
        self._owners: dict[int, list[BoardFacts]] = {}
        for facts in devices:
            self._owners.setdefault(address(facts.board), []).append(facts)
        self._lost: set[str] = set()
        self._queue: deque[BoardEvent] = deque(maxlen=QUEUE_MAX)
        self._stop = threading.Event()
        self._set: object = None
        self._thread: threading.Thread | None = None
        self.problem = ""
        """Why there are no events; empty when all is well."""
        try:
            self._set = driver.run("", self._register)
        except DeviceError as error:
            self.problem = str(error)
        if self._set is not None:
            self._thread = threading.Thread(target=self._watch, name="nvml-events", daemon=True)
            self._thread.start()

    def take(self) -> tuple[BoardEvent, ...]:
        """What was said since the last call; the oldest are forgotten when nobody takes them."""
        found = []
        while self._queue:
            found.append(self._queue.popleft())
        return tuple(found)

    def close(self) -> bool:
        """End the thread, after the wait it is in; whether it ended."""
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout=1.0 + self._wait_ms / 1000.0)
        return not self._thread.is_alive()

    def _register(self, nvml: Nvml) -> object:
        """An event set with all that its devices can say; None when none can say anything."""
        event_set: object = nvml.call("nvmlEventSetCreate")
        watched = 0
        for owners in self._owners.values():
            board = owners[0].board
            try:
                wanted = sum(KINDS) & int(nvml.call("nvmlDeviceGetSupportedEventTypes", board))
                if wanted:
                    nvml.call("nvmlDeviceRegisterEvents", board, wanted, event_set)
                    watched += 1
            except DeviceError as error:
                self.problem = f"{owners[0].uuid}: {error}"
        if watched:
            return event_set
        nvml.call("nvmlEventSetFree", event_set)
        return None

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                said = self._nvml.call("nvmlEventSetWait", self._set, self._wait_ms)
            except DeviceTimeoutError:
                continue
            except LostError:
                self._find_lost()
                self._stop.wait(PAUSE_S_AFTER_ERROR)
            except DeviceError as error:
                self.problem = str(error)
                self._stop.wait(PAUSE_S_AFTER_ERROR)
            else:
                if not self._note(said):
                    self._stop.wait(PAUSE_S_AFTER_NOTHING)
        try:
            self._nvml.call("nvmlEventSetFree", self._set)
        except DeviceError as error:
            self.problem = str(error)

    def _note(self, said: Any) -> bool:
        """Queue an event for every device it is about: a slice's GPU speaks for all its slices unless it names one."""
        kind = KINDS.get(int(said.eventType))
        owners = self._owners.get(address(said.device), [])
        instance = int(said.gpuInstanceId)
        for facts in owners if kind is not None else ():
            if instance in (ANY_INSTANCE, facts.gpu_instance) or facts.gpu_instance is None:
                self._say(facts.uuid, str(kind), int(said.eventData))
        return kind is not None and bool(owners)

    def _find_lost(self) -> None:
        """The wait says that some device is lost, not which: ask each."""
        for owners in self._owners.values():
            try:
                self._nvml.call("nvmlDeviceGetUUID", owners[0].board)
            except LostError:
                fresh = [facts.uuid for facts in owners if facts.uuid not in self._lost]
                for uuid in fresh:
                    self._say(uuid, "unavailable", 0)
                self._lost.update(fresh)
            except DeviceError as error:
                self.problem = str(error)
            else:
                self._lost.difference_update(facts.uuid for facts in owners)

    def _say(self, uuid: str, kind: str, detail: int) -> None:
        self._queue.append(BoardEvent(uuid=uuid, kind=kind, detail=detail, at_s=self._now_s()))
