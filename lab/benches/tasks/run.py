"""One run of a task scheduler on simulated GPUs, event by event.

Owns the order of events (endings, deployments, arrivals, then the scheduler's tick), delays and failures of deploying,
and the log of every task; how fast every task on a GPU advances beside its neighbours and what the device draws
meanwhile, in stretches in which nothing changes.
A task executes its batches back to back; while it is deployed it holds memory and does nothing else. The scheduler
hears what a cluster would tell it and nothing of the truth.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from agents.wire import mirrored
from lab.benches.tasks.contract import (
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    PlacedTask,
    TaskScheduler,
    TaskSeat,
)
from lab.benches.tasks.work import Coming
from solvers.domain.arrays import Streams
from solvers.domain.ids import DeviceId, GpuTypeName
from solvers.domain.value import NOT_NEGATIVE, POSITIVE, value, within
from solvers.errors import EngineError
from solvers.sim.truth.catalogue import model_truth
from solvers.sim.truth.truth import (
    LATENCY_NOISE,
    GpuTruth,
    Resident,
    board_power_w,
    clock_reached_mhz,
    execution_ms,
    gpu_truth,
    memory_mib,
    swap_s,
    wanted,
)

MS_PER_S = 1000.0
_DONE = 1e-9
Company = tuple[Resident, ...]


@dataclass(frozen=True, slots=True)
class Speeds:
    """What holds while the same tasks run: milliseconds of a batch by resident, part of the SMs used, watts."""

    batch_ms: tuple[float, ...]
    utilisation: float
    power_w: float


@lru_cache(maxsize=65536)
def speeds_of(gpu: GpuTruth, company: Company, *, held: bool) -> Speeds:
    """Of running residents, the same few again and again. `held`: whether any process, running or not, is there."""
    idle = Resident(model="resnet18", share_pct_sm=1, busy=0.0)
    if not company:
        return Speeds((), 0.0, board_power_w(gpu, (idle,) if held else (), gpu.clock_mhz_sm_max, gpu.tdp_w))
    clock = clock_reached_mhz(gpu, company, gpu.clock_mhz_sm_max, gpu.tdp_w)
    times = tuple(
        execution_ms(gpu, each, clock, (*company[:place], *company[place + 1 :])) for place, each in enumerate(company)
    )
    parts = (wanted(gpu, each, clock) for each in company)
    used = min(1.0, sum(running * filled for running, filled in parts))
    return Speeds(times, used, board_power_w(gpu, company, clock, gpu.tdp_w))


@dataclass(slots=True)
class Live:
    """A task on a device. `batches` counts a last batch that is not full as the part of a batch's time it takes."""

    task: InferenceTask
    config: Config
    group: int
    resident: Resident
    batches: float
    luck: float
    launched_s: float
    begun_s: float | None = None
    """None: it is still being deployed."""
    done: float = 0.0
    batch_ms: float = 0.0
    epc_j: float = 0.0
    """Integral of SM utilisation times memory part over the tasks there: what Eq. 7 multiplies."""

    @property
    def left(self) -> float:
        """Batches."""
        return self.batches - self.done


