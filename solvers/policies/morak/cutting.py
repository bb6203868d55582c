"""What a virtual GPU of a service is on a class of devices: its share, its batches, the clock it begins at.

Owns the reading of knee and ceiling from the profile, and the clock that all replicas of a device begin with: the
lowest measured one, from the wanted one on, at which nobody's batches have to end earlier than at the highest. A share
that was asked for may lie between measured ones; it is judged by the measured share below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.control.knee import batch_ceiling, knee_share_pct
from solvers.domain.device import GpuType
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.options import Beliefs
from solvers.models.worth import pinned_settings
from solvers.policies.morak.parameters import MorakParameters
from solvers.problems.choice import Option, Options
from solvers.problems.fleet import DeviceClass, open_fleet
from solvers.problems.needs import Need, needs_of


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
        """The smallest batch with the memory and the reach of the largest, on exactly this share."""
        kind = self.beliefs.classes[smallest.device_class]
        part = max(share_pct / 100, largest.memory_mib / kind.memory_mib)
        return replace(
            smallest,
            share_pct=share_pct,
            memory_mib=largest.memory_mib,
            usd_per_h=kind.usd_per_h * share_pct / 100,
            weight_usd_per_h=kind.usd_per_h * part,
            batch_min=smallest.batch,
            batch_max=max(smallest.batch, largest.batch),
            press=self.beliefs.press(need, kind, share_pct, self.beliefs.factor(need, kind)),
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
    tried = sorted({_supported(gpu_type, clock) for clock in wanted} | {top})
    classes = [replace(kind, clock_mhz_sm=clock) for clock in tried]
    cutter = Cutter(parameters=parameters, beliefs=Beliefs.of(snapshot, classes))
    reach = [[_reach(cutter.cut(need, number)) for need in needs] for number in range(len(tried))]
    enough = (clock for clock, found in zip(tried, reach, strict=True) if _no_less(found, reach[-1]))
    return next(enough, top)


def _reach(virtual: Virtual | None) -> int:
    return 0 if virtual is None else virtual.option.batch_max


def _no_less(found: Iterable[int], other: Iterable[int]) -> bool:
    return all(mine >= theirs for mine, theirs in zip(found, other, strict=True))


def _supported(gpu_type: GpuType, clock_mhz: int) -> int:
    """The lowest clock of the table that is not below the wanted one."""
    return next((clock for clock in gpu_type.clocks_mhz_sm if clock >= clock_mhz), gpu_type.clock_mhz_sm_max)


def _measured_mhz(snapshot: Snapshot, need: Need, gpu_type: GpuType) -> set[int]:
    profile = snapshot.profiles_by_key().get((need.model, gpu_type.name))
    if profile is None:
        return set()
    if profile.grid is not None:
        return set(profile.grid.clocks_mhz_sm)
    return {point.clock_mhz_sm for point in profile.points}
