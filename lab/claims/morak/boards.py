"""Morak's evaluation on simulated boards: four RTX 2080 Ti, four networks, five controllers, full load.

One device is governed period after period: every replica always has a full batch waiting, the device settles under the
setting that is held, the controller reads the period's answer times and peak power, each with noise of the measurement,
and its decision holds from the next period on. The board's own power limit is not the cap: who does not look at the cap
exceeds it. Shares never move here; that a controller asked for it is told.

Baselines know no partitioning: each network has one of the four boards. Morak cuts every board by the knees that a
profile of the truth shows: for copies of the network that a baseline would have there (`SAME`: every network has as
much hardware as with a baseline, and one figure as the paper's bars), or for three of the four networks in turn
(`MIXED`: their knees do not fit all four). All begin with batch 1 at 600 MHz and may lock every clock. The way up is
not counted: means are over the second half of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from agents.wire import mirrored
from lab.world.device import DeviceLoad, Tenant, TrueDeviceState, settle
from solvers.control.controllers import Controller, controller
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorSettings,
    ReplicaEnvelope,
    ReplicaReading,
    Setting,
)
from solvers.policies.morak.cutting import batch_ceiling, knee_share_pct
from solvers.sim.truth.truth import GpuTruth, gpu_truth

SATURATING_RPS = 1e9
"""More than anything can serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedPart:
    """A replica: its model, its part of the device, and between what its batch may move."""

    model: str
    share_pct_sm: int
    batch_max: int
    batch_min: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedLimits:
    """What shall be kept: the device's peak power, and the time of the answers to everybody's batches."""

    power_w_cap: float
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedDevice:
    """A device, what is on it, and what shall be kept. `clocks_mhz_sm`: what the controller may lock, rising."""

    gpu: GpuTruth
    parts: tuple[GovernedPart, ...]
    limits: GovernedLimits
    clocks_mhz_sm: tuple[int, ...]

    @property
    def envelope(self) -> DeviceEnvelope:
        same = {"latency_ms_limit": self.limits.latency_ms, "execution_only": True}
        return DeviceEnvelope(
            uuid=self.gpu.name,
            power_w_cap=self.limits.power_w_cap,
            clocks_mhz_sm=self.clocks_mhz_sm,
            replicas=tuple(
                mirrored(ReplicaEnvelope, part, replica=f"{part.model}-{position}", **same)
                for position, part in enumerate(self.parts)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedCourse:
    """How long and how noisily: relative standard deviations of a period's latency and peak power."""

    periods: int
    seed: int
    latency_noise: float = 0.01
    power_noise: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One period as it was, in the order of the parts."""

    setting: Setting
    power_w: float
    latency_ms: tuple[float, ...]
    rate_rps: tuple[float, ...]
    repartition: bool

    def keeps(self, limits: GovernedLimits) -> bool:
        return self.power_w <= limits.power_w_cap and max(self.latency_ms) <= limits.latency_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedRun:
    periods: tuple[Period, ...]
    state: DeviceState


def govern(
    device: GovernedDevice, loop: Controller, start: Setting | DeviceState, course: GovernedCourse
) -> GovernedRun:
    """Let a controller run, from a setting or on from where it stood. What a period shows was held in it; the
    controller's answer holds in the next.
    """
    envelope, drawn = device.envelope, np.random.default_rng(course.seed)
    begun = loop.first(envelope, start) if isinstance(start, Setting) else loop.fitted(envelope, start, start.setting)
    state, periods = begun, list[Period]()
    known: dict[Setting, TrueDeviceState] = {}
    for _ in range(course.periods):
        setting = state.setting
        if setting not in known:
            known[setting] = _settled(device, setting)
        held = known[setting]
        cycle_ms = [table[-1] for table in held.exec_ms]
        noise = drawn.standard_normal(len(cycle_ms) + 1)
        latencies = tuple(
            float((cycle + shift) * max(0.5, 1.0 + course.latency_noise * each))
            for cycle, shift, each in zip(cycle_ms, held.answer_shift_ms, noise, strict=False)
        )
        seen_w = float(held.power_w * max(0.5, 1.0 + course.power_noise * noise[-1]))
        readings = tuple(
            ReplicaReading(replica=replica.replica, latency_ms=latency)
            for replica, latency in zip(envelope.replicas, latencies, strict=True)
        )
        decision = loop.step(envelope, state, DeviceReading(power_w=seen_w, replicas=readings))
        rates = tuple(1000.0 * batch / cycle for batch, cycle in zip(setting.batches, cycle_ms, strict=True))
        periods.append(
            Period(
                setting=setting,
                power_w=seen_w,
                latency_ms=latencies,
                rate_rps=rates,
                repartition=decision.repartition is not None,
            )
        )
        state = decision.state
    return GovernedRun(periods=tuple(periods), state=state)


def alone_ms(gpu: GpuTruth, part: GovernedPart) -> float:
    """Milliseconds of a part's largest batch with the device to itself at its highest clock: a point of a profile."""
    tenants = (_tenant(part, part.batch_max),)
    load = DeviceLoad(gpu=gpu, clock_mhz_sm=gpu.clock_mhz_sm_max, power_limit_w=2.0 * gpu.tdp_w, tenants=tenants)
    return settle(load).exec_ms[0][-1]


def _tenant(part: GovernedPart, batch: int) -> Tenant:
    return Tenant(model=part.model, share_pct_sm=part.share_pct_sm, batch=batch, rate_rps=SATURATING_RPS)


def _settled(device: GovernedDevice, setting: Setting) -> TrueDeviceState:
    gpu, tenants = device.gpu, tuple(map(_tenant, device.parts, setting.batches))
    return settle(DeviceLoad(gpu=gpu, clock_mhz_sm=setting.clock_mhz_sm, power_limit_w=gpu.tdp_w, tenants=tenants))


GPU = "rtx-2080ti"
NETWORKS = ("googlenet", "mobilenet", "resnet101", "resnet50")
"""The paper evaluates four and names none; it profiles the first three."""
BASELINES = ("clipper_l", "clipper_p", "dfs", "batchdvfs")
PERIODS = 400
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES_PCT = tuple(range(10, 101, 10))
KNEE_BATCH = 1


class BoardCut(StrEnum):
    WHOLE = "whole"
    MIXED = "mixed"
    SAME = "same"


def board() -> GpuTruth:
    found = gpu_truth(GPU)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One contender under limits. A fixed batch or clock switches a knob off, for ablations."""

    controller: str
    cut: BoardCut
    limits: GovernedLimits
    settings: GovernorSettings = field(default_factory=GovernorSettings)
    batch_fixed: int | None = None
    clock_fixed: int | None = None
    gpu: GpuTruth = field(default_factory=board)
    networks: tuple[str, ...] = NETWORKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderTally:
    """What a contender reached in the second half: by network, and over all boards."""

    rate_rps: Mapping[str, float]
    energy_j: Mapping[str, float]
    """Of one request."""
    latency_ms: Mapping[str, float]
    power_w: float
    """Mean peak power of a board."""
    kept_part: float
    """Of periods and boards in which power and all latencies were within their limits."""
    hot_part: float
    late_part: float
    repartitions: int
    kept_rps: float = 0.0
    """Of all networks, counting only periods of boards that kept both limits."""

    @property
    def total_rps(self) -> float:
        return sum(self.rate_rps.values())


@lru_cache(maxsize=64)
def knee_pct(gpu: GpuTruth, network: str) -> int:
    """Where more share stops paying, from a profile over shares."""
    curve = {
        share: alone_ms(gpu, GovernedPart(model=network, share_pct_sm=share, batch_max=KNEE_BATCH))
        for share in SHARES_PCT
    }
    return knee_share_pct(curve)


@lru_cache(maxsize=256)
def ceiling(gpu: GpuTruth, network: str, share_pct: int) -> int:
    """Where a larger batch stops paying on a share, from a profile over batches."""
    profile = {
        batch: batch / alone_ms(gpu, GovernedPart(model=network, share_pct_sm=share_pct, batch_max=batch))
        for batch in BATCHES
    }
    return batch_ceiling(profile)


def boards(contest: Contest) -> tuple[tuple[GovernedPart, ...], ...]:
    gpu, names = contest.gpu, contest.networks
    if contest.cut is BoardCut.WHOLE:
        # Only Morak knows a ceiling for its batches.
        highest = {name: ceiling(gpu, name, 100) for name in names} if contest.controller == "morak" else {}
        return tuple((_part(contest, name, 100, highest.get(name, BATCHES[-1])),) for name in names)
    sizes = {name: knee_pct(gpu, name) for name in names}
    if contest.cut is BoardCut.SAME:
        lists = [[name] * (100 // sizes[name]) for name in names]
    else:
        lists = [_first_fit([*names[turn:], *names[:turn]], sizes) for turn in range(len(names))]
    return tuple(
        tuple(_part(contest, name, sizes[name], ceiling(gpu, name, sizes[name])) for name in listed) for listed in lists
    )


def _part(contest: Contest, network: str, share_pct: int, batch_max: int) -> GovernedPart:
    fixed = contest.batch_fixed
    return GovernedPart(
        model=network,
        share_pct_sm=share_pct,
        batch_max=batch_max if fixed is None else fixed,
        batch_min=1 if fixed is None else fixed,
    )


def _first_fit(names: list[str], sizes: Mapping[str, int]) -> list[str]:
    found: list[str] = []
    for name in names:
        if sum(sizes[each] for each in found) + sizes[name] <= 100:
            found.append(name)
    return found


def tally(contest: Contest, seed: int, periods: int = PERIODS) -> ContenderTally:
    runs = [(parts, _run(contest, parts, seed * 101 + number, periods)) for number, parts in enumerate(boards(contest))]
    second = [(parts, run[periods // 2 :]) for parts, run in runs]
    every = [period for _, run in second for period in run]
    limits, names = contest.limits, contest.networks
    # By network: where its parts are, and what part of the board's watts each answers for, what nobody holds included.
    seats = {
        name: [
            (run, place, part.share_pct_sm / sum(each.share_pct_sm for each in parts))
            for parts, run in second
            for place, part in enumerate(parts)
            if part.model == name
        ]
        for name in names
    }
    rates = {
        name: sum(fmean(period.rate_rps[place] for period in run) for run, place, _ in seats[name]) for name in names
    }
    drawn = {
        name: sum(fmean(period.power_w for period in run) * held for run, _, held in seats[name]) for name in names
    }
    return ContenderTally(
        rate_rps=rates,
        energy_j={name: drawn[name] / rates[name] for name in names},
        latency_ms={
            name: fmean(period.latency_ms[place] for run, place, _ in seats[name] for period in run) for name in names
        },
        power_w=fmean(period.power_w for period in every),
        kept_part=fmean(period.keeps(limits) for period in every),
        hot_part=fmean(period.power_w > limits.power_w_cap for period in every),
        late_part=fmean(max(period.latency_ms) > limits.latency_ms for period in every),
        repartitions=sum(period.repartition for _, run in runs for period in run),
        kept_rps=sum(fmean(sum(each.rate_rps) * each.keeps(limits) for each in run) for _, run in second),
    )


def mean_tally(contest: Contest, seeds: int, periods: int = PERIODS) -> ContenderTally:
    """Means over seeds."""
    found = [tally(contest, seed, periods) for seed in range(seeds)]

    def mean(name: str) -> Any:
        told = [getattr(each, name) for each in found]
        if isinstance(told[0], dict):
            return {network: fmean(each[network] for each in told) for network in contest.networks}
        return fmean(told)

    means = {item.name: mean(item.name) for item in fields(ContenderTally) if item.name != "repartitions"}
    return ContenderTally(**means, repartitions=sum(each.repartitions for each in found))


def _run(contest: Contest, parts: tuple[GovernedPart, ...], seed: int, periods: int) -> tuple[Period, ...]:
    clocks = contest.gpu.clocks_mhz_sm if contest.clock_fixed is None else ()
    device = GovernedDevice(gpu=contest.gpu, parts=parts, limits=contest.limits, clocks_mhz_sm=clocks)
    first = Setting(batches=(1,) * len(parts), clock_mhz_sm=contest.clock_fixed or 600)
    loop = controller(contest.controller, contest.settings)
    return govern(device, loop, first, GovernedCourse(periods=periods, seed=seed)).periods


def gain_pct(mine: float, theirs: float) -> float:
    return 100.0 * (mine / theirs - 1.0) if theirs > 0.0 else float("inf")
