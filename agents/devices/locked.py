"""Devices that several threads may use: each call waits for the one before it.

Owns the lock and nothing else. Whoever measures on a device and whoever applies targets call the same back end; its
calls take milliseconds, and a start or stop only begins things.
"""

from __future__ import annotations

import threading

from agents.devices.base import (
    Devices,
    DeviceSample,
    DeviceSettings,
    Mode,
    WorkerReading,
    WorkerSpec,
)
from agents.wire import DeviceInventory


class Locked:
    """Other devices, one call at a time."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._lock = threading.RLock()

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """See `Devices`."""
        with self._lock:
            return self._devices.inventory()

    def settings(self, uuid: str) -> DeviceSettings:
        """See `Devices`."""
        with self._lock:
            return self._devices.settings(uuid)

    def workers(self) -> tuple[WorkerReading, ...]:
        """See `Devices`."""
        with self._lock:
            return self._devices.workers()

    def set_mode(self, uuid: str, mode: Mode) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.set_mode(uuid, mode)

    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.set_clock(uuid, clock_mhz_sm)

    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.set_power_limit(uuid, power_limit_w)

    def start(self, uuid: str, spec: WorkerSpec) -> str:
        """See `Devices`."""
        with self._lock:
            return self._devices.start(uuid, spec)

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.tune(worker, spec)

    def drain(self, worker: str) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.drain(worker)

    def stop(self, worker: str) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.stop(worker)

    def collect(self) -> tuple[DeviceSample, ...]:
        """See `Devices`."""
        with self._lock:
            return self._devices.collect()

    def problems(self) -> tuple[str, ...]:
        """See `Devices`."""
        with self._lock:
            return self._devices.problems()

    def restore(self) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.restore()

    def close(self) -> None:
        """See `Devices`."""
        with self._lock:
            self._devices.close()
