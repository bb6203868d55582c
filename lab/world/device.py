"""What runs together on one device while nothing is reconfigured: times under mutual slowdown, clock, power.

The fixed point between how busy each tenant is and how slow the others make it, over the truth of
`solvers.sim.truth.truth`, begins with idle tenants and lets them load each other until nothing changes. Services are
not known here: a tenant's rate is what its router sends it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import mul

from lab.world.truth import answer_shift_ms
from solvers.sim.truth.truth import (
    GpuTruth,
    Resident,
    clock_reached_mhz,
    dynamic_power_w,
    execution_curve_ms,
    execution_ms,
    idle_power_w,
    slowdown,
    swap_s,
    training_iteration_ms,
    wanted,
)

ROUNDS_MAX = 40
SETTLED = 1e-4
"""Busy fractions that change by less have settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An inference replica: its model, share and batch limit, and the requests per second it is sent."""

    model: str
    share_pct_sm: int
    batch: int
    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """A training job: its iteration takes `iteration_ms_reference` on the whole of the reference GPU."""

    model: str
    share_pct_sm: int
    iteration_ms_reference: float
    gpu_reference: GpuTruth
    swapped_mib: float = 0.0
    """Of its memory, what is on the host: every iteration touches all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """A device with all that is on it, the clock it is set to and its power limit."""

    gpu: GpuTruth
    clock_mhz_sm: int
    power_limit_w: float
    tenants: tuple[Tenant, ...] = ()
    trainees: tuple[Trainee, ...] = ()
    slow: float = 1.0
    """Everything takes so many times as long as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueDeviceState:
    """How the device runs, in the order of its tenants and trainees. `exec_ms[i][b - 1]`: mean time of a batch of b.
    `answer_shift_ms[i]`: by how much a full batch's answer takes longer, were the next one always waiting.
    """

    clock_mhz_sm: int
    power_w: float
    exec_ms: tuple[tuple[float, ...], ...]
    busy: tuple[float, ...]
    iteration_ms: tuple[float, ...]
    answer_shift_ms: tuple[float, ...]


def settle(load: DeviceLoad) -> TrueDeviceState:
    """The state in which every tenant is as busy as its own slowed-down times make it."""
    busy: tuple[float, ...] = (0.0,) * len(load.tenants)
    company = _together(load, load.clock_mhz_sm)
    state = _state(load, company, busy)
    for _ in range(ROUNDS_MAX):
        moved = max((abs(old - new) for old, new in zip(busy, state.busy, strict=True)), default=0.0)
        if moved < SETTLED:
            break
        busy = state.busy
        state = _state(load, company, busy)
    return state


@dataclass(frozen=True, slots=True)
class _Company:
    """All that is on a device at a clock, whatever its rates. Tenants come first, then trainees. `factor[i][j]` and
    `extra_ms[i][j]`: what j adds to i, were it always busy; `watts`: what each draws, were it always busy.
    """

    residents: tuple[Resident, ...]
    alone_ms: tuple[tuple[float, ...], ...]
    """A trainee has one time, its iteration's."""
    factor: tuple[tuple[float, ...], ...]
    extra_ms: tuple[tuple[float, ...], ...]
    watts: tuple[float, ...]
    idle_w: float
    apart: bool
    """Whether shares fit next to each other: only then what neighbours do adds up."""
    shift_ms: tuple[float, ...]
    met_ms: tuple[tuple[float, ...], ...]
    """How much longer than its batches each tenant's answers take, and what j adds to i's, were it always busy."""

    def disturbed(self, gpu: GpuTruth, clock_mhz_sm: int, busy: Sequence[float]) -> list[tuple[float, float]]:
        """Factor and milliseconds on top for each, when all are as busy as this."""
        if self.apart:
            return [
                (1.0 + sum(map(mul, factors, busy)), sum(map(mul, extras, busy)))
                for factors, extras in zip(self.factor, self.extra_ms, strict=True)
            ]
        working = [replace(each, busy=part) for each, part in zip(self.residents, busy, strict=True)]
        return [
            slowdown(gpu, each, clock_mhz_sm, working[:index] + working[index + 1 :])
            for index, each in enumerate(working)
        ]


@lru_cache(maxsize=16384)
def _company(gpu: GpuTruth, clock_mhz_sm: int, tenants: tuple[Tenant, ...], trainees: tuple[Trainee, ...]) -> _Company:
    residents = [
        *(Resident(model=each.model, share_pct_sm=each.share_pct_sm, batch=each.batch) for each in tenants),
        *(Resident(model=each.model, share_pct_sm=each.share_pct_sm, training=True) for each in trainees),
    ]
    trained = [
        (training_iteration_ms(gpu, each, clock_mhz_sm, (), job.iteration_ms_reference, job.gpu_reference),)
        for each, job in zip(residents[len(tenants) :], trainees, strict=True)
    ]
    added = [
        [(1.0, 0.0) if one is other else slowdown(gpu, one, clock_mhz_sm, (other,)) for other in residents]
        for one in residents
    ]
    shift_ms = tuple(answer_shift_ms(gpu, each) for each in residents[: len(tenants)])
    return _Company(
        residents=tuple(residents),
        alone_ms=(
            *(tuple(execution_curve_ms(gpu, each, clock_mhz_sm)) for each in residents[: len(tenants)]),
            *trained,
        ),
        factor=tuple(tuple(factor - 1.0 for factor, _ in row) for row in added),
        extra_ms=tuple(tuple(extra_ms for _, extra_ms in row) for row in added),
        watts=tuple(dynamic_power_w(gpu, each, clock_mhz_sm) for each in residents),
        idle_w=idle_power_w(gpu, residents),
        apart=sum(each.share_pct_sm for each in residents) <= 100,
        shift_ms=shift_ms,
        met_ms=tuple(
            tuple(0.0 if one is other else answer_shift_ms(gpu, one, (other,)) - mine_ms for other in residents)
            for one, mine_ms in zip(residents, shift_ms, strict=False)
        ),
    )


