"""Devices for the helper without a driver: settings in memory, errors on demand, and a record of who wrote what."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from agents.devices.parts import BoardEvent, BoardReading, BoardSettings, ComputeMode, GpuProcess
from agents.errors import DeviceError, NotSupportedError, OutOfRangeError
from agents.helper.desk import Audit, Desk, HelperOriginals
from agents.state import StateDirectory
from agents.wire import DeviceInventory

GPUS = ("GPU-aaaa", "GPU-bbbb")
CLOCKS = tuple(range(300, 1591, 15))
POWER_W = (60.0, 70.0)
WALL_S = 1_800_000_000.25


@dataclass(slots=True)
class Held:
    """What a device has."""

    clock: int | None = None
    power: float | None = 65.0
    mode: ComputeMode = ComputeMode.DEFAULT
    persistence: bool = False


def inventory_of(uuid: str, index: int, parent: str | None = None) -> DeviceInventory:
    return DeviceInventory(
        uuid=uuid,
        gpu_type="t4",
        product="T4",
        index=index,
        memory_mib=15360,
        sm_count=40,
        clocks_mhz_sm=CLOCKS,
        power_limit_w_min=POWER_W[0],
        power_limit_w_max=POWER_W[1],
        parent_uuid=parent,
    )


class DoubleBoards:
    """`Boards` whose settings the setters below write."""

    def __init__(self, inventory: tuple[DeviceInventory, ...] | None = None) -> None:
        self._inventory = inventory or tuple(inventory_of(uuid, index) for index, uuid in enumerate(GPUS))
        self.held = {device.uuid: Held() for device in self._inventory}
        self.closed = False

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return self._inventory

    def settings(self, uuid: str) -> BoardSettings:
        held = self.held[uuid]
        return BoardSettings(
            clock_mhz_sm=held.clock,
            power_limit_w=held.power,
            power_limit_w_enforced=held.power or POWER_W[1],
            compute_mode=held.mode,
            persistence=held.persistence,
        )

    def reading(self, uuid: str) -> BoardReading:
        raise NotSupportedError(f"{uuid}: a helper has no business with telemetry")

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return ()

    def events(self) -> tuple[BoardEvent, ...]:
        return ()

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class DoubleSetters:
    """`Setters` with the bounds of the device; `fault` may raise or wait before a write."""

    boards: DoubleBoards
    fault: Callable[[str, str], None] = lambda verb, uuid: None
    reasons: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str, object]] = field(default_factory=list)
    inside: int = 0
    most_inside: int = 0
    inside_by_device: dict[str, int] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def _enter(self, verb: str, uuid: str, value: object) -> Held:
        with self.guard:
            self.calls.append((verb, uuid, value))
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.inside_by_device[uuid] = self.inside_by_device.get(uuid, 0) + 1
            assert self.inside_by_device[uuid] == 1, "two writes to one device at once"
        try:
            self.fault(verb, uuid)
        finally:
            with self.guard:
                self.inside -= 1
                self.inside_by_device[uuid] -= 1
        return self.boards.held[uuid]

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        held = self._enter("lock_clock", uuid, clock_mhz_sm)
        if clock_mhz_sm is not None and clock_mhz_sm not in CLOCKS:
            raise OutOfRangeError(f"{clock_mhz_sm} MHz is no clock of this device")
        held.clock = clock_mhz_sm

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        held = self._enter("limit_power", uuid, power_limit_w)
        if power_limit_w is not None and not POWER_W[0] <= power_limit_w <= POWER_W[1]:
            raise OutOfRangeError(f"{power_limit_w} W is outside 60 to 70 W")
        held.power = power_limit_w

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._enter("set_compute_mode", uuid, mode).mode = mode

    def set_persistence(self, uuid: str, on: bool) -> None:
        self._enter("set_persistence", uuid, on).persistence = on

    def refusals(self) -> Mapping[str, str]:
        return self.reasons


class Office:
    """A desk with everything around it, on a state directory."""

    def __init__(self, folder: Path, boards: DoubleBoards | None = None, boot_id: str = "boot") -> None:
        self.boards = boards or DoubleBoards()
        self.setters = DoubleSetters(self.boards)
        self.originals = HelperOriginals(StateDirectory(folder / "state"), boot_id)
        self.log = StringIO()
        self.audit = Audit(self.log, lambda: WALL_S)
        self.desk = Desk(self.boards, self.setters, self.originals, self.audit)

    def told(self) -> list[dict[str, Any]]:
        """The audit log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def fail(self, error: DeviceError | None) -> None:
        """Let every write raise."""

        def fault(verb: str, uuid: str) -> None:
            if error is not None:
                raise error

        self.setters.fault = fault
