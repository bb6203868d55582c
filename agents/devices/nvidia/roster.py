"""The workers of a host as they are found: what the crew sees of their processes, and what the sharing proves.

A worker counts as ready when it answers and its processes on the device were proved to be bound to their part; one that
runs without its limits is ended, and the part of one that is gone is taken back. What is not known counts as not ready;
what was proved once stays so until something contradicts it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agents.devices.base import WorkerReading, WorkerSpec, WorkerState
from agents.devices.nvidia.control import HostParts
from agents.devices.nvidia.modes import Modes, Register, WorkerPart, share_order
from agents.devices.parts import CrewReading, ShareCheck
from agents.errors import DeviceError, NotFoundError
from agents.processes import MARK, environment_of

NOT_OPENED = "it answers, but no process of it has opened the device; a warm-up request makes it do that"


PROOF_EVERY_S = 5.0
"""A proof that nothing has touched is asked for again so often."""


@dataclass(slots=True)
class _KnownWorker:
    sm_count: int = 0
    proved: bool = False
    proved_of: tuple[object, ...] = ()
    """Its processes, and the life of the daemon, for which it was proved ..."""
    proved_s: float = 0.0
    """... and when."""
    ending: bool = False
    strays: tuple[int, ...] = ()
    """Processes on the device that left its session, at the last check."""
    bypass: str = ""
    """Why it must not stay; empty when it may."""


@dataclass(slots=True)
class _Look:
    """Processes by device, each read at most once in a look. None: the device could not say."""

    parts: HostParts
    found: dict[str, frozenset[int] | None] = field(default_factory=dict)

    def on(self, uuid: str) -> frozenset[int] | None:
        if uuid not in self.found:
            try:
                self.found[uuid] = frozenset(process.pid for process in self.parts.boards.processes(uuid))
            except DeviceError:
                self.found[uuid] = None
        return self.found[uuid]


class Roster:
    """Workers of all devices. Not thread-safe."""

    def __init__(self, parts: HostParts, register: Register, modes: Modes) -> None:
        self._parts = parts
        self._register = register
        self._modes = modes
        self._known: dict[str, _KnownWorker] = {}
        self._last: dict[str, WorkerReading] = {}
        self._sessions: frozenset[int] = frozenset()
        """Processes of all workers' sessions."""
        self.pids: dict[str, tuple[int, ...]] = {}
        """Processes of every worker at the last look."""

    @property
    def last(self) -> dict[str, WorkerReading]:
        return dict(self._last)

    def look(self) -> tuple[WorkerReading, ...]:
        """Read every worker back. Ends those that bypass their limits and takes back the parts of those that are gone;
        nothing of that when only observing.
        """
        found = self._parts.crew.found()
        look = _Look(self._parts)
        self._sessions = frozenset(pid for item in found for pid in item.pids)
        self.pids = {item.reading.worker: (*item.pids, *self._strays(item.reading.worker)) for item in found}
        self._last = {item.reading.worker: self._reading(item, look) for item in found}
        for worker in self._last:
            self._register.skip(worker)
        for worker in [worker for worker in self._known if worker not in self._last]:
            del self._known[worker]
        if not self._parts.observing:
            self._take_back()
        return tuple(self._last.values())

    def started(self, worker: str, uuid: str, spec: WorkerSpec) -> None:
        """Count a worker before it is looked at."""
        self._last[worker] = WorkerReading(
            worker=worker, uuid=uuid, spec=spec, sm_count=0, state=WorkerState.STARTING, state_s=0.0, drained=False
        )

    def reading(self, worker: str) -> WorkerReading:
        """The last reading of a worker. Raises NotFoundError."""
        if worker not in self._last:
            raise NotFoundError(f"no worker {worker}")
        return self._last[worker]

    def on(self, uuid: str) -> list[WorkerReading]:
        return [reading for reading in self._last.values() if reading.uuid == uuid]

    def part(self, reading: WorkerReading) -> WorkerPart:
        """What a worker was given; of one that is not on record, what it would be given now."""
        part = self._register.part(reading.worker)
        if part is not None:
            return part
        order = share_order(reading.worker, reading.uuid, reading.spec)
        return WorkerPart(order=order, mode=self._modes.mode(reading.uuid))

    def end(self, worker: str) -> None:
        known = self._known.setdefault(worker, _KnownWorker())
        if not known.ending:
            self._end(self.reading(worker))
            known.ending = True

    def _end(self, reading: WorkerReading) -> None:
        part = self.part(reading)
        sharing = self._parts.sharing(part.mode)

        def off_the_server(pid: int) -> None:
            sharing.end_client(part.order, pid)

        self._parts.crew.end(reading.worker, off_the_server)

    def _reading(self, item: CrewReading, look: _Look) -> WorkerReading:
        known = self._known.get(item.reading.worker) or self._met(item.reading.worker)
        reading = replace(item.reading, sm_count=known.sm_count)
        if known.bypass:
            return replace(reading, state=WorkerState.FAILED, problem=known.bypass)
        if reading.state is WorkerState.FAILED:
            return reading
        if known.ending:
            return replace(reading, state=WorkerState.DRAINING, drained=True)
        if reading.state is WorkerState.DRAINING:
            return reading
        if not item.answering:
            return replace(reading, state=WorkerState.STARTING)
        return self._answering(replace(item, reading=reading), known, look)

    def _met(self, worker: str) -> _KnownWorker:
        """A worker that is seen for the first time, with what an earlier agent proved of it."""
        part = self._register.part(worker)
        sm_count = 0 if part is None else part.sm_count
        return self._known.setdefault(worker, _KnownWorker(sm_count=sm_count, proved=sm_count > 0))

    def _strays(self, worker: str) -> tuple[int, ...]:
        known = self._known.get(worker)
        return () if known is None else known.strays

    def _answering(self, item: CrewReading, known: _KnownWorker, look: _Look) -> WorkerReading:
        """A worker that answers is ready if its limits are proved."""
        reading = item.reading
        now_s, of = self._parts.now_s(), (item.pids, self._modes.daemon_life(reading.uuid))
        if known.proved and known.proved_of == of and now_s - known.proved_s < PROOF_EVERY_S:
            return replace(reading, state=WorkerState.READY, sm_count=known.sm_count)
        check, problem = self._check(item, known, look)
        if check is not None and check.problem:
            known.bypass = check.problem
            if not self._parts.observing:
                known.ending = True
                self._end(reading)
            return replace(reading, state=WorkerState.FAILED, problem=check.problem)
        if check is not None and not check.pending:
            known.proved, known.sm_count = True, check.sm_count
            known.proved_of, known.proved_s = of, now_s
            if not self._parts.observing:
                self._register.prove(reading.worker, check.sm_count)
        state = WorkerState.READY if known.proved else WorkerState.STARTING
        return replace(reading, state=state, sm_count=known.sm_count, problem="" if known.proved else problem)

    def _check(self, item: CrewReading, known: _KnownWorker, look: _Look) -> tuple[ShareCheck | None, str]:
        """What the sharing says, None when it could not; and why nothing is proved."""
        reading = item.reading
        on_device = look.on(reading.uuid)
        if on_device is None:
            return None, "the device does not tell its processes"
        others = sorted(on_device - self._sessions) if item.mark else []
        known.strays = tuple(pid for pid in others if (environment_of(pid) or {}).get(MARK) == item.mark)
        self.pids[reading.worker] = (*item.pids, *known.strays)
        mine = tuple(pid for pid in self.pids[reading.worker] if pid in on_device)
        if not mine:
            return None, NOT_OPENED
        part = self.part(reading)
        try:
            check = self._parts.sharing(part.mode).check(part.order, mine)
        except DeviceError as error:
            return None, str(error)
        return check, check.problem or (NOT_OPENED if check.pending else "")

    def _take_back(self) -> None:
        """Parts whose worker is gone. One that cannot be taken back now is tried again at the next look."""
        for worker, part in self._register.parts.items():
            if worker in self._last:
                continue
            try:
                self._parts.sharing(part.mode).revoke(part.order)
            except DeviceError:
                continue
            self._register.take_back(worker)