@dataclass(slots=True)
class TaskBoard:
    """A device with its residents."""

    id: DeviceId
    gpu_type: GpuTypeName
    gpu: GpuTruth
    live: dict[str, Live] = field(default_factory=dict)
    at_s: float = 0.0
    version: int = 0
    """Counts changes, so that an ending foreseen before a change is known to be stale."""
    utilised_s: float = 0.0
    held_s: float = 0.0
    energy_j: float = 0.0
    recent: float = 0.0
    """Utilisation as a monitor tells it: of late, older moments fading."""
    _speeds: Speeds | None = None
    _seen: tuple[int, float, TaskSeat] | None = None
    """The seat as last reported: version, moment."""

    def company(self) -> tuple[Live, ...]:
        return tuple(each for each in self.live.values() if each.begun_s is not None)

    def speeds(self) -> Speeds:
        if self._speeds is None:
            residents = tuple(each.resident for each in self.company())
            self._speeds = speeds_of(self.gpu, residents, held=bool(self.live))
        return self._speeds

    def advance(self, now_s: float, memory_s: float) -> None:
        """Let time pass until now; `memory_s`: how fast a monitor forgets."""
        passed = now_s - self.at_s
        if passed <= 0.0:
            return
        speeds, running = self.speeds(), self.company()
        for each, ms in zip(running, speeds.batch_ms, strict=True):
            each.done = min(each.batches, each.done + passed * MS_PER_S / (ms * each.luck))
            part = each.config.memory_mib / self.gpu.memory_mib
            each.epc_j += speeds.utilisation * part * passed
        self.utilised_s += speeds.utilisation * passed
        self.held_s += passed if self.live else 0.0
        self.energy_j += speeds.power_w * passed
        fade = math.exp(-passed / memory_s)
        self.recent = self.recent * fade + speeds.utilisation * (1.0 - fade)
        self.at_s = now_s

    def changed(self) -> None:
        self.version += 1
        self._speeds = None

    def next_end_s(self) -> float | None:
        """When the first of them ends if nothing changes."""
        speeds, running = self.speeds(), self.company()
        left = [each.left * ms * each.luck for each, ms in zip(running, speeds.batch_ms, strict=True)]
        return self.at_s + min(left) / MS_PER_S if left else None

    def finished(self) -> tuple[Live, ...]:
        return tuple(each for each in self.company() if each.left <= _DONE * max(1.0, each.batches))

    @property
    def memory_mib_free(self) -> float:
        """By limits."""
        return max(0.0, self.gpu.memory_mib - sum(each.config.memory_mib for each in self.live.values()))

    def reported(self, now_s: float, monitor_s: float, report_s: float) -> TaskSeat:
        """As a scheduler sees it: changes at once, progress and utilisation as of the last report."""
        if self._seen is None or self._seen[0] != self.version or now_s - self._seen[1] >= report_s:
            self.advance(now_s, monitor_s)
            self._seen = (self.version, now_s, self._seat())
        return self._seen[2]

    def _seat(self) -> TaskSeat:
        running = tuple(
            PlacedTask(task=each.task, config=each.config, progress=min(1.0, each.done / each.batches))
            for each in self.live.values()
        )
        total_mib, utilised_pct = float(self.gpu.memory_mib), min(100.0, 100.0 * self.recent)
        return mirrored(TaskSeat, self, memory_mib_total=total_mib, utilisation_pct=utilised_pct, running=running)


def batches_of(gpu: GpuTruth, resident: Resident, inputs: int) -> float:
    """Batches of a task in times of a full one."""
    full, rest = divmod(inputs, resident.batch)
    if not rest:
        return float(full)
    last = Resident(model=resident.model, share_pct_sm=resident.share_pct_sm, batch=rest)
    clock = gpu.clock_mhz_sm_max
    return full + execution_ms(gpu, last, clock) / execution_ms(gpu, resident, clock)


END, BEGIN, ARRIVE, TICK = range(4)
_LATE = 1e-9


@value
class Conduct:
    """How the cluster behaves, the same for every contender and in every scenario."""

    deploy_s: Annotated[float, NOT_NEGATIVE] = 0.1
    """From a launch until a warm process has its limits, beside moving the weights."""
    deploy_failed_pct: Annotated[float, within(0.0, 100.0)] = 0.5
    """Of groups that fail to deploy for no fault of theirs."""
    tick_s: Annotated[float, POSITIVE] = 0.005
    """Schedulers act at multiples of this."""
    monitor_s: Annotated[float, POSITIVE] = 2.0
    """How fast measured utilisation forgets."""
    report_s: Annotated[float, POSITIVE] = 0.05
    """How old what monitors tell may be; what a scheduler itself changed it knows at once."""
    unfinished_after_s: Annotated[float, POSITIVE] = 600.0
    """After the last arrival a run is broken off."""


