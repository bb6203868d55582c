"""What devices say by themselves: XIDs, memory errors, that they are gone.

Owns one thread that waits for it and the queue in between. Waiting is the one driver call that is meant to block, so it
runs outside the guard; the thread ends when told to, or with the process. Devices without events are not waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from agents.devices.nvml.binding import Nvml, address
from agents.devices.nvml.guard import Driver
from agents.devices.nvml.inventory import BoardFacts
from agents.devices.parts import BoardEvent
from agents.errors import DeviceError, DeviceTimeoutError, LostError

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