def _together(load: DeviceLoad, clock_mhz_sm: int) -> _Company:
    still = tuple(Tenant(model=e.model, share_pct_sm=e.share_pct_sm, batch=e.batch, rate_rps=0.0) for e in load.tenants)
    return _company(load.gpu, clock_mhz_sm, still, load.trainees)


def _state(load: DeviceLoad, company: _Company, busy: Sequence[float]) -> TrueDeviceState:
    """What follows when tenants are as busy as this: their times, and how busy those make them."""
    gpu, serving = load.gpu, len(load.tenants)
    spread = (*busy, *(1.0 for _ in load.trainees))
    clock, idle_w = load.clock_mhz_sm, company.idle_w
    if idle_w + sum(map(mul, company.watts, spread)) > load.power_limit_w:
        residents = [replace(each, busy=part) for each, part in zip(company.residents, spread, strict=True)]
        clock = clock_reached_mhz(gpu, residents, load.clock_mhz_sm, load.power_limit_w)
        company = _together(load, clock)
    by = company.disturbed(gpu, clock, spread)
    times = tuple(
        tuple((each * factor + extra_ms) * load.slow for each in alone_ms)
        for alone_ms, (factor, extra_ms) in zip(company.alone_ms, by, strict=True)
    )
    found = tuple(busy_part(each.rate_rps, table) for each, table in zip(load.tenants, times, strict=False))
    drawn_w = idle_w + sum(map(mul, company.watts, (*found, *spread[serving:])))
    return TrueDeviceState(
        clock_mhz_sm=clock,
        # A limit holds as long as the lowest clock can hold it.
        power_w=drawn_w if clock <= gpu.clocks_mhz_sm[0] else min(drawn_w, load.power_limit_w),
        exec_ms=times[:serving],
        busy=found,
        iteration_ms=tuple(each + paged for (each,), paged in zip(times[serving:], _paging_ms(load), strict=True)),
        answer_shift_ms=tuple(
            load.slow * (mine_ms + sum(map(mul, row, spread)))
            for mine_ms, row in zip(company.shift_ms, company.met_ms, strict=True)
        ),
    )


def _paging_ms(load: DeviceLoad) -> tuple[float, ...]:
    """What an iteration of each trainee waits for memory: what is on the host comes in, and as much goes out, with
    nothing else meanwhile, over a link that all who page share evenly.
    """
    paging = sum(each.swapped_mib > 0.0 for each in load.trainees)
    return tuple(2000.0 * paging * swap_s(load.gpu, each.swapped_mib) if paging else 0.0 for each in load.trainees)


def busy_part(rate_rps: float, exec_ms: Sequence[float]) -> float:
    """Part of its time that a greedily batching server executes: batches as large as what arrives during one."""
    rate_per_ms, batch_max = rate_rps / 1000.0, float(len(exec_ms))
    if rate_per_ms <= 0.0:
        return 0.0
    batch = 1.0
    for _ in range(ROUNDS_MAX):
        during = rate_per_ms * _between(exec_ms, batch)
        wanted = min(batch_max, max(1.0, during + math.exp(-during)))
        if abs(wanted - batch) < 1e-3:
            break
        batch += 0.7 * (wanted - batch)
    return min(1.0, rate_per_ms * _between(exec_ms, batch) / batch)


def _between(exec_ms: Sequence[float], batch: float) -> float:
    low = int(batch)
    if low >= len(exec_ms):
        return exec_ms[-1]
    return exec_ms[low - 1] + (batch - low) * (exec_ms[low] - exec_ms[low - 1])


def iterations_done(state: TrueDeviceState, interval_s: float) -> tuple[float, ...]:
    """Iterations, fractional, that each trainee gets done in a stretch."""
    return tuple(1000.0 * interval_s / each for each in state.iteration_ms)


# --- What a GPU monitor would call the utilisation of a device: the part of the time in which anybody's kernels run
#
# A tenant's kernels run for a part of each of its batches (the host has the rest), and what neighbours add is time on
# the GPU; tenants are busy independently of each other.


def kernels_part(load: DeviceLoad, state: TrueDeviceState) -> float:
    idle = 1.0
    for tenant, busy, times in zip(load.tenants, state.busy, state.exec_ms, strict=True):
        one = Resident(model=tenant.model, share_pct_sm=tenant.share_pct_sm, batch=tenant.batch)
        running, alone_ms = _alone(load.gpu, one, state.clock_mhz_sm)
        factor = max(1.0, times[-1] / alone_ms)
        idle *= 1.0 - busy * (running + factor - 1.0) / factor
    return 1.0 - idle if not load.trainees else 1.0


@lru_cache(maxsize=4096)
def _alone(gpu: GpuTruth, one: Resident, clock_mhz_sm: int) -> tuple[float, float]:
    """Part of a batch in which kernels run, and its time, without neighbours."""
    return wanted(gpu, one, clock_mhz_sm)[0], execution_ms(gpu, one, clock_mhz_sm)