@dataclass(slots=True)
class Entry:
    """A task in the log. Times since the run began; None: not yet."""

    coming: Coming
    launched_s: float | None = None
    begun_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    epc_js: float = 0.0
    """Integral of SM utilisation and memory part, times the latency of the task: Eq. 7 without its watts."""
    tdp_w: float = 0.0


@dataclass(slots=True)
class TaskLog:
    entries: dict[str, Entry]
    boards: list[TaskBoard]
    until_s: float = 0.0
    groups: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Group:
    board: TaskBoard
    number: int
    names: tuple[str, ...] = ()
    fails: bool = False


@dataclass(slots=True)
class TaskRun:
    scheduler: TaskScheduler[Any]
    conduct: Conduct
    tasks: Sequence[Coming]
    seed: int
    boards: dict[DeviceId, TaskBoard]
    log: TaskLog = field(init=False)
    now_s: float = 0.0
    _heap: list[tuple[float, int, int, object]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _armed_s: float = math.inf
    _ticked_s: float = -math.inf

    def __post_init__(self) -> None:
        self.log = TaskLog(entries={each.task.id: Entry(each) for each in self.tasks}, boards=[])

    def go(self, progress: Callable[[float], None]) -> TaskLog:
        """To the end. Raises EngineError for a launch that names a seat or task which is not there."""
        for each in self.tasks:
            self._push(each.at_s, ARRIVE, each)
        last_s = (self.tasks[-1].at_s if self.tasks else 0.0) + self.conduct.unfinished_after_s
        ended, total = 0, max(1, len(self.tasks))
        while self._heap and self._heap[0][0] <= last_s:
            self.now_s, kind, _, what = heapq.heappop(self._heap)
            ended += self._happen(kind, what)
            if kind == END and not ended % 500:
                progress(ended / total)
        self._close(last_s)
        return self.log

    def _push(self, at_s: float, kind: int, what: object) -> None:
        heapq.heappush(self._heap, (at_s, kind, next(self._count), what))

    def _happen(self, kind: int, what: object) -> int:
        """One event; tells how many tasks it ended."""
        ended = 0
        if kind == ARRIVE and isinstance(what, Coming):
            self.scheduler.arrive(what.task, self.now_s)
        elif kind == BEGIN and isinstance(what, _Group):
            self._deployed(what)
        elif kind == END and isinstance(what, tuple):
            ended = self._ended(*what)
        elif kind == TICK and what == self._armed_s:
            self._tick()
        self._arm()
        return ended

    def _arm(self) -> None:
        wake_s = self.scheduler.wake_s
        if wake_s is None:
            return
        step = self.conduct.tick_s
        at_s = math.ceil(max(wake_s, self.now_s, self._ticked_s + step) / step - _LATE) * step
        if at_s < self._armed_s:
            self._armed_s = at_s
            self._push(at_s, TICK, at_s)

    def _tick(self) -> None:
        self._armed_s, self._ticked_s = math.inf, self.now_s
        monitor_s, report_s = self.conduct.monitor_s, self.conduct.report_s
        seats = tuple(board.reported(self.now_s, monitor_s, report_s) for board in self.boards.values())
        for launch in self.scheduler.tick(seats, self.now_s):
            self._launch(launch)

    def _launch(self, launch: Launch) -> None:
        if launch.seat not in self.boards:
            raise EngineError(f"{self.scheduler.name} launches on {launch.seat}, which is not there")
        board = self.boards[launch.seat]
        board.advance(self.now_s, self.conduct.monitor_s)
        group = _Group(board, self.log.groups, tuple(each.task.id for each in launch.group))
        self.log.groups += 1
        group.fails = launch.memory_mib > board.memory_mib_free + _LATE or self._unlucky(group)
        weights_mib = 0.0
        for each in launch.group:
            entry = self.log.entries.get(each.task.id)
            if entry is None or entry.launched_s is not None:
                raise EngineError(f"{self.scheduler.name} launches {each.task.id}, which does not wait")
            entry.launched_s, entry.attempts = self.now_s, entry.attempts + 1
            weights_mib += model_truth(each.task.model).memory_mib_weights
            group.fails |= memory_mib(each.task.model, each.config.batch) > each.config.memory_mib
            if not group.fails:
                board.live[each.task.id] = self._live(board, entry, group.number, each)
        board.changed()
        if group.fails:
            for name in group.names:
                board.live.pop(name, None)
        self._foresee(board)
        self._push(self.now_s + self.conduct.deploy_s + swap_s(board.gpu, weights_mib), BEGIN, group)

    def _live(self, board: TaskBoard, entry: Entry, group: int, placed: PlacedTask) -> Live:
        config = placed.config
        resident = Resident(model=placed.task.model, share_pct_sm=config.share_pct, batch=config.batch)
        return Live(
            task=placed.task,
            config=config,
            group=group,
            resident=resident,
            batches=batches_of(board.gpu, resident, placed.task.inputs),
            luck=max(0.5, 1.0 + LATENCY_NOISE * entry.coming.luck),
            launched_s=self.now_s,
        )

    def _unlucky(self, group: _Group) -> bool:
        """Failing follows from the first task and its attempt, whoever schedules it."""
        first = group.names[0]
        attempt = self.log.entries[first].attempts if first in self.log.entries else 0
        draw = Streams(self.seed).stream(f"deploying/{first}/{attempt}").random()
        return bool(draw * 100.0 < self.conduct.deploy_failed_pct)

    def _deployed(self, group: _Group) -> None:
        if group.fails:
            self.log.failed += 1
            for name in group.names:
                self.log.entries[name].launched_s = None
            self.scheduler.ended(Ended(tasks=group.names, ending=Ending.FAILED), self.now_s)
            return
        board = group.board
        board.advance(self.now_s, self.conduct.monitor_s)
        for name in group.names:
            board.live[name].begun_s = self.now_s
            self.log.entries[name].begun_s = self.now_s
        board.changed()
        self._foresee(board)

    def _foresee(self, board: TaskBoard) -> None:
        at_s = board.next_end_s()
        if at_s is not None:
            self._push(at_s, END, (board, board.version))

    def _ended(self, board: TaskBoard, version: int) -> int:
        if version != board.version:
            return 0
        board.advance(self.now_s, self.conduct.monitor_s)
        finished = board.finished()
        for each in finished:
            del board.live[each.task.id]
        board.changed()
        self._foresee(board)
        for each in finished:
            self._note(board, each)
        return len(finished)

    def _note(self, board: TaskBoard, each: Live) -> None:
        entry = self.log.entries[each.task.id]
        begun_s = self.now_s if each.begun_s is None else each.begun_s
        entry.ended_s, entry.tdp_w = self.now_s, board.gpu.tdp_w
        entry.epc_js = each.epc_j * (self.now_s - begun_s)
        batch_ms = max(1e-6, 1000.0 * (self.now_s - begun_s) / each.batches)
        self.scheduler.ended(Ended(tasks=(each.task.id,), batch_ms=batch_ms), self.now_s)

    def _close(self, last_s: float) -> None:
        ends = [each.ended_s for each in self.log.entries.values()]
        done = [at_s for at_s in ends if at_s is not None]
        self.now_s = max(done, default=last_s) if len(done) == len(ends) else last_s
        for board in self.boards.values():
            board.advance(self.now_s, self.conduct.monitor_s)
        self.log.boards = list(self.boards.values())
        self.log.until_s = self.now_s


def cluster(fleet: Sequence[tuple[GpuTypeName, int]]) -> dict[DeviceId, TaskBoard]:
    """Boards of a fleet, in its order. Raises EngineError for a type that the truth does not know."""
    boards: dict[DeviceId, TaskBoard] = {}
    for gpu_type, count in fleet:
        gpu = gpu_truth(gpu_type)
        if gpu is None:
            raise EngineError(f"no simulated GPU is called {gpu_type}")
        for _ in range(count):
            name = DeviceId(f"g{len(boards) + 1:04d}")
            boards[name] = TaskBoard(id=name, gpu_type=gpu_type, gpu=gpu)
    return boards
