"""A GPU host in memory: boards, setters, sharing and crew over one world that tests break as they like.

Owns what the real parts promise: processes that outlive agents, a daemon that fails open when it crashes, settings that
survive an agent and not a reboot, and asynchronous ends. Time passes only when the clock is told. Whoever looks can
check at any moment that no device holds more than it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agents.devices.base import WorkerReading, WorkerSample, WorkerSpec, WorkerState
from agents.devices.nvidia.control import HostParts, SettingsJournal
from agents.devices.nvidia.host import NvidiaDevices
from agents.devices.parts import (
    BoardEvent,
    BoardReading,
    BoardSettings,
    ComputeMode,
    CrewOrder,
    CrewReading,
    GpuProcess,
    ShareCheck,
    ShareOrder,
)
from agents.errors import (
    BusyError,
    DeviceError,
    LostError,
    NoPermissionError,
    NotFoundError,
    SharingError,
    StateFileError,
    WorkerError,
)
from agents.state import StateDirectory
from agents.wire import DeviceInventory, WorkerTarget
from tests.unit.agents.builders import FakeClock

CLOCKS = (300, 600, 900, 1200, 1500, 1800)
MEMORY_MIB, SM_COUNT = 40_000, 108
POWER_W_MIN, POWER_W_MAX = 100.0, 400.0
COMMAND = WorkerTarget(command=("serve",), drain_s=20.0, stop_s=5.0)
LAUNCH_S, DRAIN_S, END_S = 2.0, 1.0, 0.5


def uuid_of(index: int) -> str:
    """The UUID of a board."""
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


@dataclass(slots=True)
class Card:
    """One board's state, which outlives agents."""

    uuid: str
    index: int
    clock_lock: int | None = None
    power_limit_w: float | None = None
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    persistence: bool | None = False
    energy_j: float = 0.0
    lost: bool = False
    healthy: bool = True
    throttled: bool = False
    strangers: dict[int, float] = field(default_factory=dict)
    daemon: bool = False
    served: set[int] = field(default_factory=set)
    """Pids that the running server has as clients."""


@dataclass(slots=True)
class Process:
    """One worker, which outlives agents."""

    order: CrewOrder
    pid: int
    ready_at_s: float
    began_s: float
    bypasses: bool
    never_ready: bool = False
    spec: WorkerSpec | None = None
    dead: str = ""
    drains_since_s: float | None = None
    ends_at_s: float | None = None
    collected_s: float = 0.0


class KilledError(BaseException):
    """The agent is killed in the midst of something. Nobody catches it but the test."""


