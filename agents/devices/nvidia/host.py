"""A host's real GPUs as `Devices`: one verb at a time, each made of calls to the parts.

The limits of a device (shares, memory, dedicated use) are counted over what its processes hold. Processes it does not
own are never touched; that they are there is said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agents.devices.base import (
    DeviceSample,
    DeviceSettings,
    LogRead,
    Mode,
    WorkerReading,
    WorkerSample,
    WorkerSpec,
    held_mib,
    one_at_a_time,
)
from agents.devices.nvidia.control import BoardControl, HostParts
from agents.devices.nvidia.modes import Modes, Register, WorkerPart, share_order
from agents.devices.nvidia.roster import Roster
from agents.devices.parts import BoardReading, CrewOrder, GpuProcess
from agents.errors import BusyError, DeviceError, NotFoundError, OutOfMemoryError, OutOfRangeError
from agents.wire import DeviceInventory

# --- What devices used and what workers did since the last look, with every joule and mebibyte of a worker its device's
#
# What nobody had the share for stays with the device: sums of workers never exceed it.


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

    def close_interval(self, samples: tuple[WorkerSample, ...], roster: Roster) -> tuple[DeviceSample, ...]:
        self._note_events()
        return tuple(
            self._sample(uuid, [item for item in samples if item.reading.uuid == uuid], roster) for uuid in self._meters
        )

    def problems(self) -> list[str]:
        """Devices that are unwell, and what devices said lately."""
        said = [
            f"{uuid}: {kind.replace('_', ' ')}{f' {detail}' if detail else ''}{f', {times} times' if times > 1 else ''}"
            for (uuid, kind, detail), (times, _) in sorted(self._events.items())
        ]
        return [f"{uuid}: {meter.problem}" for uuid, meter in sorted(self._meters.items()) if meter.problem] + said

    def _sample(self, uuid: str, samples: list[WorkerSample], roster: Roster) -> DeviceSample:
        meter = self._meters[uuid]
        elapsed_s = self._parts.now_s() - meter.at_s
        try:
            board = self._parts.boards.reading(uuid)
            self._look_at_processes(uuid, samples, roster)
        except DeviceError as error:
            meter.problem, meter.at_s = f"{error.code}: {error}", self._parts.now_s()
            self.processes[uuid] = ()
            self._processes_read.pop(uuid, None)
            return _lost(uuid, meter, samples)
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
            workers=self._workers(samples, roster, board, energy_j, elapsed_s),
        )

    def _look_at_processes(self, uuid: str, samples: list[WorkerSample], roster: Roster) -> None:
        now_s = self._parts.now_s()
        mine = frozenset(pid for item in samples for pid in roster.pids.get(item.reading.worker, ()))
        read_s, read_for = self._processes_read.get(uuid, (float("-inf"), None))
        if read_for != mine or now_s - read_s >= PROCESSES_AGE_S_MAX:
            self.processes[uuid] = self._parts.boards.processes(uuid)
            self._processes_read[uuid] = (now_s, mine)

    def _workers(
        self, samples: list[WorkerSample], roster: Roster, board: BoardReading, energy_j: float, elapsed_s: float
    ) -> tuple[WorkerSample, ...]:
        parts = [item.reading.spec.share_pct_sm / 100.0 * item.held_s for item in samples]
        whole = max(elapsed_s, sum(parts))
        # A process whose memory the driver does not tell counts nothing.
        by_pid = {process.pid: process.memory_mib or 0.0 for process in self.processes[board.uuid]}
        memory = [
            0.0 if item.gone else sum(by_pid.get(pid, 0.0) for pid in roster.pids.get(item.reading.worker, ()))
            for item in samples
        ]
        readings = roster.last
        over = max(1.0, sum(memory) / board.memory_mib_used) if board.memory_mib_used > 0.0 else float("inf")
        return tuple(
            replace(
                item,
                reading=readings.get(item.reading.worker, item.reading),
                energy_j=energy_j * part / whole if whole > 0.0 else 0.0,
                memory_mib_used=mebibytes / over,
            )
            for item, part, mebibytes in zip(samples, parts, memory, strict=True)
        )

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


# --- Processes on a managed device that no worker of this host owns
#
# They are named for an operator and never touched: they are not the agent's. A process counts as foreign only after it
# has been there for a while, because the device sees a worker that has just started before the crew does.


SERVER_NAME = "nvidia-cuda-mps-server"[:15]
"""As the kernel keeps it."""
FOREIGN_AFTER_S = 5.0


class Strangers:
    """Foreign processes by device. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._now_s = now_s
        self._proc = proc
        self._seen_s: dict[tuple[str, int], float] = {}
        self._told: dict[str, list[str]] = {}

    def look(self, processes: Mapping[str, Iterable[GpuProcess]], known: frozenset[int]) -> None:
        now_s = self._now_s()
        found = {
            (uuid, process.pid): process
            for uuid, there in processes.items()
            for process in there
            if process.pid not in known
        }
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in found}
        self._told = {}
        for (uuid, pid), process in sorted(found.items(), key=lambda item: item[0]):
            if now_s - self._seen_s[uuid, pid] >= FOREIGN_AFTER_S:
                name = _name(pid, self._proc)
                if name != SERVER_NAME:
                    used = "" if process.memory_mib is None else f" with {process.memory_mib:.0f} MiB"
                    self._told.setdefault(uuid, []).append(f"pid {pid} ({name or 'not visible here'}){used}")

    def problems(self) -> list[str]:
        return [
            f"{uuid}: used by processes that are not this agent's: {', '.join(phrases)}"
            for uuid, phrases in sorted(self._told.items())
        ]


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class NvidiaDevices:
    def __init__(self, parts: HostParts) -> None:
        self.lock = threading.RLock()
        self._parts = parts
        self._register = Register(parts.state)
        self._control = BoardControl(parts)
        self._modes = Modes(parts, self._register, self._control)
        self._roster = Roster(parts, self._register, self._modes)
        self._inventory = {device.uuid: _told(device, parts) for device in parts.boards.inventory()}
        self._accounts = Accounts(parts, tuple(self._inventory))
        self._strangers = Strangers(parts.now_s)

    @property
    def state_lost(self) -> str:
        """Why what an earlier agent remembered was not used; empty when it was."""
        return "; ".join(filter(None, (self._register.lost, *self._parts.lost)))

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return tuple(self._inventory.values())

    @one_at_a_time
    def settings(self, uuid: str) -> DeviceSettings:
        self._known(uuid)
        return self._control.held(uuid, self._modes.mode(uuid))

    @one_at_a_time
    def workers(self) -> tuple[WorkerReading, ...]:
        """Daemons of devices that have workers are opened anew first, where they crashed."""
        if not self._parts.observing:
            for uuid in {part.order.uuid for part in self._register.parts.values()} & self._inventory.keys():
                self._modes.tend(uuid)
        return self._roster.look()

    @one_at_a_time
    def set_mode(self, uuid: str, mode: Mode) -> None:
        self._known(uuid)
        if mode is not self._modes.mode(uuid) and self._roster.on(uuid):
            raise BusyError(f"{uuid} still has {len(self._roster.on(uuid))} workers")
        self._modes.change(uuid, mode)

    @one_at_a_time
    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        clocks = self._known(uuid).clocks_mhz_sm
        if clock_mhz_sm is not None and clock_mhz_sm not in clocks:
            raise OutOfRangeError(f"{clock_mhz_sm} MHz is not in the clock table of {uuid}")
        self._control.set_clock(uuid, clock_mhz_sm)

    @one_at_a_time
    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        device = self._known(uuid)
        low, high = device.power_limit_w_min, device.power_limit_w_max
        if power_limit_w is not None and not low <= power_limit_w <= high:
            raise OutOfRangeError(f"{power_limit_w} W is outside {low} to {high} W of {uuid}")
        self._control.set_power(uuid, power_limit_w)

    @one_at_a_time
    def start(self, uuid: str, spec: WorkerSpec) -> str:
        device = self._known(uuid)
        self._check_room(device, spec)
        sharing = self._modes.ready(uuid)
        name = self._register.next_name(spec.replica)
        order = share_order(name, uuid, spec)
        self._register.give(WorkerPart(order=order, mode=self._modes.mode(uuid)))
        try:
            launch = CrewOrder(
                worker=name,
                uuid=uuid,
                spec=spec,
                environment=sharing.grant(order),
                device_memory_mib=device.memory_mib,
                apart=self._modes.mode(uuid) is Mode.MPS,
            )
            self._parts.crew.launch(launch)
        except DeviceError:
            sharing.revoke(order)
            self._register.take_back(name)
            raise
        self._roster.started(name, uuid, spec)
        return name

    @one_at_a_time
    def tune(self, worker: str, spec: WorkerSpec) -> None:
        self._parts.crew.tune(worker, self._roster.reading(worker).spec.tuned_as(spec))

    @one_at_a_time
    def drain(self, worker: str) -> None:
        self._parts.crew.drain(worker)

    @one_at_a_time
    def stop(self, worker: str) -> None:
        """Begins to end it: it holds its part until its last process is gone."""
        self._roster.end(worker)

    @one_at_a_time
    def collect(self) -> tuple[DeviceSample, ...]:
        samples = self._accounts.close_interval(self._parts.crew.samples(), self._roster)
        known = frozenset(pid for pids in self._roster.pids.values() for pid in pids)
        self._strangers.look(self._accounts.processes, known)
        return samples

    @one_at_a_time
    def problems(self) -> tuple[str, ...]:
        left = sorted({reading.uuid for reading in self._roster.last.values()} - set(self._inventory))
        return (
            *self._parts.left_out,
            *self._accounts.problems(),
            *self._modes.problems(),
            *self._control.problems(),
            *self._strangers.problems(),
            *(f"{uuid}: has workers of an earlier agent, but this one does not manage it" for uuid in left),
        )

    @one_at_a_time
    def restore(self) -> None:
        """Daemons nobody uses end. Raises the first error, after everything was tried."""
        failed: list[DeviceError] = []
        try:
            busy = {reading.uuid for reading in self._roster.look()}
        except DeviceError as error:
            failed.append(error)
            busy = set(self._inventory)
        for uuid in sorted({*self._inventory, *self._parts.journal.uuids}):
            try:
                if uuid in self._inventory and uuid not in busy:
                    self._modes.leave(uuid)
            except DeviceError as error:
                failed.append(error)
            failed += self._control.restore(uuid)
        if failed:
            raise failed[0]

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        return self._parts.crew.read_log(replica, lines, places)

    @one_at_a_time
    def close(self) -> None:
        self._parts.crew.close()
        self._parts.plain.close()
        if self._parts.mps is not None:
            self._parts.mps.close()
        self._parts.boards.close()
        self._parts.let_go()

    def _known(self, uuid: str) -> DeviceInventory:
        if uuid not in self._inventory:
            raise NotFoundError(f"no device {uuid}")
        return self._inventory[uuid]

    def _check_room(self, device: DeviceInventory, spec: WorkerSpec) -> None:
        others = [reading.spec for reading in self._roster.on(device.uuid)]
        memory = held_mib(spec) + sum(held_mib(other) for other in others)
        if not 1 <= spec.share_pct_sm <= 100 or spec.batch < 1:
            raise OutOfRangeError(f"a share of {spec.share_pct_sm} % or a batch of {spec.batch} is not possible")
        if others and self._modes.mode(device.uuid) is Mode.DEDICATED:
            raise BusyError(f"{device.uuid} is dedicated to one worker and has one")
        if memory > device.memory_mib:
            raise OutOfMemoryError(f"limits on {device.uuid} would be {memory} of {device.memory_mib} MiB")


def _told(device: DeviceInventory, parts: HostParts) -> DeviceInventory:
    """What a device can do, with what this agent may not do to it."""
    capabilities = dict(device.capabilities or {})
    for verb, reason in parts.setters.refusals().items():
        capabilities[verb] = capabilities.get(verb) or reason
    if parts.mps is None:
        capabilities["mps"] = capabilities.get("mps") or parts.mps_refusal or "there is no MPS on this host"
    return replace(device, capabilities=capabilities)
