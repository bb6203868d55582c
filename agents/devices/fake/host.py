"""A host full of simulated GPUs whose workers outlive the agent, as processes would: a state file stands in for them.

After a reboot of the host nothing survives, and clocks are at their defaults: the state file names the boot it belongs
to.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from agents.devices.base import (
    DeviceSample,
    DeviceSettings,
    LogRead,
    Mode,
    WorkerReading,
    WorkerSpec,
    WorkerState,
    one_at_a_time,
)
from agents.devices.fake.board import FakeBoard, Worker
from agents.errors import BusyError, ConfigError, NotFoundError, StateFileError
from agents.state import DEVICES_FILE, StateDirectory, host_boot_id
from agents.wire import DeviceInventory, decode
from solvers.sim.truth.truth import gpu_truth

VERSION = 1
PROGRESS_SAVE_S = 10.0
"""How much training progress a killed agent may forget, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOrder:
    """Which host to simulate. `time_factor` above 1 makes processes start that much faster; all else runs in real
    time.
    """

    node: str
    gpu_types: tuple[str, ...]
    time_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """Replicas that took nothing of the load offered to them."""

    unknown: tuple[str, ...]
    not_ready: tuple[str, ...]


class FakeDevices:
    """All simulated GPUs of a host. Every method may be called from any thread."""

    def __init__(
        self,
        order: FakeOrder,
        now_s: Callable[[], float],
        state: StateDirectory | None = None,
        boot_id: str | None = None,
    ) -> None:
        self._now_s = now_s
        self._state = state
        self._boot_id = _boot_id() if boot_id is None else boot_id
        self._time_factor = order.time_factor
        self.lock = threading.RLock()
        self._started = 0
        self._saved_s = now_s()
        self.state_lost = ""
        """Why an existing state file could not be used; empty when all is well."""
        self._boards: dict[str, FakeBoard] = {}
        for index, gpu_type in enumerate(order.gpu_types):
            gpu = gpu_truth(gpu_type)
            if gpu is None:
                raise ConfigError(f"no simulated GPU type {gpu_type!r}")
            uuid = _uuid(order.node, index, gpu.name)
            self._boards[uuid] = FakeBoard(gpu, uuid, index, now_s())
        self._load()

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return tuple(board.inventory() for board in self._boards.values())

    @one_at_a_time
    def settings(self, uuid: str) -> DeviceSettings:
        return self._board(uuid).settings()

    @one_at_a_time
    def workers(self) -> tuple[WorkerReading, ...]:
        now_s = self._advance()
        return tuple(
            worker.reading(board.uuid, now_s) for board in self._boards.values() for worker in board.workers.values()
        )

    @one_at_a_time
    def set_mode(self, uuid: str, mode: Mode) -> None:
        self._advance()
        self._board(uuid).set_mode(mode)
        self._save()

    @one_at_a_time
    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        self._advance()
        self._board(uuid).set_clock(clock_mhz_sm)
        self._save()

    @one_at_a_time
    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        self._advance()
        self._board(uuid).set_power_limit(power_limit_w)
        self._save()

    @one_at_a_time
    def start(self, uuid: str, spec: WorkerSpec) -> str:
        now_s = self._advance()
        name = f"{spec.replica}@{self._started + 1:08d}"
        self._board(uuid).start(name, spec, now_s, self._time_factor)
        self._started += 1
        self._save()
        return name

    @one_at_a_time
    def tune(self, worker: str, spec: WorkerSpec) -> None:
        self._advance()
        board, found = self._worker(worker)
        board.tune(found, found.spec.tuned_as(spec))
        self._save()

    @one_at_a_time
    def drain(self, worker: str) -> None:
        now_s = self._advance()
        _, found = self._worker(worker)
        if found.state is WorkerState.STARTING:
            raise BusyError(f"{worker} is still starting")
        if found.state is not WorkerState.DRAINING:
            found.enter(WorkerState.DRAINING, now_s)
            self._save()

    @one_at_a_time
    def stop(self, worker: str) -> None:
        self._advance()
        board, found = self._worker(worker)
        board.end(found)
        self._save()

    @one_at_a_time
    def collect(self) -> tuple[DeviceSample, ...]:
        now_s = self._advance()
        samples = tuple(board.sample(now_s) for board in self._boards.values())
        training = any(worker.progress > 0.0 for board in self._boards.values() for worker in board.workers.values())
        if training and now_s - self._saved_s >= PROGRESS_SAVE_S:
            self._save()
        return samples

    def problems(self) -> tuple[str, ...]:
        return ()

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:  # noqa: ARG002
        return LogRead(problem="it is simulated, and has no process that could write anything")

    @one_at_a_time
    def restore(self) -> None:
        self._advance()
        for board in self._boards.values():
            board.set_clock(None)
            board.set_power_limit(None)
        self._save()

    @one_at_a_time
    def close(self) -> None:
        self._advance()
        self._save()

    @one_at_a_time
    def offer(self, loads: Mapping[str, float], over_s: float) -> OfferAnswer:
        """Requests that arrive at replicas over the coming seconds. A replica's newest ready worker takes them."""
        unknown, not_ready = [], []
        self._advance()
        for replica, requests in sorted(loads.items()):
            workers = [
                worker
                for board in self._boards.values()
                for worker in board.workers.values()
                if worker.spec.replica == replica
            ]
            ready = [worker for worker in workers if worker.serves]
            if ready:
                max(ready, key=lambda worker: worker.name).announce(requests, over_s)
            elif workers:
                not_ready.append(replica)
            else:
                unknown.append(replica)
        return OfferAnswer(unknown=tuple(unknown), not_ready=tuple(not_ready))

    def _advance(self) -> float:
        now_s = self._now_s()
        for board in self._boards.values():
            board.advance(now_s)
        return now_s

    def _board(self, uuid: str) -> FakeBoard:
        if uuid not in self._boards:
            raise NotFoundError(f"no device {uuid}")
        return self._boards[uuid]

    def _worker(self, name: str) -> tuple[FakeBoard, Worker]:
        for board in self._boards.values():
            if name in board.workers:
                return board, board.workers[name]
        raise NotFoundError(f"no worker {name}")

    def _save(self) -> None:
        self._saved_s = self._now_s()
        if self._state is None:
            return
        boards = [
            {
                "uuid": board.uuid,
                "mode": board.mode.value,
                "clock_mhz_sm": board.clock_mhz_sm,
                "power_limit_w": board.power_limit_w,
                "workers": [_worker_to_plain(worker) for worker in board.workers.values()],
            }
            for board in self._boards.values()
        ]
        content = {"version": VERSION, "boot_id": self._boot_id, "started": self._started, "boards": boards}
        try:
            self._state.write_json(DEVICES_FILE, content)
        except StateFileError as error:
            # Processes do not end because a disk is full; only the next agent will not find these.
            self.state_lost = str(error)

    def _load(self) -> None:
        if self._state is None:
            return
        try:
            content = self._state.read_json(DEVICES_FILE)
            if isinstance(content, dict) and content["version"] == VERSION:
                self._started = int(content["started"])
                if content["boot_id"] == self._boot_id:
                    self._adopt(content["boards"])
        except (StateFileError, KeyError, TypeError, ValueError) as error:
            self.state_lost = f"{type(error).__name__}: {error}"
            for board in self._boards.values():
                board.workers.clear()

    def _adopt(self, boards: list[dict[str, Any]]) -> None:
        """Find the workers of an earlier agent running."""
        for plain in boards:
            board = self._boards.get(str(plain["uuid"]))
            if board is None:
                continue
            board.mode = Mode(str(plain["mode"]))
            board.set_clock(plain["clock_mhz_sm"])
            board.set_power_limit(plain["power_limit_w"])
            for item in plain["workers"]:
                worker = _worker_from_plain(item)
                board.workers[worker.name] = worker


def _boot_id() -> str:
    """Empty where the system does not tell: simulated GPUs need no Linux."""
    try:
        return host_boot_id()
    except StateFileError:
        return ""


def _worker_to_plain(worker: Worker) -> dict[str, object]:
    as_is = ("name", "sm_count", "since_s", "ready_at_s", "progress")
    return {
        "spec": asdict(worker.spec),
        "state": worker.state.value,
        **{name: getattr(worker, name) for name in as_is},
    }


def _worker_from_plain(plain: dict[str, Any]) -> Worker:
    fields = dict(plain)
    spec = decode(WorkerSpec, fields.pop("spec"))
    state = WorkerState(str(fields.pop("state")))
    return Worker(spec=spec, state=state, **fields)


def _uuid(node: str, index: int, gpu_type: str) -> str:
    digest = hashlib.sha256(f"{node}/{index}/{gpu_type}".encode()).hexdigest()
    return f"GPU-{UUID(hex=digest[:32])}"
