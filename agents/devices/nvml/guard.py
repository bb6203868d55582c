"""Calls into the driver that cannot hang the agent: one at a time, in a thread of their own, with a time-out.

Owns that thread. A call that does not come back in time is left behind: its device is marked and refused at once until
the call returns, and a new thread serves the others. So at most one thread per device is ever lost to a hanging driver.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from agents.devices.nvml.binding import Nvml
from agents.errors import DeviceTimeoutError

T = TypeVar("T")
TIMEOUT_S = 5.0


class _Job:
    """A call under way."""

    def __init__(self, device: str, body: Callable[[], None]) -> None:
        self.device = device
        self.body = body
        self.done = threading.Event()
        self.abandoned = False


class Driver:
    """The driver of this process behind its guard. Every method may be called from any thread."""

    def __init__(self, nvml: Nvml, timeout_s: float = TIMEOUT_S) -> None:
        self.nvml = nvml
        """The binding itself, for threads that wait on purpose."""
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._marks = threading.Lock()
        self._hung: set[str] = set()
        self._jobs: queue.SimpleQueue[_Job | None] | None = None

    def run(self, device: str, body: Callable[[Nvml], T]) -> T:
        """Do something with a device, by its UUID, or with the host ('') and return what comes of it. Raises what the
        body raises, DeviceTimeoutError when it does not end in time or an earlier one has not ended yet.
        """
        results: list[T] = []
        failures: list[BaseException] = []

        def attempt() -> None:
            try:
                results.append(body(self.nvml))
            except BaseException as error:  # noqa: BLE001  (handed to the caller's thread, whatever it is)
                failures.append(error)

        if not self._turn.acquire(timeout=self._timeout_s):
            raise DeviceTimeoutError("the driver is busy with another call")
        try:
            self._serve(_Job(device, attempt))
        finally:
            self._turn.release()
        if failures:
            raise failures[0]
        return results[0]

    def hung(self, device: str) -> bool:
        """Whether a call on this device has not come back yet."""
        with self._marks:
            return device in self._hung

    def hangs(self) -> bool:
        """Whether any call has not come back yet."""
        with self._marks:
            return bool(self._hung)

    def close(self) -> None:
        """End the thread; a later call starts another."""
        with self._turn:
            if self._jobs is not None:
                self._jobs.put(None)
                self._jobs = None

    def _serve(self, job: _Job) -> None:
        if self.hung(job.device):
            raise DeviceTimeoutError(f"{job.device or 'the driver'}: an earlier call still hangs in the driver")
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._jobs,), name="nvml", daemon=True).start()
        self._jobs.put(job)
        if job.done.wait(self._timeout_s):
            return
        with self._marks:
            if job.done.is_set():
                return
            job.abandoned = True
            self._hung.add(job.device)
        self._jobs.put(None)
        self._jobs = None
        raise DeviceTimeoutError(f"{job.device or 'the driver'}: no answer within {self._timeout_s:g} s")

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            job.body()
            with self._marks:
                job.done.set()
                if job.abandoned:
                    self._hung.discard(job.device)
