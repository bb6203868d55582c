"""What a virtual GPU of a service is on a class of devices: its share, its batches, the clock it begins at.

The share is at the knee of latency over share, the largest batch at the ceiling of throughput over batch size; both are
read off measured points, with nothing but straight lines between neighbours. All replicas of a device begin with one
clock: the lowest measured one, from the wanted one on, at which nobody's batches have to end earlier than at the
highest. A share that was asked for may lie between measured ones; it is judged by the measured share below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import numpy as np

from solvers.domain.device import GpuType
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.models.options import Beliefs
from solvers.models.worth import pinned_settings
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option, Options
from solvers.problems.fleet import DeviceClass, open_fleet
from solvers.problems.needs import Need, needs_of

SHARE_PCT_STEP = 10
GAIN_PART_MIN = 0.10
"""A step of share that shortens the latency by less than this part of it does not pay."""
THROUGHPUT_PART = 0.97
"""A batch with this part of the best throughput is as good as the best."""


class VirtualGpuGoal(StrEnum):
    THROUGHPUT = "throughput"
    """As many as fit: copies of every service spread over all GPUs."""
    DEVICES = "devices"
    """As many as the demand needs at the largest batch, on as few GPUs as hold them."""


class Leftover(StrEnum):
    """What becomes of the share that knees leave free, for throughput."""

    RESERVE = "reserve"
    """Copies in turn, the rest stays free."""
    DISTRIBUTE = "distribute"
    """Copies in turn, the rest goes to those which are there."""
    COPIES = "copies"
    """Demand first; then copies of who serves most for its share, and what fits no copy to those which are there."""


class PowerBeside(StrEnum):
    """What a GPU draws when virtual GPUs meet."""

    P_INT = "p_int"
    """All their power times P_int(n), as printed in (4)."""
    SUM = "sum"
    """The sum of what each draws, as other planners and the verifier count."""


@value
class MorakParameters(TunedRecord):
    goal: Annotated[VirtualGpuGoal, Tune("many copies over all GPUs, or few GPUs for the demand")] = (
        VirtualGpuGoal.THROUGHPUT
    )
    knee_batch: Annotated[int, Tune("the knee is read at the first measured batch from this on", 1, 65536)] = 1
    knee_gain_part: Annotated[float, Tune("ten percent more share must gain this part of a latency", 0.001, 0.9)] = (
        GAIN_PART_MIN
    )
    ceiling_part: Annotated[float, Tune("a batch with this part of the best throughput is the ceiling", 0.1, 1.0)] = (
        THROUGHPUT_PART
    )
    clock_mhz_start: Annotated[int, Tune("clocks begin here, or as far above as promises need", 1, 10000)] = 600
    copies_per_device: Annotated[int, Tune("most virtual GPUs of one service on one GPU", 1, 48)] = 4
    leftover: Annotated[Leftover, Tune("what becomes of share that knees leave free")] = Leftover.COPIES
    power_beside: Annotated[
        PowerBeside, Tune("whether a GPU's own cap holds its power times P_int(n), or their sum")
    ] = PowerBeside.P_INT
    forget_s: Annotated[float, Tune("how long what controllers asked for is kept", 1.0)] = 3600.0


def knee_share_pct(latency_ms_by_share_pct: Mapping[int, float], gain_part_min: float = GAIN_PART_MIN) -> int:
    """The smallest measured share from which ten percent more do not pay. Raises ValueError without points."""
    shares = sorted(latency_ms_by_share_pct)
    if not shares or min(latency_ms_by_share_pct.values()) <= 0.0:
        raise ValueError("a knee needs positive latencies at one share at least")
    for share in shares:
        here = latency_ms_by_share_pct[share]
        gain = here - _between(latency_ms_by_share_pct, shares, min(share + SHARE_PCT_STEP, shares[-1]))
        if gain < gain_part_min * here:
            return share
    return shares[-1]


def batch_ceiling(throughput_rps_by_batch: Mapping[int, float], part: float = THROUGHPUT_PART) -> int:
    """The smallest measured batch whose throughput is about that of the best. Raises ValueError without points."""
    if not throughput_rps_by_batch:
        raise ValueError("a ceiling needs the throughput of one batch at least")
    best = max(throughput_rps_by_batch.values())
    return min(batch for batch, found in throughput_rps_by_batch.items() if found >= part * best)


def _between(latency_ms: Mapping[int, float], shares: list[int], wanted: int) -> float:
    position = bisect_left(shares, wanted)
    above = shares[position]
    if above == wanted:
        return latency_ms[above]
    below = shares[position - 1]
    part = (wanted - below) / (above - below)
    return latency_ms[below] + part * (latency_ms[above] - latency_ms[below])


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """A virtual GPU: how its replica begins, and what it serves at the largest batch it may grow to."""

    option: Option
    ceiling_rps: float


@dataclass(slots=True, kw_only=True)
class Cutter:
    """Cuts for the needs of one case."""

    parameters: MorakParameters
    beliefs: Beliefs
    _options: dict[WorkloadId, Options] = field(default_factory=dict)

    def cut(self, need: Need, number: int, extra_pct: int = 0) -> Virtual | None:
        """A virtual GPU on devices of a class, with so much more share than its knee; None when no batch and share keep
        the promise there.
        """
        options = self._of(need)
        mine = np.flatnonzero(options.device_class == number)
        if not len(mine):
            return None
        shares, knee = np.unique(options.share_pct[mine]), self._knee_pct(need, number)
        from_knee = shares[shares >= knee]
        begun = int(from_knee.min()) if len(from_knee) else int(shares.max())
        wanted = min(100, max(int(shares.min()), begun + extra_pct))
        at = mine[options.share_pct[mine] == int(shares[shares <= wanted].max())]
        smallest = self.beliefs.option(need, options, int(at[np.argmin(options.batch[at])]))
        served = {int(options.batch[index]): float(options.capacity_rps[index]) for index in at}
        ceiling = batch_ceiling(served, self.parameters.ceiling_part)
        largest = self.beliefs.option(need, options, int(at[options.batch[at] == ceiling][0]))
        return Virtual(option=self._shaped(need, smallest, largest, wanted), ceiling_rps=largest.capacity_rps)

    def _of(self, need: Need) -> Options:
        if need.workload not in self._options:
            self._options[need.workload] = self.beliefs.options(need)[0]
        return self._options[need.workload]

    def _shaped(self, need: Need, smallest: Option, largest: Option, share_pct: int) -> Option:
        """The smallest batch with the memory and the reach of the largest, on exactly this share, with what is drawn
        there: that may be more than on the one that its latency is judged by.
        """
        kind = self.beliefs.classes[smallest.device_class]
        part = max(share_pct / 100, largest.memory_mib / kind.memory_mib)
        grid = None if need.tokens is not None else self.beliefs.grid(need.model, kind)
        drawn_w = smallest.power_w * share_pct / smallest.share_pct
        if grid is not None:
            drawn_w = max(smallest.power_w, self.beliefs.drawn_w(grid, kind, share_pct, smallest.batch))
        return replace(
            smallest,
            share_pct=share_pct,
            power_w=drawn_w,
            memory_mib=largest.memory_mib,
            usd_per_h=kind.usd_per_h * share_pct / 100,
            weight_usd_per_h=kind.usd_per_h * part,
            batch_min=smallest.batch,
            batch_max=max(smallest.batch, largest.batch),
            press=self.beliefs.press(need, kind, share_pct, self.beliefs.factor(need, kind, share_pct)),
        )

    def _knee_pct(self, need: Need, number: int) -> float:
        """Share of the device at the knee; all of it where nothing tells one."""
        kind = self.beliefs.classes[number]
        grid = None if need.tokens is not None else self.beliefs.grid(need.model, kind)
        if grid is None:
            return 100.0
        wanted = np.flatnonzero(grid.batches >= self.parameters.knee_batch)
        column = int(wanted[0]) if len(wanted) else len(grid.batches) - 1
        rows = np.flatnonzero(grid.measured[:, column])
        curve = {int(grid.shares_pct[row]): float(grid.latency_ms_mean[row, column]) for row in rows}
        return knee_share_pct(curve, self.parameters.knee_gain_part) / kind.sm_part if curve else 100.0


def start_clocks(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], parameters: MorakParameters
) -> dict[DeviceId, DeviceSetting]:
    """The clock every device begins with; not of devices where something is pinned."""
    fleet, kept = open_fleet(snapshot, {}), pinned_settings(snapshot, movable)
    needs = [need for need in needs_of(snapshot, movable) if need.kind is not WorkloadKind.JOB]
    types = snapshot.gpu_types_by_name()
    clocks = [_start_clock(snapshot, kind, types[kind.gpu_type], needs, parameters) for kind in fleet.classes]
    return {
        device.id: DeviceSetting(device=device.id, clock_mhz_sm=clocks[int(number)])
        for device, number in zip(fleet.devices, fleet.class_of, strict=True)
        if device.id not in kept
    }


def _start_clock(
    snapshot: Snapshot, kind: DeviceClass, gpu_type: GpuType, needs: list[Need], parameters: MorakParameters
) -> int:
    top = gpu_type.clock_mhz_sm_max
    if any(need.tokens is not None for need in needs):
        # Token latencies are known at the highest clock alone.
        return top
    measured = {clock for need in needs for clock in _measured_mhz(snapshot, need, gpu_type)}
    wanted = {parameters.clock_mhz_start, *(clock for clock in measured if clock > parameters.clock_mhz_start)}
    tried = sorted({next((each for each in gpu_type.clocks_mhz_sm if each >= clock), top) for clock in wanted} | {top})
    classes = [replace(kind, clock_mhz_sm=clock) for clock in tried]
    cutter = Cutter(parameters=parameters, beliefs=Beliefs.of(snapshot, classes))
    reach = [[_reach(cutter.cut(need, number)) for need in needs] for number in range(len(tried))]
    pairs = ((clock, zip(found, reach[-1], strict=True)) for clock, found in zip(tried, reach, strict=True))
    return next((clock for clock, both in pairs if all(here >= highest for here, highest in both)), top)


def _reach(virtual: Virtual | None) -> int:
    return 0 if virtual is None else virtual.option.batch_max


def _measured_mhz(snapshot: Snapshot, need: Need, gpu_type: GpuType) -> set[int]:
    profile = snapshot.profiles_by_key().get((need.model, gpu_type.name))
    if profile is None:
        return set()
    if profile.grid is not None:
        return set(profile.grid.clocks_mhz_sm)
    return {point.clock_mhz_sm for point in profile.points}