class MemoryState(StateDirectory):
    """A state directory without a disk."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.full = False
        self.path = Path("memory")

    def read_text(self, name: str) -> str | None:
        return self.files.get(name)

    def write_text(self, name: str, text: str) -> None:
        if self.full:
            raise StateFileError(f"cannot write {name}: no space left")
        self.files[name] = text


class World:
    """A host: cards, processes, files, a clock and the faults that are on."""

    def __init__(self, cards: int = 2) -> None:
        self.clock = FakeClock()
        self.cards = {uuid_of(index): Card(uuid=uuid_of(index), index=index) for index in range(cards)}
        self.processes: dict[str, Process] = {}
        self.granted: dict[str, ShareOrder] = {}
        self.state = MemoryState()
        self.boot_id = "boot-1"
        self.refusals: dict[str, str] = {}
        self.events: list[BoardEvent] = []
        self.ended_clients: list[int] = []
        self.fault: Callable[[str, str], DeviceError | None] = lambda verb, uuid: None
        self.bypassing = False
        """Processes that start now pass the daemon by."""
        self.hopeless = False
        """Processes that start now never answer."""
        self.watch: Callable[[], None] = lambda: None
        """Called after everything that changes the world."""
        self.calls_left: int | None = None
        """The agent is killed before or after a call, so many moments from now; None: it is not."""
        self._pid = 1000

    def devices(self, *, mps: bool = True, observing: bool = False) -> NvidiaDevices:
        """Another agent's devices on this host."""
        return NvidiaDevices(self.parts(mps=mps, observing=observing))

    def parts(self, *, mps: bool = True, observing: bool = False) -> HostParts:
        """The parts of another agent."""
        return HostParts(
            boards=CardBoards(self),
            setters=CardSetters(self),
            mps=CardSharing(self) if mps else None,
            plain=WholeCards(self),
            crew=WorldCrew(self),
            state=self.state,
            journal=SettingsJournal(self.state, self.boot_id),
            now_s=self.clock,
            mps_refusal="" if mps else "nvidia-cuda-mps-control is not there",
            observing=observing,
        )

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.clock.pass_s(seconds)
        for card in self.cards.values():
            card.energy_j += seconds * 150.0
        self.sweep()
        self.watch()

    def sweep(self) -> None:
        """Processes whose end has come are gone."""
        now_s = self.clock()
        for process in [each for each in self.processes.values() if each.ends_at_s is not None]:
            assert process.ends_at_s is not None
            if now_s >= process.ends_at_s:
                self.cards[process.order.uuid].served.discard(process.pid)
                del self.processes[process.order.worker]

    def reboot(self) -> None:
        """Everything that only lives while the host runs is gone."""
        self.boot_id += "'"
        self.processes.clear()
        self.granted.clear()
        for card in self.cards.values():
            card.clock_lock, card.power_limit_w = None, None
            card.compute_mode, card.persistence = ComputeMode.DEFAULT, False
            card.daemon, card.lost, card.energy_j = False, False, 0.0
            card.served.clear()

    def crash(self, worker: str, how: str = "it was killed by SIGSEGV") -> None:
        """A worker dies by itself."""
        process = self.processes[worker]
        process.dead = how
        self.cards[process.order.uuid].served.discard(process.pid)

    def crash_daemon(self, uuid: str) -> None:
        """Its clients go on without limits, as if nothing were wrong."""
        self.cards[uuid].daemon = False
        self.cards[uuid].served.clear()

    def on(self, uuid: str) -> list[Process]:
        """Living processes of a card."""
        return [each for each in self.processes.values() if each.order.uuid == uuid and not each.dead]

    def next_pid(self) -> int:
        """A pid nobody had."""
        self._pid += 1
        return self._pid

    def changed(self) -> None:
        """A call to a part did what it should."""
        self.watch()
        self._moment()

    def _moment(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                self.calls_left = None
                raise KilledError

    def call(self, verb: str, uuid: str = "") -> None:
        """A call to a part: it fails when it shall."""
        self._moment()
        error = self.fault(verb, uuid)
        if error is not None:
            raise error


class CardBoards:
    """See `Boards`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return tuple(
            DeviceInventory(
                uuid=card.uuid,
                gpu_type="a100",
                product="NVIDIA A100-SXM4-40GB",
                index=card.index,
                memory_mib=MEMORY_MIB,
                sm_count=SM_COUNT,
                clocks_mhz_sm=CLOCKS,
                power_limit_w_min=POWER_W_MIN,
                power_limit_w_max=POWER_W_MAX,
                driver_version="615.10",
                capabilities={"set_clock": "", "set_power": "", "mps": "", "mig": "not enabled"},
            )
            for card in self._world.cards.values()
        )

    def settings(self, uuid: str) -> BoardSettings:
        card = self._card(uuid, "settings")
        return BoardSettings(
            clock_mhz_sm=None,
            power_limit_w=card.power_limit_w,
            power_limit_w_enforced=card.power_limit_w or POWER_W_MAX,
            compute_mode=card.compute_mode,
            persistence=card.persistence,
        )

    def reading(self, uuid: str) -> BoardReading:
        card = self._card(uuid, "reading")
        clock = 300 if card.throttled else card.clock_lock or CLOCKS[-1]
        return BoardReading(
            uuid=uuid,
            power_w=150.0,
            energy_j_total=card.energy_j,
            utilisation_pct=50.0,
            memory_mib_used=sum(process.memory_mib or 0.0 for process in self.processes(uuid)) + 400.0,
            clock_mhz_sm=clock,
            temperature_c=50.0,
            throttle="hw_thermal" if card.throttled else "",
            healthy=card.healthy,
            problem="" if card.healthy else "XID 95: reset the device",
        )

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        card = self._card(uuid, "processes")
        mine = [
            GpuProcess(pid=each.pid, memory_mib=0.5 * each.order.spec.memory_mib_limit, mps_client=True)
            for each in self._world.on(uuid)
            if self._world.clock() >= each.ready_at_s
        ]
        others = [GpuProcess(pid=pid, memory_mib=used, mps_client=False) for pid, used in card.strangers.items()]
        return tuple(mine + others)

    def events(self) -> tuple[BoardEvent, ...]:
        found, self._world.events = tuple(self._world.events), []
        return found

    def close(self) -> None: ...

    def _card(self, uuid: str, verb: str) -> Card:
        self._world.call(verb, uuid)
        card = self._world.cards[uuid]
        if card.lost:
            raise LostError(f"{uuid} has fallen off the bus")
        return card


class CardSetters:
    """See `Setters`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        self._card(uuid, "set_clock").clock_lock = clock_mhz_sm
        self._world.changed()

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        self._card(uuid, "set_power").power_limit_w = power_limit_w
        self._world.changed()

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._card(uuid, "set_compute_mode").compute_mode = mode
        self._world.changed()

    def set_persistence(self, uuid: str, on: bool) -> None:
        self._card(uuid, "set_persistence").persistence = on
        self._world.changed()

    def refusals(self) -> Mapping[str, str]:
        return self._world.refusals

    def _card(self, uuid: str, verb: str) -> Card:
        self._world.call(verb, uuid)
        if verb in self._world.refusals:
            raise NoPermissionError(self._world.refusals[verb])
        card = self._world.cards[uuid]
        if card.lost:
            raise LostError(f"{uuid} has fallen off the bus")
        return card


class CardSharing:
    """See `Sharing`: a daemon for each card."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, uuid: str) -> None:
        self._world.call("open", uuid)
        self._world.cards[uuid].daemon = True

    def shut(self, uuid: str) -> None:
        self._world.call("shut", uuid)
        if self._world.cards[uuid].served:
            raise BusyError(f"{uuid}: the daemon has clients")
        self._world.cards[uuid].daemon = False

    def running(self, uuid: str) -> bool:
        return self._world.cards[uuid].daemon

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        self._world.call("grant", order.uuid)
        if not self._world.cards[order.uuid].daemon:
            raise SharingError(f"{order.uuid}: no daemon answers")
        self._world.granted[order.worker] = order
        self._world.changed()
        return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(order.share_pct_sm)}

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        self._world.call("check", order.uuid)
        if not pids:
            return ShareCheck(sm_count=0, pending=True)
        outside = [pid for pid in pids if pid not in self._world.cards[order.uuid].served]
        if outside:
            return ShareCheck(sm_count=SM_COUNT, problem=f"pid {outside[0]} is no client of the device's server")
        return ShareCheck(sm_count=order.share_pct_sm * SM_COUNT // 100)

    def end_client(self, order: ShareOrder, pid: int) -> None:
        self._world.ended_clients.append(pid)
        self._world.cards[order.uuid].served.discard(pid)

    def revoke(self, order: ShareOrder) -> None:
        self._world.call("revoke", order.uuid)
        self._world.granted.pop(order.worker, None)
        self._world.changed()

    def problem(self, uuid: str) -> str:
        return "" if self._world.cards[uuid].daemon else "the daemon is down"

    def close(self) -> None: ...


class WholeCards:
    """See `Sharing`: nothing is divided."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, uuid: str) -> None: ...

    def shut(self, uuid: str) -> None: ...

    def running(self, uuid: str) -> bool:
        return False

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        self._world.granted[order.worker] = order
        return {"CUDA_VISIBLE_DEVICES": order.uuid}

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        return ShareCheck(sm_count=SM_COUNT, pending=not pids)

    def end_client(self, order: ShareOrder, pid: int) -> None: ...

    def revoke(self, order: ShareOrder) -> None:
        self._world.granted.pop(order.worker, None)

    def problem(self, uuid: str) -> str:
        return ""

    def close(self) -> None: ...


class WorldCrew:
    """See `Crew`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gone: list[WorkerSample] = []

    def launch(self, order: CrewOrder) -> None:
        world = self._world
        world.call("launch", order.uuid)
        if order.spec.worker is None:
            raise WorkerError("the workload describes no process")
        now_s = world.clock()
        process = Process(
            order=order,
            pid=world.next_pid(),
            ready_at_s=now_s + LAUNCH_S,
            began_s=now_s,
            bypasses=world.bypassing,
            never_ready=world.hopeless,
            collected_s=now_s,
        )
        card = world.cards[order.uuid]
        if card.daemon and not process.bypasses:
            card.served.add(process.pid)
        world.processes[order.worker] = process
        world.changed()

    def found(self) -> tuple[CrewReading, ...]:
        self._world.sweep()
        return tuple(self._reading(process) for process in self._world.processes.values())

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        self._process(worker).spec = spec

    def drain(self, worker: str) -> None:
        process = self._process(worker)
        if process.drains_since_s is None:
            process.drains_since_s = self._world.clock()

    def end(self, worker: str, before_kill: Callable[[int], None]) -> None:
        process = self._process(worker)
        if process.ends_at_s is None:
            before_kill(process.pid)
            process.ends_at_s = self._world.clock() + (0.0 if process.dead else END_S)

    def samples(self) -> tuple[WorkerSample, ...]:
        now_s = self._world.clock()
        found = []
        for process in self._world.processes.values():
            held_s, process.collected_s = now_s - process.collected_s, now_s
            reading = self._reading(process).reading
            found.append(
                WorkerSample(reading=reading, gone=False, held_s=held_s, memory_mib_used=0.0, completed=held_s)
            )
        return tuple(found)

    def close(self) -> None: ...

    def _process(self, worker: str) -> Process:
        if worker not in self._world.processes:
            raise NotFoundError(f"no worker {worker}")
        return self._world.processes[worker]

    def _reading(self, process: Process) -> CrewReading:
        now_s = self._world.clock()
        answering = now_s >= process.ready_at_s and not process.never_ready and not process.dead
        state, since_s = WorkerState.STARTING, process.began_s
        if process.dead:
            state = WorkerState.FAILED
        elif process.drains_since_s is not None:
            state, since_s = WorkerState.DRAINING, process.drains_since_s
        elif answering:
            state, since_s = WorkerState.READY, process.ready_at_s
        spec = process.spec or process.order.spec
        return CrewReading(
            reading=WorkerReading(
                worker=process.order.worker,
                uuid=process.order.uuid,
                spec=spec,
                sm_count=0,
                state=state,
                state_s=now_s - since_s,
                drained=state is WorkerState.DRAINING and now_s - since_s >= DRAIN_S,
                endpoint=f"http://127.0.0.1:{process.pid}",
                problem=process.dead,
            ),
            pids=() if process.dead else (process.pid,),
            answering=answering,
            mark=f"{process.order.worker}/mark",
        )


def described(spec: WorkerSpec) -> WorkerSpec:
    """A worker with a process."""
    return replace(spec, worker=COMMAND)
