"""What devices used and what workers did since the last look, with every joule and mebibyte of a worker its device's.

Owns energy from counters that may begin again, its division among workers by share and time (drivers credit the work
of MPS clients to the server, so nothing per process is believed), memory by process, and what a device said by itself.
What nobody had the share for stays with the device: sums of workers never exceed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agents.devices.base import DeviceSample, WorkerReading, WorkerSample
from agents.devices.nvidia.parts import HostParts
from agents.devices.parts import BoardReading, GpuProcess
from agents.errors import DeviceError

EVENT_KEPT_S = 600.0
"""What a device said by itself is told for so long."""
PROCESSES_AGE_S_MAX = 4.0
"""Lists of processes are read anew after so long, or when workers come and go."""
RESET_XIDS = frozenset({46, 48, 62, 64, 79, 95, 119, 120, 140})
"""XIDs that NVIDIA answers with a reset of the GPU. Whoever resets it has to end this agent before."""
QUIET_EVENTS = frozenset({"ecc_single_bit"})
"""Corrected by the hardware: nobody needs to know each."""


@dataclass(slots=True)
class _Meter:
    """A device's energy counter at the last look."""

    at_s: float
    energy_j_total: float | None
    clock_mhz_sm: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the crew saw of an interval: samples, and the readings and processes of workers."""

    samples: tuple[WorkerSample, ...]
    readings: Mapping[str, WorkerReading]
    pids: Mapping[str, tuple[int, ...]]


class Accounts:
    """Meters of all devices. Not thread-safe."""

    def __init__(self, parts: HostParts, uuids: tuple[str, ...]) -> None:
        self._parts = parts
        self._meters = {uuid: _Meter(parts.now_s(), self._total(uuid)) for uuid in uuids}
        self._events: dict[tuple[str, str, int], tuple[int, float]] = {}
        self._condemned: dict[str, str] = {}
        """Devices that need a reset by what they said, and what that was."""
        self._processes_read: dict[str, tuple[float, frozenset[int] | None]] = {}
        self.processes: dict[str, tuple[GpuProcess, ...]] = {}
        """Processes of every device at the last look."""

    def close_interval(self, interval: Interval) -> tuple[DeviceSample, ...]:
        """Every device with its workers."""
        self._note_events()
        return tuple(self._sample(uuid, interval) for uuid in self._meters)

    def problems(self) -> list[str]:
        """Devices that are unwell, and what devices said lately."""
        said = [
            f"{uuid}: {kind.replace('_', ' ')}{f' {detail}' if detail else ''}{f', {times} times' if times > 1 else ''}"
            for (uuid, kind, detail), (times, _) in sorted(self._events.items())
        ]
        return [f"{uuid}: {meter.problem}" for uuid, meter in sorted(self._meters.items()) if meter.problem] + said

    def _sample(self, uuid: str, interval: Interval) -> DeviceSample:
        meter = self._meters[uuid]
        elapsed_s = self._parts.now_s() - meter.at_s
        try:
            board = self._parts.boards.reading(uuid)
            self._look_at_processes(uuid, interval)
        except DeviceError as error:
            meter.problem, meter.at_s = f"{error.code}: {error}", self._parts.now_s()
            self.processes[uuid] = ()
            self._processes_read.pop(uuid, None)
            return _lost(uuid, meter, [item for item in interval.samples if item.reading.uuid == uuid])
        energy_j = _energy_j(meter, board, elapsed_s)
        problem = self._condemned.get(uuid, "") if board.healthy else board.problem or "unhealthy"
        self._meters[uuid] = _Meter(self._parts.now_s(), board.energy_j_total, board.clock_mhz_sm, problem)
        return DeviceSample(
            uuid=uuid,
            power_w=board.power_w if board.power_w is not None else (energy_j / elapsed_s if elapsed_s > 0.0 else 0.0),
            energy_j=energy_j,
            # Utilisation says that some kernel ran, not how much of the device: activity is better where there is it.
            utilisation_pct=board.utilisation_pct or 0.0 if board.sm_activity_pct is None else board.sm_activity_pct,
            memory_mib_used=board.memory_mib_used,
            clock_mhz_sm=board.clock_mhz_sm,
            temperature_c=board.temperature_c,
            throttle=board.throttle,
            healthy=not problem,
            workers=self._workers(uuid, interval, board, (energy_j, elapsed_s)),
        )

    def _look_at_processes(self, uuid: str, interval: Interval) -> None:
        now_s = self._parts.now_s()
        mine = frozenset(pid for item in interval.samples for pid in interval.pids.get(item.reading.worker, ()))
        read_s, read_for = self._processes_read.get(uuid, (float("-inf"), None))
        if read_for != mine or now_s - read_s >= PROCESSES_AGE_S_MAX:
            self.processes[uuid] = self._parts.boards.processes(uuid)
            self._processes_read[uuid] = (now_s, mine)

    def _workers(
        self, uuid: str, interval: Interval, board: BoardReading, used: tuple[float, float]
    ) -> tuple[WorkerSample, ...]:
        energy_j, elapsed_s = used
        samples = [item for item in interval.samples if item.reading.uuid == uuid]
        parts = [item.reading.spec.share_pct_sm / 100.0 * item.held_s for item in samples]
        whole = max(elapsed_s, sum(parts))
        memory = self._memory_mib(uuid, samples, interval.pids)
        over = max(1.0, sum(memory) / board.memory_mib_used) if board.memory_mib_used > 0.0 else float("inf")
        return tuple(
            replace(
                item,
                reading=interval.readings.get(item.reading.worker, item.reading),
                energy_j=energy_j * part / whole if whole > 0.0 else 0.0,
                memory_mib_used=mebibytes / over,
            )
            for item, part, mebibytes in zip(samples, parts, memory, strict=True)
        )

    def _memory_mib(self, uuid: str, samples: list[WorkerSample], pids: Mapping[str, tuple[int, ...]]) -> list[float]:
        """Memory of each worker's processes; a process whose memory the driver does not tell counts nothing."""
        by_pid = {process.pid: process.memory_mib or 0.0 for process in self.processes[uuid]}
        return [
            0.0 if item.gone else sum(by_pid.get(pid, 0.0) for pid in pids.get(item.reading.worker, ()))
            for item in samples
        ]

    def _total(self, uuid: str) -> float | None:
        try:
            return self._parts.boards.reading(uuid).energy_j_total
        except DeviceError:
            return None

    def _note_events(self) -> None:
        now_s = self._parts.now_s()
        for event in self._parts.boards.events():
            if event.kind == "xid" and event.detail in RESET_XIDS:
                self._condemned[event.uuid] = f"XID {event.detail}: the GPU needs a reset"
            if event.kind not in QUIET_EVENTS:
                key = (event.uuid, event.kind, event.detail)
                self._events[key] = (self._events.get(key, (0, 0.0))[0] + 1, now_s)
        for key in [key for key, (_, at_s) in self._events.items() if now_s - at_s > EVENT_KEPT_S]:
            del self._events[key]


def _energy_j(meter: _Meter, board: BoardReading, elapsed_s: float) -> float:
    """Energy since the last look. A counter below its last value has begun anew with the driver."""
    before, after = meter.energy_j_total, board.energy_j_total
    if before is None or after is None:
        return (board.power_w or 0.0) * elapsed_s
    return after - before if after >= before else after


def _lost(uuid: str, meter: _Meter, samples: list[WorkerSample]) -> DeviceSample:
    """A device that does not answer: it used nothing that anybody could read."""
    return DeviceSample(
        uuid=uuid,
        power_w=0.0,
        energy_j=0.0,
        utilisation_pct=0.0,
        memory_mib_used=0.0,
        clock_mhz_sm=meter.clock_mhz_sm,
        temperature_c=None,
        throttle="",
        healthy=False,
        workers=tuple(samples),
    )
