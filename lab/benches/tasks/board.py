"""A simulated GPU, or a MIG slice of one, on which tasks run: progress, utilisation and power from one change to the
next.

Owns how fast every task on a device advances beside its neighbours and what the device draws meanwhile, in stretches in
which nothing changes. A task executes its batches back to back; while it is deployed it holds memory and does nothing
else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from agents.wire import mirrored
from lab.benches.tasks.contract import Config, InferenceTask, PlacedTask, TaskSeat
from solvers.domain.ids import DeviceId, GpuTypeName
from solvers.sim.truth.truth import (
    GpuTruth,
    Resident,
    board_power_w,
    clock_reached_mhz,
    execution_ms,
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
    """A device with its residents. `parent` is the GPU that a slice was cut from."""

    id: DeviceId
    gpu_type: GpuTypeName
    gpu: GpuTruth
    sm_part: float = 1.0
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


def resident_on(gpu_sm_part: float, task: InferenceTask, config: Config) -> Resident:
    """A process as the truth knows it: its share is of the device it sees."""
    share = min(100, max(1, round(config.share_pct / gpu_sm_part)))
    return Resident(model=task.model, share_pct_sm=share, batch=config.batch)


def batches_of(gpu: GpuTruth, resident: Resident, inputs: int) -> float:
    """Batches of a task in times of a full one."""
    full, rest = divmod(inputs, resident.batch)
    if not rest:
        return float(full)
    last = Resident(model=resident.model, share_pct_sm=resident.share_pct_sm, batch=rest)
    clock = gpu.clock_mhz_sm_max
    return full + execution_ms(gpu, last, clock) / execution_ms(gpu, resident, clock)
